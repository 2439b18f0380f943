// The report: everything is drawn once.

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

function drawHead() {
  document.title = `${headline()} · Turnwise report`;
  document
    .getElementById("head")
    .append(
      html("p", { class: "brand" }, "Turnwise report"),
      html("h1", {}, headline()),
      ...verdicts(),
      ...headTables(),
      problemsNote() || "",
    );
}

function draw() {
  setData(JSON.parse(document.getElementById("data").textContent));
  drawHead();
  const chapters = Object.values(CHAPTERS)
    .map((make) => make())
    .filter(Boolean);
  document.getElementById("main").append(...chapters);
  document.getElementById("contents").append(...contentsLinks(chapters));
  openForPrint();
  document
    .getElementById("foot")
    .append(`Written by Turnwise ${DATA.version} from run folders alone. This file loads nothing and sends nothing.`);
  document.documentElement.dataset.ready = "yes";
}

draw();
