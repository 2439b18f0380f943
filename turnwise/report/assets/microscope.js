// The stability microscope: heat maps over turn index and step, all with one cursor and one mark where things went wrong.

function paint(cells, scale) {
  const [height, width] = [cells.length, cells[0].length];
  const canvas = html("canvas", { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  cells.forEach((row, turn) =>
    row.forEach((value, place) => {
      if (isNumber(value)) image.data.set([...scaleColour(scale, value), 255], 4 * (turn * width + place));
    }),
  );
  context.putImageData(image, 0, 0);
  canvas.dataset.of = cells.flat().reduce((sum, value, place) => sum + (value || 0) * ((place % 97) + 1), 0); // for comparisons
  return canvas;
}

function turnLabels(turns) {
  const every = Math.max(1, Math.ceil(turns / 8));
  return html(
    "div",
    { class: "turn-labels", "aria-hidden": "true" },
    Array.from({ length: turns }, (_, turn) => html("span", {}, turn === 0 ? "turn 1" : turn % every ? "" : String(turn + 1))),
  );
}

function stepLabels(steps) {
  const ends = [steps[0], steps[Math.floor(steps.length / 2)], steps[steps.length - 1]];
  return html(
    "div",
    { class: "step-labels", "aria-hidden": "true" },
    [...new Set(ends)].map((step, place) => html("span", {}, place ? String(step) : `step ${step}`)),
  );
}

function overlay(kind, steps, step) {
  const line = html("div", { class: kind, hidden: step === null });
  const move = (to) => {
    line.hidden = to === null;
    if (to !== null) line.style.left = `${((nearest(steps, to) + 0.5) / steps.length) * 100}%`;
  };
  move(step);
  return { line, move };
}

// Moves over a grid with pointer and arrow keys; `tell(place, row)` says what is there.
function explore(box, steps, rows, tell) {
  let [place, row] = [0, 0];
  const go = () => {
    cursor.set(steps[place]);
    tell(place, row);
  };
  const pointed = (event) => {
    const area = box.getBoundingClientRect();
    place = clamp(Math.floor(((event.clientX - area.left) / area.width) * steps.length), 0, steps.length - 1);
    row = clamp(Math.floor(((event.clientY - area.top) / area.height) * rows), 0, rows - 1);
    go();
  };
  const moves = {
    ArrowLeft: [-1, 0],
    ArrowRight: [1, 0],
    ArrowUp: [0, -1],
    ArrowDown: [0, 1],
    PageUp: [-10, 0],
    PageDown: [10, 0],
  };
  const pressed = (event) => {
    if (!(event.key in moves)) return;
    event.preventDefault();
    place = clamp(place + moves[event.key][0], 0, steps.length - 1);
    row = clamp(row + moves[event.key][1], 0, rows - 1);
    go();
  };
  const leave = () => {
    cursor.set(null);
    tell(null);
  };
  fill(box, { tabindex: 0, onpointermove: pointed, onpointerleave: leave, onkeydown: pressed, onblur: leave }, []);
}

function withLines(box, steps, onset) {
  const pointer = overlay("cursor-line", steps, null);
  box.append(pointer.line);
  if (onset) box.append(overlay("onset-line", steps, onset.step).line);
  cursor.listen(box, pointer.move);
}

function heatFigure(heat, run) {
  const cells = run.heat.maps[heat.metric];
  if (!cells) return null;
  const steps = run.heat.step;
  const scale = colourScale(cells.flat(), heat);
  const value = html("output", { class: "reading" }, heat.note);
  const label = `${heat.title} by turn and step, from ${show(scale.low)} to ${show(scale.high)}`;
  const box = html("div", { class: "heat", role: "img", "aria-label": label }, paint(cells, scale));
  box.style.height = `${clamp(cells.length * 15, 60, 240)}px`;
  explore(box, steps, cells.length, (place, turn) => {
    value.textContent = place === null ? heat.note : `step ${steps[place]}, turn ${turn + 1}: ${show(cells[turn][place])}`;
  });
  withLines(box, steps, run.onset);
  return html(
    "figure",
    { class: "card" },
    html("figcaption", {}, html("h4", {}, heat.title), value, colourBar(scale)),
    html("div", { class: "heat-frame" }, turnLabels(cells.length), box, html("span"), stepLabels(steps)),
  );
}

// The scale of each step on the same horizontal axis as the maps: a bar that is full where the whole step was taken.
function scaleFigure(run) {
  const values = column(run, "train/scale");
  if (!values) return null;
  const steps = run.curves.step;
  const top = Math.max(1, ...values.filter(isNumber));
  const bars = values.map((value, place) =>
    isNumber(value) ? svg("rect", { x: place, y: 1 - value / top, width: 1.02, height: value / top }) : null,
  );
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${steps.length} 1`, preserveAspectRatio: "none", "aria-hidden": "true" },
    bars,
  );
  const note = "mean factor on the optimiser step";
  const value = html("output", { class: "reading" }, note);
  const box = html(
    "div",
    {
      class: "heat strip",
      role: "img",
      "aria-label": `Scale per step, from ${show(Math.min(...values.filter(isNumber)))} to ${show(top)}`,
    },
    drawing,
  );
  explore(box, steps, 1, (place) => {
    value.textContent = place === null ? note : `step ${steps[place]}: ${show(values[place])}`;
  });
  withLines(box, steps, run.onset);
  const ends = html(
    "div",
    { class: "turn-labels ends", "aria-hidden": "true" },
    html("span", {}, show(top)),
    html("span", {}, "0"),
  );
  return html(
    "figure",
    { class: "card" },
    html("figcaption", {}, html("h4", {}, "Scale"), value),
    html("div", { class: "heat-frame" }, ends, box, html("span"), stepLabels(steps)),
  );
}

function onsetNote(run) {
  if (!run.onset)
    return html(
      "p",
      { class: "callout good" },
      html("b", {}, "Nothing went wrong. "),
      "No guard incident, and training success did not fall to half of its best.",
    );
  const found = run.onset.source === "guard" ? "The guard saw it first: " : "First signal that moved: ";
  return html(
    "p",
    { class: `callout ${run.summary.tone}` },
    html("b", {}, `Step ${run.onset.step}: ${run.onset.signal}. `),
    found,
    `${run.onset.text}. `,
    episodesLink(run, run.onset.step),
  );
}

function microscopeOf(run) {
  const figures = DATA.heats.map((heat) => heatFigure(heat, run)).filter(Boolean);
  if (!figures.length)
    return [html("p", { class: "none" }, `${run.name} has no readings by turn (turns.jsonl is missing or empty).`)];
  return [onsetNote(run), html("div", { class: "grid two" }, figures, scaleFigure(run))];
}

function microscopeChapter() {
  const room = html("div");
  const choose = (place) => {
    VIEW.microscope = DATA.runs[Number(place)];
    VIEW.changed();
    room.replaceChildren(...microscopeOf(VIEW.microscope));
  };
  const options = DATA.runs.map((run, place) => [String(place), `${run.name} (${run.algorithm})`]);
  const chosen = DATA.runs.includes(VIEW.microscope) ? VIEW.microscope : DATA.runs.find((run) => run.onset) || DATA.runs[0];
  const start = String(DATA.runs.indexOf(chosen));
  room.append(...microscopeOf(chosen));
  return chapter(
    "microscope",
    "Stability microscope",
    "Turns of an episode downwards, training steps to the right. Hatched cells were not measured; the dashed red line marks where the run started to go wrong.",
    DATA.runs.length > 1 ? html("div", { class: "toolbar" }, choice("Run", options, start, choose)) : null,
    room,
    html(
      "details",
      { class: "definition" },
      html("summary", {}, "How the mark is found"),
      html("p", {}, DATA.definition),
    ),
  );
}
