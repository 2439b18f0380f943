// Puts a new version of something in the place of the old one. What is the same stays, so that a page can be drawn again
// while it is read: open details stay open, tables keep their place, and what is pointed at waits. What is the same to the
// eye must do the same when it is clicked.

const CONTAINERS = new Set(["SECTION", "DIV", "DETAILS", "TABLE", "THEAD", "TBODY", "TR"]);

function isContainer(node) {
  return CONTAINERS.has(node.tagName) && [...node.childNodes].every((child) => child.nodeType === Node.ELEMENT_NODE);
}

// Whether somebody points at a figure, has chosen a control, or marks a text for copying.
function inUse(node) {
  if (node.tagName === "FIGURE" && node.matches(":hover")) return true;
  if (node !== document.activeElement && node.contains(document.activeElement)) return true;
  const marked = getSelection();
  return !marked.isCollapsed && marked.containsNode(node, true);
}

function swap(old, fresh) {
  if (inUse(old)) return false;
  const focused = old === document.activeElement;
  old.replaceWith(fresh);
  if (focused) fresh.focus({ preventScroll: true });
  return true;
}

function takeAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

// Whether two things are versions of each other.
function isKind(old, fresh) {
  return old.tagName === fresh.tagName && old.id === fresh.id && old.classList[0] === fresh.classList[0];
}

// Whether all of it is new now; what was in use is as it was.
function settle(old, fresh) {
  if (old.isEqualNode(fresh)) return true;
  if (old.tagName !== fresh.tagName || !isContainer(old) || !isContainer(fresh)) return swap(old, fresh);
  takeAttributes(old, fresh);
  let rest = [...old.children];
  let done = true;
  for (const child of [...fresh.children]) {
    const place = rest.findIndex((each) => isKind(each, child));
    if (place < 0) {
      old.insertBefore(child, rest[0] || null);
      continue;
    }
    for (const gone of rest.slice(0, place)) gone.remove();
    const next = rest.slice(place + 1);
    done = settle(rest[place], child) && done;
    rest = next;
  }
  for (const gone of rest) gone.remove();
  return done;
}
