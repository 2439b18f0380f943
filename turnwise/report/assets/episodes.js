// The trajectory browser: choose run, episode and colouring; read the episode turn by turn.

// Set by the chapter of episodes: `EPISODES.open(step, run)` shows those of the nearest step in the sample.
const EPISODES = { open: () => {} };

// A link to the episodes of the step nearest to `step`; nothing where the run has none in the sample.
function episodesLink(run, step) {
  const steps = sampledSteps([run]);
  if (!steps.length) return null;
  const there = steps[nearest(steps, step)];
  return html(
    "a",
    { href: "#episodes", "data-run": run.key, onclick: () => EPISODES.open(there, run) },
    `Episodes of step ${there}`,
  );
}

function episodeButton(episode, chosen, choose) {
  return html(
    "button",
    { type: "button", "aria-pressed": String(chosen), onclick: choose },
    html("b", {}, `Step ${episode.step}${episode.held_out ? ", held-out" : ""}`),
    html("span", { class: "name" }, episode.id),
    html(
      "span",
      { class: episode.success ? "tone good" : "tone bad" },
      `${episode.success ? "success" : "failure"} · reward ${show(episode.reward)} · ${counted(episode.turns.length, "turn")}`,
    ),
  );
}

function side(title, note, content, leftOut) {
  return html(
    "div",
    { class: `side ${title}` },
    html("h5", {}, title, note ? html("span", { class: "quiet" }, ` ${note}`) : null),
    html(
      "div",
      { class: "text", dir: "auto" },
      leftOut ? html("span", { class: "quiet" }, `[${leftOut} tokens left out] `) : null,
      content,
    ),
  );
}

function turnNote(turn) {
  const notes = [
    `reward ${show(turn.reward)}`,
    turn.valid ? null : "not valid",
    isNumber(turn.version) ? `policy version ${turn.version}` : null,
    turn.restarts ? "history rewritten" : null,
  ];
  return notes.filter(Boolean).join(" · ");
}

function turnArticle(run, turn, number, stream, scale) {
  const tokens = run.texts && (turn.prompt.length || turn.sampled.length);
  const words = (text) => html("span", {}, text || "(nothing)");
  return html(
    "article",
    { class: turn.valid ? "turn" : "turn invalid" },
    html("h4", {}, `Turn ${number + 1}`, html("span", { class: "quiet" }, turnNote(turn))),
    side(
      "environment",
      "",
      tokens ? promptTokens(run, turn, number, stream) : words(turn.observation),
      tokens ? turn.left_out[0] : 0,
    ),
    side(
      "policy",
      "",
      tokens ? sampledTokens(run, turn, number, stream, scale) : words(turn.action),
      tokens ? turn.left_out[1] : 0,
    ),
  );
}

function episodeHead(episode) {
  const facts = [
    ["Step", episode.step],
    ["Episode", episode.id],
    ["Reward", episode.reward],
    ["Stop", episode.stop],
  ];
  if (episode.error) facts.push(["Error", episode.error]);
  if (episode.seat !== "agent") facts.push(["Seat", episode.seat]);
  return [
    pairs(facts),
    episode.task ? html("details", {}, html("summary", {}, "Task"), html("pre", {}, episode.task)) : null,
  ];
}

// Points at tokens with the pointer or the arrow keys and tells what they are.
function inspectTokens(pane, facts, run, episode) {
  let current = null;
  const tell = (span) => {
    if (current) current.classList.remove("current");
    current = span;
    span.classList.add("current");
    facts.replaceChildren(pairs(tokenFacts(run, episode.turns[Number(span.dataset.turn)], span.dataset)));
  };
  pane.onpointerover = (event) => {
    const span = event.target.closest("[data-turn]");
    if (span) tell(span);
  };
  pane.onkeydown = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const all = [...pane.querySelectorAll("[data-turn]")];
    if (!move || !all.length) return;
    event.preventDefault();
    tell(all[clamp(all.indexOf(current) + move, 0, all.length - 1)]);
    current.scrollIntoView({ block: "nearest" });
  };
}

function showEpisode(run, episode, stream, pane, facts) {
  const settings = STREAMS[stream];
  const scale =
    stream === "mask" || stream === "clipped" ? null : colourScale(streamValues(run.episodes, stream), settings);
  const turns = episode.turns.map((turn, number) => turnArticle(run, turn, number, stream, scale));
  const final = episode.final
    ? html("article", { class: "turn" }, side("environment", "after the last turn", html("span", {}, episode.final), 0))
    : null;
  pane.replaceChildren(...[...episodeHead(episode), ...turns, final].filter(Boolean));
  facts.replaceChildren(
    run.texts ? html("span", { class: "quiet" }, "Point at a token, or use the arrow keys, to see its numbers.") : "",
  );
  inspectTokens(pane, facts, run, episode);
  return streamLegend(stream, scale);
}

function missingStreams(run, episode) {
  if (!run.texts) return "Token colours need the tokenizer of a checkpoint; the episodes are shown as texts.";
  if (episode.held_out) return "A held-out episode is not learned from: only the sampler's numbers are known.";
  return streamValues([episode], "ratio").length
    ? ""
    : `Ratio, gap, advantage and clipping of step ${episode.step} were not recorded; rollouts/tokens_*.jsonl.zst has them for some steps.`;
}

function browserOf(run, state, redraw) {
  const streams = streamsOf(run);
  if (!streams.includes(state.stream)) state.stream = "mask";
  const pane = html("div", { class: "episode", tabindex: 0, role: "region", "aria-label": "Episode" });
  const facts = html("div", { class: "facts", "aria-live": "polite" });
  const list = html(
    "div",
    { class: "episode-list", role: "group", "aria-label": "Episodes" },
    run.episodes.map((episode, place) =>
      episodeButton(episode, place === state.episode, () =>
        redraw({ episode: place }, `.episode-list button:nth-child(${place + 1})`),
      ),
    ),
  );
  const legend = showEpisode(run, run.episodes[state.episode], state.stream, pane, facts);
  const options = Object.entries(STREAMS).map(([name, stream]) => [name, stream.label, !streams.includes(name)]);
  const toolbar = html(
    "div",
    { class: "toolbar" },
    choice("Colour", options, state.stream, (stream) => redraw({ stream }, ".colouring select")),
    legend,
  );
  toolbar.firstChild.classList.add("colouring");
  const note = missingStreams(run, run.episodes[state.episode]);
  return [
    toolbar,
    note ? html("p", { class: "none" }, note) : null,
    html("div", { class: "browser" }, list, html("div", {}, facts, pane)),
  ];
}

function episodesChapter() {
  const withEpisodes = DATA.runs.filter((run) => run.episodes.length);
  if (!withEpisodes.length)
    return chapter(
      "episodes",
      "Episodes",
      null,
      html("p", { class: "none" }, "No trajectory was recorded (rollouts/ is missing or empty)."),
    );
  const state = { run: 0, episode: 0, stream: "mask" };
  const room = html("div");
  const redraw = (change, focus) => {
    Object.assign(state, change);
    room.replaceChildren(...browserOf(withEpisodes[state.run], state, redraw).filter(Boolean));
    if (focus) room.querySelector(focus).focus();
  };
  redraw({});
  const options = withEpisodes.map((run, place) => [String(place), `${run.name} (${run.algorithm})`]);
  const runs = choice("Run", options, "0", (place) => redraw({ run: Number(place), episode: 0 }));
  EPISODES.open = (step, wanted) => {
    const [run, episode] = nearestEpisode(withEpisodes, step, wanted);
    runs.querySelector("select").value = String(run);
    redraw({ run, episode }, `.episode-list button:nth-child(${episode + 1})`);
    document.getElementById("episodes").scrollIntoView();
  };
  return chapter(
    "episodes",
    "Episodes",
    "A sample of what was played, failures and successes: of the first and the last recorded step and steps between, of those nearest to the onset and the first incidents, and of held-out tasks at the first and the last evaluation.",
    withEpisodes.length > 1 ? html("div", { class: "toolbar" }, runs) : null,
    room,
  );
}

// Places of the run and of its first episode whose step is nearest to `step`; only of the run `wanted` where one is.
function nearestEpisode(runs, step, wanted) {
  const found = runs.flatMap((run, place) =>
    wanted && run !== wanted
      ? []
      : run.episodes.map((episode, number) => [place, number, episode.held_out ? Infinity : Math.abs(episode.step - step)]),
  );
  return found.reduce((best, each) => (each[2] < best[2] ? each : best));
}
