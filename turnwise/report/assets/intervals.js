// Estimates with intervals, one row each, and the runs behind them as small dots.

const LONGEST_NAME = 17;

// As much of a name as fits beside the intervals; the whole appears where it is pointed at.
function shortName(name) {
  return name.length <= LONGEST_NAME ? name : `${name.slice(0, 6)}…${name.slice(7 - LONGEST_NAME)}`;
}

function intervalRow(x, row, place, height) {
  const middle = 16 + place * height;
  const parts = [svg("text", { class: "tick", x: 0, y: middle + 4 }, shortName(row.name), svg("title", {}, row.name))];
  for (const point of (row.points || []).filter(isNumber))
    parts.push(svg("circle", { class: "dot", cx: x.place(point), cy: middle + 8, r: 2.2 }));
  if (isNumber(row.low) && isNumber(row.high))
    parts.push(svg("line", { class: "whisker", x1: x.place(row.low), x2: x.place(row.high), y1: middle, y2: middle }));
  if (isNumber(row.value))
    parts.push(
      svg(
        "circle",
        { class: "mark", cx: x.place(row.value), cy: middle, r: 4.5 },
        svg("title", {}, `${row.name} ${show(row.value)}`),
      ),
    );
  return svg("g", { class: `series-${place % SERIES}` }, parts);
}

// {title, note, unit, rows: [{name, value, low, high, points}]}
function intervalChart({ title, note, unit, rows }) {
  const [width, left, height] = [FRAME.width, 110, 30];
  const bottom = 16 + rows.length * height;
  const range = extent(rows.flatMap((row) => [row.value, row.low, row.high, ...(row.points || [])]));
  const caption = html("figcaption", {}, html("h4", {}, title), html("p", {}, note));
  if (!range) return html("figure", { class: "card" }, caption, html("p", { class: "none" }, "No data to show."));
  const x = axis(range[0], range[1], left, width - 12, false);
  const ticks = linearTicks(range[0], range[1], 4).flatMap((tick) => [
    svg("line", { class: "grid", x1: x.place(tick), x2: x.place(tick), y1: 4, y2: bottom - 8 }),
    svg("text", { class: "tick", x: x.place(tick), y: bottom + 6, "text-anchor": "middle" }, showTick(tick)),
  ]);
  const label = `${title}: ${rows.map((row) => `${row.name} ${show(row.value)} (${show(row.low)} to ${show(row.high)})`).join(", ")}`;
  const drawing = svg(
    "svg",
    { viewBox: `0 0 ${width} ${bottom + 26}`, role: "img", "aria-label": label },
    ticks,
    axisName(unit, { x: (left + width) / 2, y: bottom + 22 }),
    rows.map((row, place) => intervalRow(x, row, place, height)),
  );
  return html("figure", { class: "card" }, caption, html("div", { class: "plot" }, drawing));
}
