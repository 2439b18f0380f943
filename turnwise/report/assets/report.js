// The page: head, chapters, contents.

const DATA = JSON.parse(document.getElementById("data").textContent);
const GROUPS = groupsOf(DATA.runs);
const SEEDS = GROUPS.some((group) => group.runs.length > 1);
const VIEW = { hidden: new Set(), band: "range", singles: !SEEDS };
const CURVES = html("div");

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

function drawHead() {
  document.title = `${headline()} · Turnwise report`;
  const problems = allProblems();
  const verdicts = DATA.runs.length <= 3 ? DATA.runs.map(verdictLine) : [overallVerdict()];
  document.getElementById("head").append(
    html("p", { class: "brand" }, "Turnwise report"),
    html("h1", {}, headline()),
    ...verdicts,
    ...headTables(),
    problems.length
      ? html(
          "details",
          { class: "problem", open: problems.length <= 4 },
          html("summary", {}, `What is missing from this report (${problems.length})`),
          html(
            "ul",
            {},
            problems.map((text) => html("li", {}, text)),
          ),
        )
      : "",
  );
}

function legendButton(group) {
  const button = html(
    "button",
    {
      type: "button",
      class: `legend series-${group.colour % SERIES}`,
      "aria-pressed": "true",
      title: group.legend === group.name ? null : group.name,
    },
    html("i", { class: `key series-${group.colour % SERIES}` }),
    group.legend,
    group.runs.length > 1 ? html("span", { class: "quiet" }, ` ${group.runs.length} runs`) : null,
  );
  button.addEventListener("click", () => {
    const hide = button.getAttribute("aria-pressed") === "true";
    button.setAttribute("aria-pressed", String(!hide));
    VIEW.hidden[hide ? "add" : "delete"](group.name);
    drawCurves();
  });
  return button;
}

function drawCurves() {
  const chapters = [...new Set(DATA.panels.map((panel) => panel.chapter))];
  CURVES.replaceChildren(
    ...chapters.flatMap((name) => {
      const figures = DATA.panels
        .filter((panel) => panel.chapter === name)
        .map((panel) => panelFigure(panel, GROUPS, VIEW))
        .filter(Boolean);
      return figures.length ? [html("h3", {}, name), html("div", { class: "grid three" }, figures)] : [];
    }),
  );
  if (!CURVES.childElementCount)
    CURVES.append(
      html(
        "p",
        { class: "none" },
        "No curve to show: metrics.jsonl is missing or empty, or every group is turned off.",
      ),
    );
}

function bandWords() {
  const marks = DATA.runs.length === 1 ? "A dashed red line marks" : "Triangles mark";
  const lines = SEEDS
    ? "Lines are means over the seeds of a group, with a band over them."
    : "Bold: running mean; faint: every step.";
  const leads = sampledSteps(DATA.runs).length ? " Click a figure to read episodes of the nearest step marked below its axis." : "";
  return `${lines} ${marks} where a run started to go wrong; diamonds are evaluations with ${SEEDS ? "the band over seeds" : "95 % intervals"}.${leads}`;
}

function otherFigures() {
  const names = [...new Set(DATA.runs.flatMap((run) => run.others))].sort();
  if (!names.length) return null;
  const room = html("div", { class: "grid three" });
  const details = html("details", {}, html("summary", {}, `All other metrics (${names.length})`), room);
  details.addEventListener("toggle", () => {
    if (details.open)
      room.replaceChildren(
        ...names.map((metric) => panelFigure({ metric, title: metric, note: "", unit: metric.split("/").pop() }, GROUPS, VIEW)).filter(Boolean),
      );
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
      drawCurves();
    },
  );
  const box = html("input", {
    type: "checkbox",
    checked: VIEW.singles,
    onchange: () => {
      VIEW.singles = box.checked;
      drawCurves();
    },
  });
  drawCurves();
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
    CURVES,
    otherFigures(),
  );
}

function drawContents(chapters) {
  const links = chapters.map((item) => html("a", { href: `#${item.id}` }, item.querySelector("h2").textContent));
  document.getElementById("contents").append(...links);
}

// On paper nothing can be opened: what is short enough is opened before printing and closed again after.
function openForPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    const short = DATA.runs.length === 1 ? "#settings details, .definition" : ".definition";
    opened = [...document.querySelectorAll(short)].filter((item) => !item.open);
    for (const item of opened) item.open = true;
  });
  addEventListener("afterprint", () => {
    for (const item of opened) item.open = false;
  });
}

function draw() {
  drawHead();
  const chapters = [
    comparisonChapter("comparison", "Comparison", DATA.comparison),
    comparisonChapter("evaluations", "Saved evaluations", DATA.evaluations),
    curvesChapter(),
    measuresChapter(),
    leagueChapter(),
    imitationChapter(),
    microscopeChapter(),
    eventsChapter(),
    settingsChapter(),
    episodesChapter(),
  ].filter(Boolean);
  document.getElementById("main").append(...chapters);
  drawContents(chapters);
  openForPrint();
  document
    .getElementById("foot")
    .append(`Written by Turnwise ${DATA.version} from run folders alone. This file loads nothing and sends nothing.`);
  document.documentElement.dataset.ready = "yes";
}

draw();
