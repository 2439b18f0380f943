// Episodes of a running run: the newest as they are recorded, or those of any recorded step.

// What is asked for (a step of null is the newest), what has come, and how it is shown.
const ASKED = { run: null, kind: "step", step: null, episode: 0, stream: "mask" };
const CAME = { of: "", content: null, problem: "", shown: "" };
const MOST_PLACES = 400;
const EPISODES_BAR = html("div", { class: "toolbar" });
const EPISODES_ROOM = html("div");
const EPISODES_SECTION = chapter(
  "episodes",
  "Episodes",
  "The step being learnt from is already here. An episode stays while you point at it.",
  EPISODES_BAR,
  EPISODES_ROOM,
);

// Ranges [first, last, stride] as steps, thinned if they are very many.
function expandRanges(ranges) {
  const total = ranges.reduce((sum, [first, last, stride]) => sum + 1 + (last - first) / stride, 0);
  const every = Math.ceil(total / MOST_PLACES);
  const steps = ranges.flatMap(([first, last, stride]) => {
    const count = Math.floor((last - first) / (stride * every)) + 1;
    return Array.from({ length: count }, (_, place) => first + place * stride * every);
  });
  const end = ranges.length ? ranges[ranges.length - 1][1] : null;
  return end === null || steps[steps.length - 1] === end ? steps : [...steps, end];
}

// The recorded step that is nearest to a step.
function nearestRecorded(ranges, step) {
  const candidates = ranges.map(([first, last, stride]) =>
    clamp(first + Math.round((step - first) / stride) * stride, first, last),
  );
  return candidates.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), candidates[0]);
}

function isRecorded(ranges, step) {
  return ranges.some(([first, last, stride]) => step >= first && step <= last && (step - first) % stride === 0);
}

function askedRun() {
  const able = DATA.runs.filter((run) => run.recorded.step.length || run.recorded.eval.length);
  const run = able.find((each) => each.key === ASKED.run) || able[0] || null;
  if (run && !run.recorded[ASKED.kind].length) ASKED.kind = run.recorded.step.length ? "step" : "eval";
  return [run, able];
}

function askedStep(run) {
  const ranges = run.recorded[ASKED.kind];
  const [, last] = ranges[ranges.length - 1];
  return ASKED.step === null ? last : nearestRecorded(ranges, ASKED.step);
}

function ask(change) {
  Object.assign(ASKED, { episode: 0 }, change);
  writeLink();
  updateEpisodes(true);
}

function moveStep(by) {
  const [run] = askedRun();
  if (!run) return;
  const [ranges, step] = [run.recorded[ASKED.kind], askedStep(run)];
  for (let reach = 1; reach < 1e6; reach *= 2) {
    const found = nearestRecorded(ranges, step + by * reach);
    if (found !== step) return ask({ step: found });
  }
}

function episodesBar(run, able) {
  const step = html("input", {
    type: "number",
    class: "step",
    value: askedStep(run),
    "aria-label": "Step",
    onchange: () => ask({ step: Number(step.value) || 0 }),
  });
  const newest = html("input", {
    type: "checkbox",
    checked: ASKED.step === null,
    onchange: () => ask({ step: newest.checked ? null : askedStep(askedRun()[0]) }),
  });
  const kinds = [
    ["step", "training", !run.recorded.step.length],
    ["eval", "held-out tasks", !run.recorded.eval.length],
  ];
  const options = able.map((each) => [each.key, each.name]);
  return [
    able.length > 1 ? choice("Run", options, run.key, (key) => ask({ run: key })) : null,
    choice("Of", kinds, ASKED.kind, (kind) => ask({ kind, step: null })),
    html(
      "span",
      { class: "choice" },
      html("span", {}, "Step"),
      html("button", { type: "button", "aria-label": "Earlier step", onclick: () => moveStep(-1) }, "‹"),
      step,
      html("button", { type: "button", "aria-label": "Later step", onclick: () => moveStep(1) }, "›"),
    ),
    html("label", { class: "choice" }, newest, html("span", {}, "newest")),
  ].filter(Boolean);
}

async function fetchEpisodes(run, step) {
  const learnt = ASKED.kind === "step" && isRecorded(run.recorded.tokens, step); // the learner's numbers come later
  const of = `${run.key} ${ASKED.kind} ${step} ${learnt}`;
  if (CAME.of === of) return;
  CAME.of = of;
  const query = new URLSearchParams({ run: run.key, kind: ASKED.kind, step });
  try {
    const answer = await fetch(`episodes?${query}`);
    if (!answer.ok) throw new Error(`step ${step} cannot be read any more`);
    const content = await answer.json();
    if (CAME.of !== of) return; // something else was asked for meanwhile
    Object.assign(CAME, { content, problem: content.problems.join(" ") });
  } catch (error) {
    if (CAME.of !== of) return;
    Object.assign(CAME, { problem: `${error.message}.`, of: "" });
    if (!CAME.content) CAME.content = { episodes: [], texts: null };
  }
  CAME.shown = "";
  updateEpisodes(EPISODES_ROOM.childElementCount === 0);
}

function drawEpisodes(run, focus) {
  const { content, problem } = CAME;
  const parts = problem ? [html("p", { class: "none" }, problem)] : [];
  if (content && content.episodes.length) {
    ASKED.episode = clamp(ASKED.episode, 0, content.episodes.length - 1);
    const change = (what, where) => {
      Object.assign(ASKED, what);
      writeLink();
      drawEpisodes(run, where);
    };
    parts.push(...browserOf({ ...run, ...content }, ASKED, change).filter(Boolean));
  }
  EPISODES_ROOM.replaceChildren(...parts);
  CAME.shown = `${CAME.of} ${ASKED.episode} ${ASKED.stream}`;
  const wanted = focus && EPISODES_ROOM.querySelector(focus);
  if (wanted) wanted.focus({ preventScroll: true });
}

// Bring the chapter up to date; while somebody reads, only if it is asked for.
function updateEpisodes(asked) {
  const [run, able] = askedRun();
  if (!run) {
    EPISODES_BAR.replaceChildren();
    EPISODES_ROOM.replaceChildren(html("p", { class: "none" }, "No episode has been recorded yet (rollouts/ is missing or empty)."));
    Object.assign(CAME, { of: "", content: null, shown: "" });
    return;
  }
  settle(EPISODES_BAR, html("div", { class: "toolbar" }, episodesBar(run, able)));
  if (!asked && (EPISODES_ROOM.matches(":hover") || inUse(EPISODES_ROOM))) return;
  fetchEpisodes(run, askedStep(run));
  if (CAME.content && CAME.shown !== `${CAME.of} ${ASKED.episode} ${ASKED.stream}`) drawEpisodes(run);
}

function liveEpisodesChapter() {
  updateEpisodes(false);
  return EPISODES_SECTION;
}

// A figure or an incident leads here.
EPISODES.open = (step, run) => {
  const [current] = askedRun();
  const wanted = run || current;
  if (!wanted || !wanted.recorded.step.length) return;
  ask({ run: wanted.key, kind: "step", step: nearestRecorded(wanted.recorded.step, step) });
  EPISODES_SECTION.scrollIntoView();
};
