// What the server sent, put into what is known: {shared, runs: Map from key to run}. Points of curves and maps come in
// parts; everything else comes whole.

function nothingKnown() {
  return { shared: { order: [] }, runs: new Map() };
}

function nulls(count) {
  return Array(count).fill(null);
}

function joinedColumn(old, sent, from) {
  return [...(old || nulls(from)).slice(0, from), ...sent];
}

// A metric may have any name, also that of something that every object has.
function own(object, name) {
  return Object.hasOwn(object, name) ? object[name] : undefined;
}

function joinedColumns(old, sent, from) {
  const joined = Object.create(null);
  for (const [name, values] of Object.entries(sent)) joined[name] = joinedColumn(own(old, name), values, from);
  return joined;
}

function joinedMaps(old, sent, from) {
  const joined = Object.create(null);
  for (const [name, rows] of Object.entries(sent))
    joined[name] = rows.map((row, turn) => joinedColumn((own(old, name) || [])[turn], row, from));
  return joined;
}

function applyPart(run, part, sent) {
  if (part === "curves") {
    const old = sent.from ? run.curves : { step: [], columns: {} };
    run.curves = {
      step: joinedColumn(old.step, sent.step, sent.from),
      columns: joinedColumns(old.columns, sent.columns, sent.from),
    };
  } else if (part === "heat") {
    const old = sent.from ? run.heat : { step: [], maps: {} };
    run.heat = {
      step: joinedColumn(old.step, sent.step, sent.from),
      turns: sent.turns,
      maps: joinedMaps(old.maps, sent.maps, sent.from),
    };
  } else Object.assign(run, sent);
}

function applyParts(known, parts) {
  for (const [key, sent] of Object.entries(parts)) {
    if (key === "all") {
      Object.assign(known.shared, sent.shared);
      continue;
    }
    if (!known.runs.has(key)) known.runs.set(key, { key });
    for (const [part, content] of Object.entries(sent)) applyPart(known.runs.get(key), part, content);
  }
  const there = new Set(known.shared.order);
  for (const key of [...known.runs.keys()]) if (!there.has(key)) known.runs.delete(key);
}

// The server reads no address beyond 64 KiB; with more runs than fit, everything is sent again.
const LONGEST_QUERY = 65000;

// The stream of changes. A connection that breaks comes back with the tags of what is known, and so misses nothing. It
// is "live", "lost" or, if the server said so before it went, "ended".
function followStream(tell) {
  let tags = "";
  let ended = false;
  const open = () => {
    const query = tags ? `?tags=${encodeURIComponent(tags)}` : "";
    const source = new EventSource(query.length < LONGEST_QUERY ? `events${query}` : "events");
    source.onopen = () => {
      ended = false;
      tell({ kind: "connection", connection: "live" });
    };
    source.addEventListener("ended", () => {
      ended = true;
      tell({ kind: "connection", connection: "ended" });
    });
    source.onmessage = (event) => {
      tags = event.lastEventId;
      tell({ kind: "parts", ...JSON.parse(event.data) });
    };
    source.onerror = () => {
      tell({ kind: "connection", connection: ended ? "ended" : "lost" });
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 2000); // it was refused; otherwise it retries itself
    };
  };
  open();
}
