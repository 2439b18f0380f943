// From runs to lines: grouped by algorithm, joined over seeds.

function smooth(values, reach) {
  return values.map((value, place) => {
    if (!isNumber(value)) return null;
    const near = values.slice(Math.max(0, place - reach), place + reach + 1).filter(isNumber);
    return near.reduce((sum, item) => sum + item, 0) / near.length;
  });
}

function groupsOf(runs) {
  const groups = new Map();
  for (const run of runs) {
    if (!groups.has(run.group)) groups.set(run.group, { name: run.group, legend: run.legend, colour: groups.size, runs: [] });
    groups.get(run.group).runs.push(run);
  }
  return [...groups.values()];
}

function column(run, metric) {
  return Object.hasOwn(run.curves.columns, metric) ? run.curves.columns[metric] : undefined; // it may be called "constructor"
}

// At each step the numbers of all runs that have one.
function gather(tables) {
  const bySteps = new Map();
  for (const { x, y } of tables) {
    x.forEach((step, place) => {
      if (!isNumber(y[place])) return;
      if (!bySteps.has(step)) bySteps.set(step, []);
      bySteps.get(step).push(y[place]);
    });
  }
  return [...bySteps].sort((a, b) => a[0] - b[0]).map(([step, values]) => [step, values.sort((a, b) => a - b)]);
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function bandOf(values, band) {
  return band === "iqr" ? [quantile(values, 0.25), quantile(values, 0.75)] : [values[0], values[values.length - 1]];
}

function seedLine(group, metric, view) {
  const tables = group.runs
    .filter((run) => column(run, metric))
    .map((run) => ({ x: run.curves.step, y: column(run, metric) }));
  const joined = gather(tables);
  const bands = joined.map(([, values]) => bandOf(values, view.band));
  return {
    name: group.legend,
    colour: group.colour,
    x: joined.map(([step]) => step),
    y: joined.map(([, values]) => mean(values)),
    low: bands.map(([low]) => low),
    high: bands.map(([, high]) => high),
    faint: view.singles ? tables : [],
  };
}

function singleLine(group, metric, view) {
  const run = group.runs[0];
  const values = column(run, metric);
  if (!values) return { name: group.legend, colour: group.colour, x: [], y: [] };
  const reach = Math.floor(values.length / 60);
  const faint = reach && view.singles ? [{ x: run.curves.step, y: values }] : [];
  return { name: group.legend, colour: group.colour, x: run.curves.step, y: smooth(values, reach), faint };
}

// Evaluations of one run keep their own interval; those of several seeds show mean and band over the seeds.
function evaluationMarks(group, metric, view) {
  if (!metric) return [];
  const rows = group.runs.map((run) => run.evaluations.filter((row) => isNumber(row[metric])));
  if (group.runs.length === 1) {
    return rows[0].map((row) => ({
      x: row.step,
      y: row[metric],
      low: row[`${metric}_low`],
      high: row[`${metric}_high`],
    }));
  }
  const joined = gather(rows.map((run) => ({ x: run.map((row) => row.step), y: run.map((row) => row[metric]) })));
  return joined.map(([step, values]) => {
    const [low, high] = bandOf(values, view.band);
    return { x: step, y: mean(values), low, high };
  });
}

function groupLine(group, panel, view) {
  const line = (group.runs.length > 1 ? seedLine : singleLine)(group, panel.metric, view);
  return { ...line, marks: evaluationMarks(group, panel.evaluation, view) };
}

function onsetFlags(groups) {
  return groups.flatMap(({ runs, colour }) =>
    runs.filter((run) => run.onset).map((run) => ({ x: run.onset.step, name: run.name, colour })),
  );
}

// Steps of training whose episodes are in the sample, or can be asked for.
function sampledSteps(runs) {
  const steps = runs.flatMap(
    (run) => run.recordedSteps || run.episodes.filter((episode) => !episode.held_out).map(({ step }) => step),
  );
  return [...new Set(steps)].sort((a, b) => a - b);
}

function panelFigure(panel, groups, view) {
  const shown = groups.filter((group) => !view.hidden.has(group.name));
  const lines = shown.map((group) => groupLine(group, panel, view)).filter((line) => line.x.length);
  if (!lines.length) return null;
  const sampled = sampledSteps(shown.flatMap((group) => group.runs));
  return lineChart({ ...panel, lines, flags: onsetFlags(shown), log: panel.scale === "log", shared: true, sampled });
}
