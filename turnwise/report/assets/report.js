// The page: head, chapters, contents.

const DATA = JSON.parse(document.getElementById("data").textContent);
const VIEW = { hidden: new Set(), band: "range", singles: true };
const GROUPS = groupsOf(DATA.runs);
const CURVES = html("div");

function headline() {
  const names = DATA.runs.map((run) => run.name);
  return names.length <= 3 ? names.join(", ") : `${names.length} runs, ${GROUPS.length} ${GROUPS.length === 1 ? "group" : "groups"}`;
}

function headFacts(run) {
  const { config, meta } = run;
  const model = config["model.name"] || config.model;
  const facts = [["Algorithm", run.algorithm], ["Environment", config["env.id"]], ["Model", model], ["Seed", config.seed], ["Learning rate", config["train.learning_rate"]], ["Device", meta.device || config.device], ["Started", meta.started], ["Turnwise", meta.turnwise], ["Python", meta.python], ["PyTorch", meta.torch], ["Threads", meta.threads]];
  return pairs(facts.filter(([, value]) => value));
}

function headTables() {
  if (DATA.runs.length === 1) return [headFacts(DATA.runs[0])];
  if (DATA.runs.length <= 6) return [runsTable(DATA.runs)];
  return [groupsTable(GROUPS), html("details", {}, html("summary", {}, `All ${DATA.runs.length} runs`), runsTable(DATA.runs))];
}

function verdictLine(run) {
  return html("p", { class: `verdict ${run.summary.tone}` }, DATA.runs.length > 1 ? html("b", {}, `${run.name}: `) : null, run.summary.verdict);
}

function drawHead() {
  document.title = `${headline()} · Turnwise report`;
  const problems = DATA.runs.flatMap((run) => run.problems.map((text) => (DATA.runs.length > 1 ? `${run.name}: ${text}` : text)));
  const verdicts = DATA.runs.length <= 3 ? DATA.runs.map(verdictLine) : [];
  document.getElementById("head").append(
    html("p", { class: "brand" }, "Turnwise report"), html("h1", {}, headline()), ...verdicts,
    ...headTables(),
    problems.length ? html("details", { class: "problem", open: problems.length <= 4 }, html("summary", {}, `What is missing from this report (${problems.length})`), html("ul", {}, problems.map((text) => html("li", {}, text)))) : "",
  );
}

function legendButton(group) {
  const button = html("button", { type: "button", class: `legend series-${group.colour % SERIES}`, "aria-pressed": "true" }, html("i", { class: `key series-${group.colour % SERIES}` }), group.name, group.runs.length > 1 ? html("span", { class: "quiet" }, ` ${group.runs.length} runs`) : null);
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
  CURVES.replaceChildren(...chapters.flatMap((name) => {
    const figures = DATA.panels.filter((panel) => panel.chapter === name).map((panel) => panelFigure(panel, GROUPS, VIEW)).filter(Boolean);
    return figures.length ? [html("h3", {}, name), html("div", { class: "grid three" }, figures)] : [];
  }));
  if (!CURVES.childElementCount) CURVES.append(html("p", { class: "none" }, "No curve to show: metrics.jsonl is missing or empty, or every group is switched off."));
}

function bandWords() {
  if (GROUPS.some((group) => group.runs.length > 1)) return "Bold: mean over the seeds of a group, with a band over them; faint: single runs.";
  return "Bold: running mean; faint: every step.";
}

function otherFigures() {
  const names = [...new Set(DATA.runs.flatMap((run) => run.others))].sort();
  if (!names.length) return null;
  const room = html("div", { class: "grid three" });
  const details = html("details", {}, html("summary", {}, `All other metrics (${names.length})`), room);
  details.addEventListener("toggle", () => {
    if (details.open) room.replaceChildren(...names.map((metric) => panelFigure({ metric, title: metric, note: "" }, GROUPS, VIEW)).filter(Boolean));
  });
  return details;
}

function curvesChapter() {
  const bands = choice("Band", [["range", "smallest to largest"], ["iqr", "middle half"]], VIEW.band, (band) => { VIEW.band = band; drawCurves(); });
  const box = html("input", { type: "checkbox", checked: true, onchange: () => { VIEW.singles = box.checked; drawCurves(); } });
  const several = GROUPS.some((group) => group.runs.length > 1);
  drawCurves();
  return chapter(
    "curves", "Curves", `${bandWords()} A dashed red line marks where a run started to go wrong.`,
    html("div", { class: "toolbar" }, DATA.runs.length > 1 ? GROUPS.map(legendButton) : null, several ? bands : null, html("label", { class: "choice" }, box, html("span", {}, several ? "single runs" : "every step"))),
    CURVES, otherFigures(),
  );
}

function drawContents(chapters) {
  const links = chapters.map((item) => html("a", { href: `#${item.id}` }, item.querySelector("h2").textContent));
  document.getElementById("contents").append(...links);
}

function draw() {
  drawHead();
  const chapters = [DATA.comparison ? comparisonChapter() : null, curvesChapter(), microscopeChapter(), eventsChapter(), settingsChapter(), episodesChapter()].filter(Boolean);
  document.getElementById("main").append(...chapters);
  drawContents(chapters);
  document.getElementById("foot").append(`Written by Turnwise ${DATA.version} from run folders alone. This file loads nothing and sends nothing.`);
  document.documentElement.dataset.ready = "yes";
}

draw();
