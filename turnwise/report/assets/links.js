// The address says what is shown, so that a link to it shows the same: #episodes?run=…&step=120.

const LINK = { chapter: "" };

function readLink(known) {
  const [chapter, query] = location.hash.slice(1).split("?");
  const given = new URLSearchParams(query || "");
  LINK.chapter = chapter;
  VIEW.runs = given.has("runs") ? new Set(given.get("runs").split(",")) : null;
  VIEW.hidden = new Set(given.getAll("without"));
  VIEW.band = given.get("band") === "iqr" ? "iqr" : "range";
  VIEW.microscope = known.runs.get(given.get("microscope")) || null;
  const step = Number(given.get("step"));
  Object.assign(ASKED, {
    run: given.get("run"),
    kind: given.get("kind") === "eval" ? "eval" : "step",
    step: given.has("step") && Number.isInteger(step) ? step : null,
    episode: Math.max(0, Number.parseInt(given.get("episode"), 10) || 0),
    stream: Object.hasOwn(STREAMS, given.get("colour") || "") ? given.get("colour") : "mask",
  });
}

function writeLink() {
  const kept = new URLSearchParams();
  if (VIEW.runs) kept.set("runs", [...VIEW.runs].join(","));
  for (const name of VIEW.hidden) kept.append("without", name);
  if (VIEW.band !== "range") kept.set("band", VIEW.band);
  if (VIEW.microscope) kept.set("microscope", VIEW.microscope.key);
  if (ASKED.run) kept.set("run", ASKED.run);
  if (ASKED.kind !== "step") kept.set("kind", ASKED.kind);
  if (ASKED.step !== null) kept.set("step", ASKED.step);
  if (ASKED.episode) kept.set("episode", ASKED.episode);
  if (ASKED.stream !== "mask") kept.set("colour", ASKED.stream);
  const query = kept.toString();
  const hash = `#${LINK.chapter}${query ? `?${query}` : ""}`;
  if (hash !== (location.hash || "#")) history.replaceState(null, "", hash);
}

function goTo(chapter) {
  const there = document.getElementById(chapter);
  if (!there) return;
  LINK.chapter = chapter;
  writeLink();
  there.scrollIntoView();
}
