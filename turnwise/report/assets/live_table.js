// Where each run stands now: tiles for one run, a table for several.

const STATES = {
  finished: ["good", "finished"],
  stopped: ["bad", "stopped by the guard"],
  failed: ["bad", "failed"],
  interrupted: ["watch", "interrupted"],
};
const SHORTEST_SILENCE = 60;

// A run that has written nothing for as long as ten of its steps take is no longer called running.
function stateOf(run, now) {
  if (run.status) return STATES[run.status];
  const silent = now - run.changed;
  if (silent < Math.max(SHORTEST_SILENCE, 10 * (run.pace || 0))) return ["live", run.summary.steps ? "running" : "starting"];
  return ["watch", `silent for ${showSeconds(silent)}`];
}

function newest(run, metric) {
  const values = column(run, metric) || [];
  return values.findLast(isNumber) ?? null;
}

function progressBar(run) {
  const { steps, asked } = run.summary;
  if (!asked) return html("span", { class: "nowrap" }, `step ${steps.toLocaleString("en-US")}`);
  return html(
    "span",
    { class: "progress" },
    html("progress", { max: asked, value: Math.min(steps, asked), "aria-label": `step ${steps} of ${asked}` }),
    html("span", { class: "nowrap" }, `${steps.toLocaleString("en-US")} of ${asked.toLocaleString("en-US")}`),
  );
}

function timeLeft(run, now) {
  const { steps, asked } = run.summary;
  if (stateOf(run, now)[0] !== "live" || !asked || !run.pace || steps >= asked) return "";
  return showSeconds((asked - steps) * run.pace);
}

function stateMark(run, now) {
  const [tone, words] = stateOf(run, now);
  return html("span", { class: `tone nowrap ${tone}` }, words);
}

function tile(name, value, note, tone) {
  return html(
    "div",
    { class: `tile ${tone || ""}` },
    html("dt", {}, name),
    html("dd", {}, value),
    note ? html("p", { class: "quiet" }, note) : null,
  );
}

function liveTiles(run, now) {
  const { summary } = run;
  const left = timeLeft(run, now);
  const final = summary.final;
  const speed = newest(run, "time/tokens_per_second");
  return html(
    "dl",
    { class: "tiles" },
    tile("State", stateMark(run, now), `written ${showAge(now - run.changed)}`),
    tile("Progress", progressBar(run), left ? `about ${left} left` : ""),
    tile("Success in training", show(newest(run, "rollout/success")), `best step ${show(summary.best)}`),
    tile("Held-out success", final ? show(final.value) : "–", final ? `at step ${final.step}${isNumber(final.before) ? `, ${show(final.before)} before` : ""}` : "none played yet"),
    tile("Guard incidents", String(summary.incidents), run.onset ? `since step ${run.onset.step}: ${run.onset.signal}` : "", summary.incidents ? "alarm" : ""),
    tile("Speed", isNumber(run.pace) ? `${show(run.pace)} s` : "–", isNumber(speed) ? `a step, ${show(speed)} tokens a second` : "a step"),
  );
}

function showAge(seconds) {
  if (!(seconds < 1e9)) return "never";
  return seconds < 5 ? "just now" : `${showSeconds(seconds)} ago`;
}

function runLink(run, group, choose) {
  return html(
    "button",
    { type: "button", class: "link", "data-run": run.key, title: "Show this run alone", onclick: () => choose(new Set([run.key])) },
    group ? html("i", { class: `key series-${group.colour % SERIES}` }) : null,
    run.name,
  );
}

function runBox(run, shown, choose) {
  const box = html("input", {
    type: "checkbox",
    checked: shown.has(run.key),
    "data-run": run.key,
    "aria-label": `Show ${run.name}`,
    onchange: () => choose(run.key, box.checked),
  });
  return box;
}

// All runs, with boxes for those that the page shows.
function liveTable(runs, shown, now, choose) {
  const rows = runs.map((run) => [
    runBox(run, shown, choose.toggle),
    runLink(
      run,
      GROUPS.find((group) => group.name === run.group),
      choose.only,
    ),
    stateMark(run, now),
    progressBar(run),
    show(newest(run, "rollout/success")),
    intervalText(run.summary.final),
    String(run.summary.incidents),
    run.onset ? `${run.onset.step} · ${run.onset.signal}` : "",
    isNumber(run.pace) ? `${show(run.pace)} s` : "",
    timeLeft(run, now),
  ]);
  const columns = ["Shown", "Run", "State", "Steps", "Success", "Held-out [95 %]", "Incidents", "Went wrong at", "A step", "Left"];
  return table(...withoutEmpty(columns, rows), "Runs");
}

// What studies have concluded; of several those whose runs are shown, each under its name.
function studiesChapter(studies) {
  const shown = new Set(DATA.runs.map((run) => run.key));
  const wanted = studies.filter(({ runs }) => !runs.length || runs.some((key) => shown.has(key)));
  if (!wanted.length) return null;
  const [first] = wanted;
  if (wanted.length === 1) return chapter("comparison", first.title, `The study in ${first.name}.`, comparisonParts(first.chapter));
  const blocks = wanted.map(({ name, title, chapter: content }) =>
    html("div", { class: "study" }, html("h3", {}, `${name}: ${title.toLowerCase()}`), comparisonParts(content)),
  );
  return chapter("comparison", "Studies", null, blocks);
}

// "12 runs: 3 running, 8 finished, 1 failed."
function countsLine(runs, now) {
  const counts = new Map();
  for (const run of runs) {
    const [tone, words] = stateOf(run, now);
    const word = tone === "watch" && !run.status ? "silent" : words;
    counts.set(word, (counts.get(word) || 0) + 1);
  }
  return `${counted(runs.length, "run")}: ${[...counts].map(([word, count]) => `${count} ${word}`).join(", ")}.`;
}
