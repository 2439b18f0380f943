// Colours of cells and tokens. Both ramps change in lightness throughout, so they survive colour blindness and grey print.

const SEQUENTIAL = [
  [246, 243, 232],
  [214, 217, 178],
  [142, 191, 160],
  [67, 155, 160],
  [34, 110, 150],
  [35, 62, 122],
  [32, 22, 74],
];
const DIVERGING = [
  [20, 66, 140],
  [75, 133, 196],
  [163, 198, 226],
  [245, 243, 238],
  [243, 188, 134],
  [214, 113, 44],
  [140, 52, 8],
];
const SERIES = 8;

function ramp(stops, share) {
  const place = clamp(share, 0, 1) * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return stops[low].map((value, channel) => Math.round(value + (place - low) * (stops[low + 1][channel] - value)));
}

function css([red, green, blue]) {
  return `rgb(${red},${green},${blue})`;
}

// Black or white, whichever reads better on the colour (relative luminance as WCAG counts it).
function inkOn(colour) {
  const [red, green, blue] = colour.map((value) => {
    const share = value / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function quantile(sorted, share) {
  if (!sorted.length) return NaN;
  const place = share * (sorted.length - 1);
  const low = Math.floor(place);
  return sorted[low] + (place - low) * (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]);
}

// From values to shares of a ramp: {share, low, high, stops}. The outer 1 % at each end shares the end's colour.
function colourScale(values, { scale = "linear", centre = null }) {
  const least = values.reduce((low, value) => (value > 0 && value < low ? value : low), Infinity);
  const log = scale === "log" && least < Infinity; // zeros take the colour of the smallest number above them
  const warp = log ? (value) => Math.log(Math.max(value, least)) : (value) => value;
  const back = log ? Math.exp : (value) => value;
  const sorted = values
    .filter(isNumber)
    .map(warp)
    .sort((a, b) => a - b);
  let low = quantile(sorted, 0.01);
  let high = quantile(sorted, 0.99);
  if (centre !== null) {
    const reach = Math.max(Math.abs(high - warp(centre)), Math.abs(low - warp(centre)), 1e-6);
    [low, high] = [warp(centre) - reach, warp(centre) + reach];
  }
  const width = high - low;
  return {
    low: back(low),
    high: back(high),
    stops: centre === null ? SEQUENTIAL : DIVERGING,
    share: (value) => (width > 0 ? clamp((warp(value) - low) / width, 0, 1) : centre === null ? 0 : 0.5),
  };
}

function scaleColour(scale, value) {
  return ramp(scale.stops, scale.share(value));
}

function colourBar(scale) {
  const canvas = html("canvas", { width: 64, height: 1, class: "bar", "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  for (let place = 0; place < 64; place++) {
    context.fillStyle = css(ramp(scale.stops, place / 63));
    context.fillRect(place, 0, 1, 1);
  }
  return html("span", { class: "scale" }, show(scale.low), canvas, show(scale.high));
}
