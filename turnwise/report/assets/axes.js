// Scales and axes of the line charts.

const FRAME = { width: 400, height: 206, left: 60, right: 10, top: 12, bottom: 38 };

function axis(low, high, from, to, log) {
  const warp = log ? Math.log10 : (value) => value;
  const [start, end] = [warp(low), warp(high)];
  const width = end - start || 1;
  return {
    low,
    high,
    log,
    place: (value) => from + ((warp(value) - start) / width) * (to - from),
    value: (place) => {
      const warped = start + ((place - from) / (to - from)) * width;
      return log ? 10 ** warped : warped;
    },
  };
}

function niceStep(width, count) {
  const rough = width / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

function linearTicks(low, high, count) {
  if (!(high > low)) return [low];
  const step = niceStep(high - low, count);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + step * 1e-9; tick++) {
    ticks.push(Number((tick * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high) - Math.log10(low);
  if (decades < 0.7) return linearTicks(low, high, count).filter((tick) => tick > 0);
  const factors = decades < 1.5 ? [1, 2, 5] : decades < 2.5 ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high) + 1e-9; power += every) {
    ticks.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(3))));
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function showTick(value) {
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? value.toExponential().replace("e+", "e") : show(value);
}

// The range of the numbers with a little air; a flat line gets some too.
function extent(values, { log = false, share = false } = {}) {
  if (share) return [0, 1];
  const usable = values.filter((value) => isNumber(value) && (!log || value > 0));
  if (!usable.length) return null;
  let low = Infinity;
  let high = -Infinity;
  for (const value of usable) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.08, high * 1.08];
  const air = (high - low) * 0.05 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 ? Math.max(0, low - air) : low - air, high + air];
}

function axisName(text, place) {
  return svg("text", { class: "tick axis-name", "text-anchor": "middle", ...place }, text);
}

function drawAxes(x, y, xLabel, yLabel) {
  const { width, height, left, right, top, bottom } = FRAME;
  const parts = [];
  for (const tick of y.log ? logTicks(y.low, y.high, 4) : linearTicks(y.low, y.high, 4)) {
    const at = y.place(tick);
    parts.push(svg("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    parts.push(svg("text", { class: "tick", x: left - 6, y: at + 3.5, "text-anchor": "end" }, showTick(tick)));
  }
  const last = x.log ? logTicks(x.low, x.high, 5) : linearTicks(x.low, x.high, 5);
  for (const tick of last) {
    const at = x.place(tick);
    const anchor = at > width - right - 12 ? "end" : "middle";
    parts.push(svg("text", { class: "tick", x: at, y: height - bottom + 15, "text-anchor": anchor }, showTick(tick)));
  }
  parts.push(svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  parts.push(axisName(xLabel, { x: (left + width - right) / 2, y: height - 4 }));
  if (yLabel) parts.push(axisName(yLabel, { transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)` }));
  return parts;
}
