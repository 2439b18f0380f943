// What was measured on held-out tasks besides the outcome, and what the reward cost in distance from the first policy.

const DISTANCE = "eval/kl";
const REWARD = "eval/reward";

function frontierLine(run, colour) {
  const rows = run.evaluations
    .filter((row) => isNumber(row[DISTANCE]) && isNumber(row[REWARD]))
    .sort((a, b) => a[DISTANCE] - b[DISTANCE]);
  const marks = rows.map((row) => ({
    x: row[DISTANCE],
    y: row[REWARD],
    low: row[`${REWARD}_low`],
    high: row[`${REWARD}_high`],
  }));
  return { name: run.name, colour, x: marks.map(({ x }) => x), y: marks.map(({ y }) => y), marks };
}

function frontierFigure(groups) {
  const lines = groups.flatMap(({ runs, colour }) => runs.map((run) => frontierLine(run, colour)));
  const drawn = lines.filter((line) => line.x.length);
  if (!drawn.length) return null;
  return lineChart({
    title: "Reward against KL",
    note: "A diamond per evaluation, in order of distance; higher and further to the left is better",
    lines: drawn,
    xLabel: "KL to the first policy, nats per episode",
    unit: "reward per episode",
  });
}

function measureFigure(metric, groups) {
  const lines = groups.map((group) => {
    const marks = evaluationMarks(group, metric, VIEW);
    return {
      name: group.legend,
      colour: group.colour,
      x: marks.map(({ x }) => x),
      y: marks.map(({ y }) => y),
      marks,
    };
  });
  const drawn = lines.filter((line) => line.x.length);
  return drawn.length ? lineChart({ title: metric, note: "", lines: drawn, unit: metric.split("/").pop() }) : null;
}

function measuresChapter() {
  const names = [...new Set(DATA.runs.flatMap((run) => run.measures))].sort();
  const figures = [frontierFigure(GROUPS), ...names.map((name) => measureFigure(name, GROUPS))].filter(Boolean);
  if (!figures.length) return null;
  return chapter(
    "measures",
    "Held-out measures",
    "What else was measured on held-out tasks, evaluation by evaluation.",
    html("div", { class: "grid three" }, figures),
  );
}
