// The page's data, and the chapters that are made from it. Reports are drawn once, live pages again and again.

let DATA = { runs: [] };
let GROUPS = [];
let SEEDS = false;
// What the reader has chosen; `changed` is called after a choice.
const VIEW = { hidden: new Set(), band: "range", singles: null, others: false, microscope: null, changed: () => {} };

function setData(data) {
  DATA = data;
  GROUPS = groupsOf(DATA.runs);
  SEEDS = GROUPS.some((group) => group.runs.length > 1);
}

function showsSingles() {
  return VIEW.singles ?? !SEEDS;
}

function headline() {
  const names = DATA.runs.map((run) => run.name);
  return names.length <= 3
    ? names.join(", ")
    : `${names.length} runs, ${counted(GROUPS.length, "group")}`;
}

function headFacts(run) {
  const { config, meta } = run;
  const model = config["model.name"] || config.model;
  const facts = [
    ["Algorithm", run.algorithm],
    ["Environment", config["env.id"]],
    ["Model", model],
    ["Seed", config.seed],
    ["Learning rate", config["train.learning_rate"]],
    ["Device", meta.device || config.device],
    ["Started", meta.started],
    ["Turnwise", meta.turnwise],
    ["Python", meta.python],
    ["PyTorch", meta.torch],
    ["Threads", meta.threads],
  ];
  return pairs(facts.filter(([, value]) => value));
}

function headTables() {
  if (DATA.runs.length === 1) return [runsTable(DATA.runs), headFacts(DATA.runs[0])];
  if (DATA.runs.length <= 6) return [runsTable(DATA.runs)];
  return [
    groupsTable(GROUPS),
    html("p", { class: "quiet" }, "Numbers of a group are interquartile means over its runs (smallest to largest)."),
    html("details", {}, html("summary", {}, `All ${DATA.runs.length} runs`), runsTable(DATA.runs)),
  ];
}

function verdictLine(run) {
  return html(
    "p",
    { class: `verdict ${run.summary.tone}` },
    DATA.runs.length > 1 ? html("b", {}, `${run.name}: `) : null,
    run.summary.verdict,
  );
}

function overallVerdict() {
  const wrong = (runs) => runs.filter((run) => run.onset).length;
  const groups = GROUPS.filter((group) => wrong(group.runs)).map(
    (group) => `${wrong(group.runs)} of ${group.runs.length} of ${group.legend}`,
  );
  const incidents = DATA.runs.reduce((sum, run) => sum + run.summary.incidents, 0);
  const health = groups.length
    ? `${wrong(DATA.runs)} of ${DATA.runs.length} runs went wrong: ${groups.join(", ")}.`
    : `None of ${DATA.runs.length} runs went wrong.`;
  return html(
    "p",
    { class: `verdict ${groups.length ? "bad" : "good"}` },
    `${health} ${incidents ? counted(incidents, "guard incident") : "No guard incident"}.`,
  );
}

// Each problem once, with the runs that have it.
function allProblems() {
  const owners = new Map();
  for (const run of DATA.runs) {
    for (const text of run.problems) owners.set(text, [...(owners.get(text) || []), run.name]);
  }
  const named = (names) => (names.length > 4 ? `${names.length} runs` : names.join(", "));
  return [...owners].map(([text, names]) => (DATA.runs.length > 1 ? `${named(names)}: ${text}` : text));
}

function problemsNote() {
  const problems = allProblems();
  if (!problems.length) return null;
  return html(
    "details",
    { class: "problem", open: problems.length <= 4 },
    html("summary", {}, `What is missing from this ${DATA.live ? "page" : "report"} (${problems.length})`),
    html(
      "ul",
      {},
      problems.map((text) => html("li", {}, text)),
    ),
  );
}

function verdicts() {
  return DATA.runs.length <= 3 ? DATA.runs.map(verdictLine) : [overallVerdict()];
}

function legendButton(group) {
  const button = html(
    "button",
    {
      type: "button",
      class: `legend series-${group.colour % SERIES}`,
      "aria-pressed": String(!VIEW.hidden.has(group.name)),
      title: group.legend === group.name ? null : group.name,
    },
    html("i", { class: `key series-${group.colour % SERIES}` }),
    group.legend,
    group.runs.length > 1 ? html("span", { class: "quiet" }, ` ${group.runs.length} runs`) : null,
  );
  button.addEventListener("click", () => {
    VIEW.hidden[VIEW.hidden.has(group.name) ? "delete" : "add"](group.name);
    redraw("curves");
  });
  return button;
}

function curveFigures() {
  const view = { ...VIEW, singles: showsSingles() };
  const names = [...new Set(DATA.panels.map((panel) => panel.chapter))];
  const grids = names.flatMap((name) => {
    const figures = DATA.panels
      .filter((panel) => panel.chapter === name)
      .map((panel) => panelFigure(panel, GROUPS, view))
      .filter(Boolean);
    return figures.length ? [html("h3", {}, name), html("div", { class: "grid three" }, figures)] : [];
  });
  const none = "No curve to show: metrics.jsonl is missing or empty, or every group is turned off.";
  return html("div", {}, grids.length ? grids : html("p", { class: "none" }, none));
}

function bandWords() {
  const marks = DATA.runs.length === 1 ? "A dashed red line marks" : "Triangles mark";
  const lines = SEEDS
    ? "Lines are means over the seeds of a group, with a band over them."
    : "Bold: running mean; faint: every step.";
  const sampled = sampledSteps(DATA.runs).length;
  const where = sampled > MOST_MARKS ? "that step" : "the nearest step marked below its axis";
  const leads = sampled ? ` Click a figure to read episodes of ${where}.` : "";
  return `${lines} ${marks} where a run started to go wrong; diamonds are evaluations with ${SEEDS ? "the band over seeds" : "95 % intervals"}.${leads}`;
}

function otherFigures() {
  const names = [...new Set(DATA.runs.flatMap((run) => run.others))].sort();
  if (!names.length) return null;
  const room = html("div", { class: "grid three" });
  const details = html("details", { open: VIEW.others }, html("summary", {}, `All other metrics (${names.length})`), room);
  const view = { ...VIEW, singles: showsSingles() };
  const draw = () =>
    room.replaceChildren(
      ...names.map((metric) => panelFigure({ metric, title: metric, note: "", unit: metric.split("/").pop() }, GROUPS, view)).filter(Boolean),
    );
  if (VIEW.others) draw(); // they are many: drawn while they are looked at
  details.addEventListener("toggle", () => {
    if (details.open && !VIEW.others) draw();
    VIEW.others = details.open;
  });
  return details;
}

function curvesChapter() {
  const bands = choice(
    "Band",
    [
      ["range", "smallest to largest"],
      ["iqr", "middle half"],
    ],
    VIEW.band,
    (band) => {
      VIEW.band = band;
      redraw("curves");
    },
  );
  const box = html("input", {
    type: "checkbox",
    checked: showsSingles(),
    onchange: () => {
      VIEW.singles = box.checked;
      redraw("curves");
    },
  });
  return chapter(
    "curves",
    "Curves",
    bandWords(),
    html(
      "div",
      { class: "toolbar" },
      DATA.runs.length > 1 ? GROUPS.map(legendButton) : null,
      SEEDS ? bands : null,
      html("label", { class: "choice" }, box, html("span", {}, SEEDS ? "single runs" : "every step")),
    ),
    curveFigures(),
    otherFigures(),
  );
}

// All chapters by name, in the order of the page.
const CHAPTERS = {
  comparison: () => comparisonChapter("comparison", "Comparison", DATA.comparison),
  evaluations: () => comparisonChapter("evaluations", "Saved evaluations", DATA.evaluations),
  curves: curvesChapter,
  time: timeChapter,
  measures: measuresChapter,
  league: leagueChapter,
  imitation: imitationChapter,
  microscope: microscopeChapter,
  events: eventsChapter,
  settings: settingsChapter,
  episodes: episodesChapter,
};

function contentsLinks(chapters) {
  return chapters.map((item) => html("a", { href: `#${item.id}` }, item.querySelector("h2").textContent));
}

// Draw a chapter again: what has not changed stays as it is.
function redraw(id) {
  VIEW.changed();
  settle(document.getElementById(id), CHAPTERS[id]());
}
