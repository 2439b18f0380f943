// The live page: follows the stream, and draws again what has changed where somebody can see it.

const FIXED = JSON.parse(document.getElementById("data").textContent);
const known = nothingKnown();
const stale = new Set(Object.keys(CHAPTERS));
const DRAWING = { connection: "lost", offset: 0, paused: false, began: false, next: 0, timer: 0 };
const SHORTEST_PAUSE = 900; // milliseconds between two drawings
const NEARBY = 900; // pixels beyond the window within which chapters are kept up to date

CHAPTERS.comparison = () => studiesChapter(known.shared.studies || []);
CHAPTERS.episodes = liveEpisodesChapter;
// What can be shown before there is a run, and of studies that have none.
const WITHOUT_RUNS = new Set(["comparison", "evaluations"]);
VIEW.changed = writeLink;

function serverNow() {
  return Date.now() / 1000 + DRAWING.offset;
}

function allRuns() {
  return known.shared.order.map((key) => known.runs.get(key)).filter((run) => run && run.summary && run.config);
}

function hasFindings() {
  const { studies, evaluations } = known.shared;
  return Boolean(evaluations || (studies && studies.length));
}

function shownRuns(all) {
  const chosen = VIEW.runs ? all.filter((run) => VIEW.runs.has(run.key)) : all;
  return chosen.length ? chosen : all;
}

// What the figures need beside what the server sends.
function prepare(run) {
  const named = new Set([...known.shared.panels.map((panel) => panel.metric), ...Object.keys(FIXED.times), "step"]);
  run.others = Object.keys(run.curves.columns).filter((name) => !named.has(name));
  run.episodes = [];
  run.recordedSteps = expandRanges(run.recorded.step);
}

function differing(runs) {
  const keys = new Set(runs.flatMap((run) => Object.keys(run.config)));
  return [...keys].filter((key) => new Set(runs.map((run) => run.config[key])).size > 1);
}

function choose(runs) {
  VIEW.runs = runs && runs.size && runs.size < allRuns().length ? runs : null;
  writeLink();
  drawAll(true);
}

function toggleRun(key, shown) {
  const keys = new Set(shownRuns(allRuns()).map((run) => run.key));
  keys[shown ? "add" : "delete"](key);
  choose(keys);
}

function stepToRun(by) {
  const all = allRuns();
  const [first] = shownRuns(all);
  const place = VIEW.runs ? all.indexOf(first) + by : by > 0 ? 0 : all.length - 1;
  if (all.length > 1) choose(new Set([all[(place + all.length) % all.length].key]));
}

function headContent(all) {
  const now = serverNow();
  const single = DATA.runs.length === 1 ? DATA.runs[0] : null;
  const shown = new Set(DATA.runs.map((run) => run.key));
  const left = known.shared.left_out;
  return html(
    "div",
    { id: "head" },
    html("h1", {}, headline() || "No run"),
    DATA.runs.length ? verdicts() : null,
    single ? liveTiles(single, now) : null,
    all.length > 1 ? html("p", { class: "counts" }, countsLine(all, now)) : null,
    all.length > 1 && VIEW.runs
      ? html("button", { type: "button", onclick: () => choose(null), title: "Key 0" }, `Show all ${all.length} runs`)
      : null,
    all.length > 1 ? liveTable(all, shown, now, { toggle: toggleRun, only: choose }) : null,
    left ? html("p", { class: "none" }, `${left} older runs are left out; name their folder to see them.`) : null,
    SEEDS ? groupsTable(GROUPS) : null,
    single ? headFacts(single) : null,
    problemsNote(),
  );
}

function waiting() {
  const places = (known.shared.roots || []).join(", ");
  document.title = "Turnwise watch";
  document.getElementById("head").replaceChildren(
    html("h1", {}, DRAWING.connection === "lost" ? "Connecting" : "No run yet"),
    html("p", { class: "lead" }, places ? `A run that is started in ${places} appears here by itself.` : ""),
  );
  document.getElementById("main").replaceChildren();
  document.getElementById("contents").replaceChildren();
  for (const id of Object.keys(CHAPTERS)) stale.add(id);
}

function isNear(node) {
  const { top, bottom } = node.getBoundingClientRect();
  return bottom > -NEARBY && top < innerHeight + NEARBY;
}

// Puts a chapter that has come into its place among the others.
function insert(main, id, fresh) {
  const order = Object.keys(CHAPTERS);
  const after = [...main.children].find((each) => order.indexOf(each.id) > order.indexOf(id));
  main.insertBefore(fresh, after || null);
}

function drawChapter(main, id, everywhere) {
  const old = document.getElementById(id);
  if (old && !everywhere && !isNear(old)) return;
  const fresh = DATA.runs.length || WITHOUT_RUNS.has(id) ? CHAPTERS[id]() : null;
  const done = fresh && old ? settle(old, fresh) : true;
  if (fresh && !old) insert(main, id, fresh);
  if (!fresh && old) old.remove();
  if (done) stale.delete(id);
}

function drawChapters(everywhere) {
  const main = document.getElementById("main");
  for (const id of [...stale]) drawChapter(main, id, everywhere);
  const links = contentsLinks([...main.children]);
  const contents = document.getElementById("contents");
  if (links.map((link) => link.textContent).join() !== [...contents.children].map((link) => link.textContent).join())
    contents.replaceChildren(...links);
}

// Everything that has changed; with `asked`, all of it at once.
function drawAll(asked) {
  const all = allRuns();
  if (!all.length && !hasFindings()) return waiting();
  const before = performance.now();
  for (const run of all) prepare(run);
  const runs = shownRuns(all);
  const { panels, evaluations } = known.shared;
  setData({ ...FIXED, live: true, runs, panels, evaluations, differences: differing(runs) });
  document.title = `${headline() || "No run"} · Turnwise watch`;
  settle(document.getElementById("head"), headContent(all));
  if (asked) for (const id of Object.keys(CHAPTERS)) stale.add(id);
  drawChapters(asked);
  if (!DRAWING.began) begin();
  const took = performance.now() - before;
  DRAWING.next = before + Math.max(SHORTEST_PAUSE, 8 * took);
}

function begin() {
  DRAWING.began = true;
  document.documentElement.dataset.ready = "yes";
  if (LINK.chapter) goTo(LINK.chapter);
}

// As soon as it may be drawn again; a page in the background waits until it is looked at.
function plan() {
  if (DRAWING.timer || DRAWING.paused || document.hidden) return;
  DRAWING.timer = setTimeout(
    () => {
      DRAWING.timer = 0;
      if (!DRAWING.paused && !document.hidden) drawAll(!DRAWING.began);
    },
    Math.max(0, DRAWING.next - performance.now()),
  );
}

const CONNECTIONS = {
  live: ["live", "live"],
  lost: ["not connected; trying again", "bad"],
  ended: ["the command has ended; this is its last state", ""],
};

function showConnection() {
  const [words, tone] = DRAWING.paused ? ["paused", "watch"] : CONNECTIONS[DRAWING.connection];
  const place = document.getElementById("connection");
  place.className = `tone ${tone}`;
  if (place.textContent !== words) place.textContent = words;
}

function receive(message) {
  if (message.kind === "connection") DRAWING.connection = message.connection;
  if (message.kind === "known") {
    Object.assign(known, message.known);
    Object.assign(DRAWING, { connection: message.connection, offset: message.offset });
  }
  if (message.kind === "parts") {
    applyParts(known, message.parts);
    DRAWING.offset = message.now - Date.now() / 1000;
  }
  if (message.kind !== "connection") {
    if (!DRAWING.began) readLink(known);
    for (const id of Object.keys(CHAPTERS)) stale.add(id);
    if (message.kind === "parts" || known.shared.roots) plan();
  }
  showConnection();
}

function connect() {
  if (typeof SharedWorker === "undefined") return followStream(receive);
  const worker = new SharedWorker(`worker.js?${FIXED.version}`);
  worker.port.onmessage = ({ data }) => receive(data);
  addEventListener("pagehide", () => worker.port.postMessage("gone"));
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

function pause() {
  DRAWING.paused = !DRAWING.paused;
  const button = document.getElementById("pause");
  button.setAttribute("aria-pressed", String(DRAWING.paused));
  button.textContent = DRAWING.paused ? "Go on" : "Pause";
  showConnection();
  plan();
}

const KEYS = {
  p: ["pause or go on", pause],
  "[": ["the previous run alone", () => stepToRun(-1)],
  "]": ["the next run alone", () => stepToRun(1)],
  0: ["all runs", () => choose(null)],
  n: ["the newest episodes", () => (ask({ step: null }), goTo("episodes"))],
  "?": ["these keys", toggleHelp],
};

function toggleHelp() {
  const [help, room] = [document.getElementById("help"), document.getElementById("keys")];
  room.hidden = !room.hidden;
  help.setAttribute("aria-expanded", String(!room.hidden));
  const rows = [["1 … 9", "go to a chapter"], ...Object.entries(KEYS).map(([key, [words]]) => [key, words])];
  const others = [["← →", "move along a figure, a map or an episode's tokens"], ["Enter", "on a curve: read episodes of that step"]];
  room.replaceChildren(pairs([...rows, ...others]));
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const chapter = /^[1-9]$/.test(event.key) && document.getElementById("main").children[Number(event.key) - 1];
  const action = chapter ? () => goTo(chapter.id) : Object.hasOwn(KEYS, event.key) ? KEYS[event.key][1] : null;
  if (!action) return;
  event.preventDefault();
  action();
}

function listen() {
  document.getElementById("pause").addEventListener("click", pause);
  document.getElementById("help").addEventListener("click", toggleHelp);
  document.getElementById("contents").addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    goTo(link.hash.slice(1));
  });
  addEventListener("keydown", pressed);
  addEventListener("scroll", () => stale.size && plan(), { passive: true });
  document.addEventListener("visibilitychange", plan);
  addEventListener("hashchange", () => {
    readLink(known);
    drawAll(true);
    if (LINK.chapter) goTo(LINK.chapter);
  });
  setInterval(plan, 5000); // ages and silences change by themselves
}

document.getElementById("foot").append(`Turnwise ${FIXED.version}. This page reads run folders and changes nothing; it loads nothing from elsewhere.`);
listen();
connect();
