// Tokens in colour: which stream is shown, how its numbers become colours, and what a token says about itself.

const STREAMS = {
  mask: { label: "Mask: who wrote it" },
  sampler: { label: "Sampler log-prob", of: (turn, place) => at(turn.sampler, place) },
  gap: {
    label: "Log-prob gap (learner − sampler)",
    centre: 0,
    of: (turn, place) => minus(at(turn.old, place), at(turn.sampler, place)),
  },
  ratio: {
    label: "Ratio (new / old)",
    centre: 1,
    scale: "log",
    of: (turn, place) => Math.exp(minus(at(turn.new, place), at(turn.old ?? turn.sampler, place))),
  },
  advantage: { label: "Advantage", centre: 0, of: (turn, place) => at(turn.advantage, place) },
  clipped: { label: "Clipping", of: (turn, place) => at(turn.clipped, place) },
};

function at(values, place) {
  return values ? values[place] : undefined;
}

function minus(first, second) {
  return isNumber(first) && isNumber(second) ? first - second : NaN;
}

function streamValues(episodes, stream) {
  const read = STREAMS[stream].of;
  return episodes
    .flatMap((episode) => episode.turns.flatMap((turn) => turn.sampled.map((_, place) => read(turn, place))))
    .filter(isNumber);
}

function streamsOf(run) {
  return Object.keys(STREAMS).filter(
    (name) => name === "mask" || (run.texts && streamValues(run.episodes, name).length),
  );
}

function tokenText(text) {
  return text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥\t");
}

function colourToken(span, stream, scale, value) {
  if (stream === "clipped") {
    if (value) span.classList.add("clipped");
    return;
  }
  if (!isNumber(value)) return;
  const colour = scaleColour(scale, value);
  span.style.backgroundColor = css(colour);
  span.style.color = inkOn(colour);
}

function promptTokens(run, turn, number, stream) {
  return turn.prompt.map((id, place) =>
    html(
      "span",
      { class: stream === "mask" ? "token environment" : "token", "data-turn": number, "data-prompt": place },
      tokenText(run.texts[id] ?? `[${id}]`),
    ),
  );
}

function sampledTokens(run, turn, number, stream, scale) {
  return turn.sampled.map((id, place) => {
    const span = html(
      "span",
      { class: stream === "mask" ? "token policy" : "token", "data-turn": number, "data-place": place },
      tokenText(run.texts[id] ?? `[${id}]`),
    );
    if (stream !== "mask") colourToken(span, stream, scale, STREAMS[stream].of(turn, place));
    return span;
  });
}

// What a token says about itself, for the line above the episode.
function tokenFacts(run, turn, data) {
  if (data.prompt !== undefined) {
    const id = turn.prompt[Number(data.prompt)];
    return [
      ["token", JSON.stringify(run.texts[id] ?? "")],
      ["id", String(id)],
      ["written by", "environment"],
    ];
  }
  const place = Number(data.place);
  const id = turn.sampled[place];
  const facts = [
    ["token", JSON.stringify(run.texts[id] ?? "")],
    ["id", String(id)],
    ["sampler", at(turn.sampler, place)],
    ["old", at(turn.old, place)],
    ["new", at(turn.new, place)],
  ];
  for (const name of ["gap", "ratio", "advantage"]) facts.push([name, STREAMS[name].of(turn, place)]);
  const clipped = at(turn.clipped, place);
  if (isNumber(clipped)) facts.push(["clipped", clipped ? "yes" : "no"]);
  return facts.filter(([, value]) => typeof value === "string" || isNumber(value));
}

function streamLegend(stream, scale) {
  if (stream === "mask") {
    return html(
      "span",
      { class: "scale" },
      html("span", { class: "token environment" }, "environment"),
      html("span", { class: "token policy" }, "policy (trained on)"),
    );
  }
  if (stream === "clipped")
    return html("span", { class: "scale" }, html("span", { class: "token clipped" }, "clipped"), "not clipped: plain");
  return colourBar(scale);
}
