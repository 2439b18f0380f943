// Tables: runs, events, settings, and what a comparison brings along.

function cell(value) {
  if (value instanceof Node) return value;
  return typeof value === "number" ? show(value) : value === null || value === undefined ? "–" : String(value);
}

function table(columns, rows, caption) {
  const isFigure = (value) =>
    typeof value === "number" || (typeof value === "string" && /^[-+]?\d[\d.e-]*( [[(].*)?$/.test(value));
  const numeric = columns.map((_, place) => rows.some((row) => isFigure(row[place])));
  const head = columns.map((name, place) =>
    html("th", { scope: "col", class: numeric[place] ? "number" : null }, name),
  );
  const body = rows.map((row) =>
    html(
      "tr",
      {},
      row.map((value, place) => html("td", { class: numeric[place] ? "number" : null }, cell(value))),
    ),
  );
  return html(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    html(
      "table",
      {},
      html("caption", { class: "unseen" }, caption),
      html("thead", {}, html("tr", {}, head)),
      html("tbody", {}, body),
    ),
  );
}

// Columns in which no row says anything are left out.
function withoutEmpty(columns, rows) {
  const says = (value) => (value instanceof Node ? value.textContent !== "" || value.matches("input") : value !== "");
  const kept = columns.map((_, place) => place).filter((place) => rows.some((row) => says(row[place])));
  const keep = (row) => kept.map((place) => row[place]);
  return [keep(columns), rows.map(keep)];
}

function intervalText(final) {
  if (!final) return null;
  return `${show(final.value)}${isNumber(final.low) ? ` [${show(final.low)}, ${show(final.high)}]` : ""}`;
}

function runsTable(runs) {
  const rows = runs.map((run) => [
    html("span", { class: `tone ${run.summary.tone}` }, run.name),
    run.algorithm,
    run.config.seed || "–",
    run.summary.steps,
    intervalText(run.summary.final),
    run.summary.final ? run.summary.final.before : null,
    run.summary.training,
    run.summary.best,
    run.summary.incidents,
    run.onset ? `${run.onset.step} · ${run.onset.signal}` : "none",
    html("span", { class: "nowrap" }, showSeconds(run.summary.seconds)),
  ]);
  const columns = [
    "Run",
    "Algorithm",
    "Seed",
    "Steps",
    "Final success, held-out [95 %]",
    "Before training",
    "Training success, last tenth",
    "Best step",
    "Incidents",
    "Went wrong at",
    "Time",
  ];
  const shown = runs.length > 1 ? 0 : 3; // the page itself names a single run
  return table(
    columns.slice(shown),
    rows.map((row) => row.slice(shown)),
    "Runs",
  );
}

// The mean of the middle half, exactly as a comparison of runs counts it.
function middleMean(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const [first, last] = [0.25 * sorted.length, 0.75 * sorted.length];
  const weights = sorted.map((_, place) => clamp(Math.min(place + 1, last) - Math.max(place, first), 0, 1));
  return sorted.reduce((sum, value, place) => sum + value * weights[place], 0) / (last - first);
}

function range(values) {
  const known = values.filter(isNumber);
  if (!known.length) return null;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return low === high ? show(low) : `${show(middleMean(known))} (${show(low)} to ${show(high)})`;
}

// Of many runs the head shows groups; the runs themselves are one click away.
function groupsTable(groups) {
  const count = (runs, test) => `${runs.filter(test).length} of ${runs.length}`;
  const rows = groups.map(({ name, legend, colour, runs }) => [
    html("span", { class: "nowrap", title: name }, html("i", { class: `key series-${colour % SERIES}` }), legend),
    runs.length,
    range(runs.map((run) => (run.summary.final || {}).value)),
    range(runs.map((run) => run.summary.training)),
    count(runs, (run) => run.onset),
    count(runs, (run) => run.summary.incidents),
    showSeconds(mean(runs.map((run) => run.summary.seconds))),
  ]);
  return table(
    [
      "Group",
      "Runs",
      "Final success, held-out",
      "Training success, last tenth",
      "Went wrong",
      "With incidents",
      "Time of a run",
    ],
    rows,
    "Groups of runs: interquartile mean (smallest to largest)",
  );
}

function pairs(entries) {
  return html(
    "dl",
    { class: "pairs" },
    entries.map(([key, value]) => html("div", {}, html("dt", {}, key), html("dd", {}, cell(value)))),
  );
}

function eventRow(run, event) {
  const rest = Object.entries(event.rest)
    .map(([key, value]) => `${key.replace(/^evidence\./, "")} ${shortNumber(value)}`)
    .join(", ");
  const text = html(
    "div",
    {},
    event.text || "",
    event.change ? html("div", { class: "quiet" }, event.change) : null,
    rest ? html("div", { class: "quiet" }, rest) : null,
    event.kind === "guard" ? html("div", {}, episodesLink(run, event.step)) : null,
  );
  const kind = html("span", { class: `tag ${event.kind === "guard" ? "bad" : ""}` }, event.kind);
  const row = [
    event.step,
    kind,
    event.signal || "",
    event.action || "",
    text,
    event.time ? event.time.slice(0, 19).replace("T", " ") : "",
  ];
  return DATA.runs.length > 1 ? [run.name, ...row] : row;
}

function shortNumber(text) {
  return text !== "" && Number.isFinite(Number(text)) ? show(Number(text)) : text;
}

function eventsTable(wanted, caption) {
  const rows = DATA.runs.flatMap((run) => run.events.filter(wanted).map((event) => eventRow(run, event)));
  const columns = ["Step", "Kind", "Signal", "Action", "What happened", "Time (UTC)"];
  return rows.length
    ? table(...withoutEmpty(DATA.runs.length > 1 ? ["Run", ...columns] : columns, rows), caption)
    : null;
}

function eventsChapter() {
  const incidents = eventsTable((event) => event.kind === "guard", "Guard incidents");
  const others = eventsTable((event) => event.kind !== "guard", "Other events");
  const left = DATA.runs.reduce((sum, run) => sum + run.events_left_out, 0);
  return chapter(
    "events",
    "Guard incidents and events",
    null,
    incidents || html("p", { class: "none" }, "The guard reported no incident."),
    others
      ? html("details", { open: !incidents && DATA.runs.length === 1 }, html("summary", {}, "Other events"), others)
      : null,
    left ? html("p", { class: "none" }, `${left} later events are left out; events.jsonl holds them all.`) : null,
  );
}

// One column per run; of many runs one per group, with the values that occur in it.
function settingsTable(keys) {
  const many = DATA.runs.length > 4;
  const owners = many ? groupsOf(DATA.runs) : DATA.runs.map((run) => ({ name: run.name, runs: [run] }));
  const value = (owner, key) => [...new Set(owner.runs.map((run) => run.config[key] ?? "absent"))].join(", ");
  const rows = keys.map((key) => [
    html("code", { class: "nowrap" }, key),
    ...owners.map((owner) => html("code", {}, value(owner, key))),
  ]);
  return table(["Setting", ...owners.map((owner) => owner.name)], rows, "Settings");
}

function settingsChapter() {
  const keys = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.config)))];
  const single = DATA.runs.length === 1;
  if (!keys.length)
    return chapter("settings", "Settings", null, html("p", { class: "none" }, "config.yaml could not be read."));
  const all = html("details", {}, html("summary", {}, `All ${keys.length} settings`), settingsTable(keys));
  if (single) return chapter("settings", "Settings", null, all);
  const differences = DATA.differences.length
    ? settingsTable(DATA.differences)
    : html("p", { class: "none" }, "The runs have the same settings.");
  return chapter("settings", "Settings that differ", null, differences, all);
}

function comparisonFigure(figure) {
  const lines = (figure.lines || []).map((line, place) => ({ colour: place, ...line }));
  const chart = lineChart({
    title: figure.title,
    note: figure.note,
    unit: figure.y,
    lines,
    xLabel: figure.x || "x",
    logX: Boolean(figure.log_x),
  });
  chart.append(keysOf(lines));
  return chart;
}

// A cell such as *this* of a table that was written as Markdown.
function marked(value) {
  const found = typeof value === "string" && /^\*(.+)\*$/.exec(value);
  return found ? html("i", {}, found[1]) : value;
}

function comparisonTable(item) {
  const rows = item.rows || [];
  return html(
    "div",
    { class: "block" },
    item.title ? html("h3", {}, item.title) : null,
    item.note ? html("p", { class: "quiet" }, item.note) : null,
    table(item.columns || [], item.marked ? rows.map((row) => row.map(marked)) : rows, item.title || "Comparison"),
  );
}

function comparisonParts({ sentences, intervals, figures, tables }) {
  const charts = [...intervals.map(intervalChart), ...figures.map(comparisonFigure)];
  return [
    ...sentences.map((sentence) => html("p", { class: "sentence" }, sentence)),
    charts.length ? html("div", { class: "grid three" }, charts) : null,
    ...tables.map(comparisonTable),
  ];
}

function comparisonChapter(id, title, content) {
  return content ? chapter(id, title, null, comparisonParts(content)) : null;
}
