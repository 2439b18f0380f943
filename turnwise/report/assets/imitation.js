// The imitation stage that some runs begin with.

function imitationWords(run) {
  const { steps, final } = run.imitation;
  const name = DATA.runs.length > 1 ? `${run.name}: ` : "";
  if (!final) return `${name}${counted(steps, "step")}.`;
  const before = isNumber(final.before) ? `, ${show(final.before)} before it` : "";
  return `${name}${counted(steps, "step")}; held-out success ${intervalText(final)} after imitation${before}.`;
}

function imitationChapter() {
  const imitated = DATA.runs.filter((run) => run.imitation);
  if (!imitated.length) return null;
  const stages = imitated.map((run) => ({ ...run, ...run.imitation, onset: null, evaluations: [], episodes: [] }));
  const view = { ...VIEW, hidden: new Set(), singles: showsSingles() };
  const figures = DATA.imitation_panels.map((panel) => panelFigure(panel, groupsOf(stages), view)).filter(Boolean);
  return chapter(
    "imitation",
    "Imitation",
    "What was learned from demonstrations before the first step of reinforcement.",
    imitated.length <= 4 ? imitated.map((run) => html("p", { class: "sentence" }, imitationWords(run))) : null,
    html("div", { class: "grid three" }, figures),
  );
}
