// Elements and numbers. Data is text: it reaches the page through textContent and attributes of our choosing only.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// 0.123456 -> "0.123", 12345 -> "12,345", 0.0000123 -> "1.23e-5".
function show(value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2).replace("e+", "e");
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(3)));
}

function showSeconds(seconds) {
  if (!isNumber(seconds) || seconds === 0) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

// "1 turn", "2 turns".
function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function clamp(value, low, high) {
  return Math.min(high, Math.max(low, value));
}

function nearest(sorted, value) {
  let best = 0;
  for (let place = 1; place < sorted.length; place++) {
    if (Math.abs(sorted[place] - value) < Math.abs(sorted[best] - value)) best = place;
  }
  return best;
}

// One step that every figure points at: hovering one moves the line in all.
const cursor = {
  listeners: new WeakMap(), // a figure that was drawn again must not be kept by it
  listen(node, listener) {
    node.setAttribute("data-follows", "");
    this.listeners.set(node, listener);
  },
  set(step) {
    for (const node of document.querySelectorAll("[data-follows]")) this.listeners.get(node)?.(step);
  },
};

function choice(label, options, chosen, change) {
  const select = html(
    "select",
    { onchange: () => change(select.value) },
    options.map(([value, text, off]) => html("option", { value, selected: value === chosen, disabled: off }, text)),
  );
  return html("label", { class: "choice" }, html("span", {}, label), select);
}

function chapter(id, title, lead, ...children) {
  return html(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    html("h2", { id: `${id}-title` }, title),
    lead ? html("p", { class: "lead" }, lead) : null,
    ...children,
  );
}
