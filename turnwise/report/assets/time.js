// How fast a run goes, and where its time goes.

const PLACES_OF_TIME = ["time/rollout", "time/score", "time/update"];
const RECENT_POINTS = 10;

function timeLines(run) {
  return [...PLACES_OF_TIME, "time/step"]
    .filter((metric) => column(run, metric))
    .map((metric, colour) => ({ name: DATA.times[metric], colour, x: run.curves.step, y: column(run, metric) }));
}

function timeFigure(run) {
  const lines = timeLines(run);
  if (!lines.length) return null;
  const chart = lineChart({
    title: "Where a step's time goes",
    note: "Seconds of each step, by what they were spent on",
    unit: "seconds",
    lines,
    shared: true,
  });
  chart.append(keysOf(lines));
  return chart;
}

// "Of the last 10 points: playing 61 %, learning 35 %, scoring 4 %."
function timeShares(run) {
  const recent = (metric) => mean((column(run, metric) || []).slice(-RECENT_POINTS).map((value) => value || 0));
  const whole = recent("time/step");
  const shares = PLACES_OF_TIME.filter((metric) => column(run, metric))
    .map((metric) => [recent(metric) / whole, DATA.times[metric]])
    .filter(([share]) => share > 0.005 && share <= 1)
    .sort((a, b) => b[0] - a[0])
    .map(([share, name]) => `${name} ${Math.round(100 * share)} %`);
  if (!shares.length) return null;
  const name = DATA.runs.length > 1 ? `${run.name}: ` : "";
  return html("p", { class: "sentence" }, `${name}a step took ${show(whole)} s of late: ${shares.join(", ")}.`);
}

function timeChapter() {
  const view = { ...VIEW, singles: showsSingles() };
  const panels = [
    { metric: "time/tokens_per_second", title: "Tokens per second", note: "Played and learned from", unit: "tokens per second" },
    { metric: "time/step", title: "Time of a step", note: "Seconds from one step to the next", unit: "seconds" },
  ].map((panel) => panelFigure(panel, GROUPS, view));
  const single = DATA.runs.length === 1 ? timeFigure(DATA.runs[0]) : null;
  const figures = [panels[0], single || panels[1]].filter(Boolean);
  if (!figures.length) return null;
  return chapter(
    "time",
    "Time",
    null,
    DATA.runs.length <= 4 ? DATA.runs.map(timeShares) : null,
    html("div", { class: "grid three" }, figures),
  );
}
