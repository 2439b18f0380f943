// Line charts: one line per group of runs, a band over its seeds, evaluations as diamonds, a shared cursor.

function linePath(x, y, xs, ys) {
  let path = "";
  let pen = false;
  xs.forEach((at, place) => {
    const usable = isNumber(ys[place]) && (!y.log || ys[place] > 0);
    if (usable)
      path += `${pen ? "L" : "M"}${x.place(at).toFixed(1)} ${y.place(clamp(ys[place], y.low, y.high)).toFixed(1)}`;
    pen = usable;
  });
  return path;
}

function bandPath(x, y, xs, low, high) {
  const point = (place, values) =>
    `${x.place(xs[place]).toFixed(1)} ${y.place(clamp(values[place], y.low, y.high)).toFixed(1)}`;
  const places = xs.map((_, place) => place).filter((place) => isNumber(low[place]) && isNumber(high[place]));
  if (places.length < 2) return "";
  const there = places.map((place) => point(place, high));
  const back = places.reverse().map((place) => point(place, low));
  return `M${there.join("L")}L${back.join("L")}Z`;
}

function diamond(x, y, mark, dodge) {
  const [at, height] = [x.place(mark.x) + dodge, y.place(clamp(mark.y, y.low, y.high))];
  const parts = [svg("path", { class: "mark", d: `M${at} ${height - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5Z` })];
  if (isNumber(mark.low) && isNumber(mark.high)) {
    const ends = [mark.low, mark.high].map((value) => y.place(clamp(value, y.low, y.high)));
    parts.unshift(svg("line", { class: "whisker", x1: at, x2: at, y1: ends[0], y2: ends[1] }));
  }
  return parts;
}

function drawSeries(x, y, line, dodge) {
  const parts = [];
  if (line.low) parts.push(svg("path", { class: "band", d: bandPath(x, y, line.x, line.low, line.high) }));
  for (const faint of line.faint || [])
    parts.push(svg("path", { class: "faint", d: linePath(x, y, faint.x, faint.y) }));
  parts.push(svg("path", { class: "line", d: linePath(x, y, line.x, line.y) }));
  for (const mark of line.marks || []) parts.push(...diamond(x, y, mark, dodge));
  return svg("g", { class: `series series-${line.colour % SERIES}` }, parts);
}

// Where runs went wrong: a line with its step for one run, a small triangle in its group's colour for each of several.
function drawFlag(x, flag, alone) {
  const { top, height, bottom, width, right } = FRAME;
  const at = x.place(flag.x);
  if (!alone) {
    const name = svg("title", {}, `${flag.name} went wrong at step ${flag.x}`);
    return svg(
      "g",
      { class: `series-${flag.colour % SERIES}` },
      svg("path", { class: "triangle", d: `M${at - 4} ${top - 8}h8l-4 7Z` }, name),
    );
  }
  const left = at > width - right - 70;
  const text = svg(
    "text",
    { class: "flag", x: left ? at - 5 : at + 5, y: top + 8, "text-anchor": left ? "end" : "start" },
    `step ${flag.x}`,
  );
  return svg("g", {}, svg("line", { class: "onset", x1: at, x2: at, y1: top, y2: height - bottom }), text);
}

function chartNumbers(lines) {
  return lines.flatMap((line) => [
    ...line.y,
    ...(line.low || []),
    ...(line.high || []),
    ...(line.faint || []).flatMap((faint) => faint.y),
    ...(line.marks || []).flatMap((mark) => [mark.y, mark.low, mark.high]),
  ]);
}

// The readout names every line's value at the pointed place, with its band where it has one.
function readings(lines, at) {
  return lines.map((line) => {
    const place = nearest(line.x, at);
    const value = line.y[place];
    const band =
      line.low && isNumber(line.low[place]) ? ` (${show(line.low[place])} to ${show(line.high[place])})` : "";
    return [line, isNumber(value) ? `${show(value)}${band}` : "–"];
  });
}

function readout(lines, at, xLabel) {
  const rows = readings(lines, at).map(([line, text]) =>
    html(
      "li",
      {},
      html("i", { class: `key series-${line.colour % SERIES}` }),
      lines.length > 1 ? `${line.name} ` : "",
      html("b", {}, text),
    ),
  );
  return [html("span", {}, `${xLabel} ${show(at)}`), html("ul", {}, rows)];
}

const STRIDES = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

const MOST_MARKS = 40;

// Steps whose episodes can be read further down: small marks on the axis, unless nearly all can.
function drawSampled(x, steps) {
  if (steps.length > MOST_MARKS) return [];
  const bottom = FRAME.height - FRAME.bottom;
  return steps
    .filter((step) => step >= x.low && step <= x.high)
    .map((step) => svg("path", { class: "sampled", d: `M${x.place(step).toFixed(1)} ${bottom}l3 5h-6Z` }));
}

// Calls `move(place)` for the pointed place, also with the keyboard, and `move(null)` when nothing is pointed at;
// `choose(place)` when it is clicked or Enter is pressed.
function follow(canvas, x, places, move, choose) {
  let current = 0;
  const go = (place) => {
    current = clamp(place, 0, places.length - 1);
    move(places[current]);
  };
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    go(nearest(places, x.value(((event.clientX - box.left) / box.width) * FRAME.width)));
  };
  const pressed = (event) => {
    if (event.key === "Enter" && choose) choose(places[current]);
    if (!(event.key in STRIDES)) return;
    event.preventDefault();
    go(current + STRIDES[event.key]);
  };
  const leave = () => move(null);
  fill(canvas, { tabindex: 0, onpointermove: pointed, onpointerleave: leave, onkeydown: pressed, onblur: leave }, []);
  if (choose) fill(canvas, { onclick: () => choose(places[current]), class: "leads" }, []);
}

function track(canvas, x, { lines, xLabel = "step", shared = false, sampled = [] }) {
  const line = svg("line", { class: "cursor", y1: FRAME.top, y2: FRAME.height - FRAME.bottom, visibility: "hidden" });
  const tip = html("div", { class: "tip", hidden: true });
  const point = (at) => {
    line.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at !== null) for (const end of ["x1", "x2"]) line.setAttribute(end, x.place(clamp(at, x.low, x.high)));
  };
  const move = (at) => {
    if (shared) cursor.set(at);
    else point(at);
    tip.hidden = at === null;
    if (at === null) return;
    tip.replaceChildren(...readout(lines, at, xLabel), ...hint(at));
    tip.classList.toggle("left", x.place(at) > FRAME.width / 2);
  };
  const hint = (at) =>
    sampled.length ? [html("span", { class: "hint" }, `click: episodes of step ${sampled[nearest(sampled, at)]}`)] : [];
  canvas.append(line);
  follow(
    canvas,
    x,
    [...new Set(lines.flatMap((item) => item.x))].sort((a, b) => a - b),
    move,
    sampled.length ? (at) => EPISODES.open(at) : null,
  );
  return { tip, point };
}

// Both axes, or null where there is nothing to show. Evaluations may come before the first step.
function chartAxes({ lines, log, logX = false, share = false }) {
  const places = lines
    .flatMap((line) => [...line.x, ...(line.marks || []).map((mark) => mark.x)])
    .sort((a, b) => a - b);
  const values = chartNumbers(lines);
  const logY = log && values.some((value) => value > 0); // a metric that is zero throughout has no logarithm
  const yRange = extent(values, { log: logY, share });
  const xRange = logX ? extent(places, { log: true }) : [places[0], places[places.length - 1]];
  if (!places.length || !xRange || !yRange) return null;
  const { width, height, left, right, top, bottom } = FRAME;
  return {
    x: axis(xRange[0], xRange[1] > xRange[0] ? xRange[1] : xRange[0] + 1, left, width - right, logX),
    y: axis(yRange[0], yRange[1], height - bottom, top, logY),
  };
}

function drawChart({ title, lines, flags = [], xLabel = "step", unit = "", sampled = [] }, { x, y }) {
  const ends = readings(lines, x.high).map(([line, text]) => `${line.name} ${text}`);
  const seen = flags.filter((flag) => flag.x >= x.low && flag.x <= x.high);
  return svg(
    "svg",
    {
      viewBox: `0 0 ${FRAME.width} ${FRAME.height}`,
      role: "img",
      "aria-label": `${title}; at ${xLabel} ${show(x.high)}: ${ends.join(", ")}`,
    },
    drawAxes(x, y, xLabel, unit),
    drawSampled(x, sampled),
    lines.map((line, place) => drawSeries(x, y, line, 3 * (place - (lines.length - 1) / 2))),
    seen.map((flag) => drawFlag(x, flag, lines.length === 1 && flags.length === 1)),
  );
}

// A figure: {title, note, lines: [{name, colour, x, y, low, high, faint, marks}], flags, xLabel, unit, log, logX, share,
// shared, sampled}.
function lineChart(options) {
  const { title, note, shared = false } = options;
  const caption = html("figcaption", {}, html("h4", {}, title), note ? html("p", {}, note) : null);
  const axes = chartAxes(options);
  if (!axes) return html("figure", { class: "card" }, caption, html("p", { class: "none" }, "No data to show."));
  const canvas = drawChart(options, axes);
  const { tip, point } = track(canvas, axes.x, options);
  if (shared) cursor.listen(canvas, point);
  return html("figure", { class: "card" }, caption, html("div", { class: "plot" }, canvas, tip));
}

// Which line is which, below a chart whose lines are no groups of runs.
function keysOf(lines) {
  const keys = lines.map((line) => html("li", {}, html("i", { class: `key series-${line.colour % SERIES}` }), line.name));
  return html("ul", { class: "keys" }, keys);
}
