// Lines over a common axis as inline SVG: smoothed on wish (the raw line stays behind), linear or logarithmic.
import {figure, node} from "./page.js";

const WIDTH = 420, HEIGHT = 220, LEFT = 66, RIGHT = 10, TOP = 10, BOTTOM = 24, TICKS = 4;

function svg(name, facts, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Values between the two, evenly spaced.
const even = (low, high) => Array.from({length: TICKS + 1}, (_, tick) => low + ((high - low) * tick) / TICKS);

// Round values between the two: multiples of 1, 2 or 5 times a power of ten.
function round(low, high) {
  const rough = (high - low) / TICKS, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, place) => (first + place) * step);
}

// Figures of ticks, with as many digits as tell them apart.
function told(values) {
  for (let digits = 3; digits < 7; digits += 1) {
    const texts = values.map((one) => (digits < 5 ? figure(+one.toPrecision(digits)) : String(+one.toPrecision(digits))));
    if (new Set(texts).size === values.length || digits === 6) return texts;
  }
}

// Exponential average, corrected for its beginning.
function smoothed(values, weight) {
  let sum = 0, count = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    count = weight * count + (1 - weight);
    return sum / count;
  });
}

const COLOURS = 8, DASHES = 4, MOST_NAMED = 8;

// The classes of the line at a place: each of the colours in whole lines, then each of them dashed, and so on.
export const kindOfLine = (place) => `c${1 + (place % COLOURS)} d${Math.floor(place / COLOURS) % DASHES}`;

// A line as the chart draws it, for tables.
export function swatch(place) {
  const made = svg("svg", {viewBox: "0 0 26 10", class: "swatch", "aria-hidden": "true"});
  made.append(svg("path", {d: "M1 5L25 5", class: kindOfLine(place)}));
  return made;
}

// `lines`: {name, values, xs, id, kind} with a value, or null, for each of its `xs`, by default the common ones. Returns null
// where there is nothing to draw.
export function chart(title, xs, lines, {weight = 0, log = false, unit = "", legend = true} = {}) {
  const drawn = lines.map((line, place) => ({xs, kind: kindOfLine(place), ...line, values: line.values.map((one) => (log && one <= 0 ? null : one))}))
    .filter(({values}) => values.some((one) => one !== null));
  const all = drawn.flatMap(({values}) => values).filter((one) => one !== null);
  if (!all.length) return null;
  const scale = log ? Math.log10 : (one) => one, back = log ? (one) => 10 ** one : (one) => one;
  let low = scale(all.reduce((a, b) => Math.min(a, b))), high = scale(all.reduce((a, b) => Math.max(a, b)));
  if (high - low < Math.max(1e-12, 1e-4 * Math.abs(high))) { low -= Math.abs(low) / 10 || 1; high += Math.abs(high) / 10 || 1; }
  const first = drawn.map((line) => line.xs[0]).reduce((a, b) => Math.min(a, b));
  const last = drawn.map((line) => line.xs[line.xs.length - 1]).reduce((a, b) => Math.max(a, b));
  const x = (one) => LEFT + (WIDTH - LEFT - RIGHT) * (last > first ? (one - first) / (last - first) : 0.5);
  const y = (one) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (scale(one) - low) / (high - low));
  const newest = drawn.length > MOST_NAMED ? `${drawn.length} lines`
    : drawn.map(({name, values}) => `${name} ${figure(values.findLast((one) => one !== null))}`).join(", ");
  const picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", role: "img", "aria-label": `${title}: ${newest}`});
  const ticks = log ? even(low, high).map(back) : round(low, high), texts = told(ticks);
  for (const [place, value] of ticks.entries()) {
    picture.append(svg("line", {x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value), class: "grid-line"}),
      svg("text", {x: LEFT - 6, y: y(value) + 4, "text-anchor": "end"}, texts[place]));
  }
  picture.append(svg("text", {x: LEFT, y: HEIGHT - 6}, figure(first)),
    svg("text", {x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end"}, `${unit} ${figure(last)}`));
  function path(line, values, kind) {
    let pen = "M";
    const points = values.map((value, place) => {
      if (value === null) { pen = "M"; return ""; }
      const point = `${pen}${x(line.xs[place]).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
      return point;
    }).join("");
    const made = svg("path", {d: points, class: kind});
    if (line.id) made.dataset.line = line.id;
    made.append(svg("title", {}, line.name));
    picture.append(made);
    const known = values.filter((one) => one !== null);
    if (known.length === 1) { // a line of one point cannot be seen
      const place = values.findIndex((one) => one !== null);
      picture.append(svg("circle", {cx: x(line.xs[place]), cy: y(known[0]), r: 3, fill: "currentColor", class: kind}));
    }
  }
  for (const line of drawn) {
    if (weight) path(line, line.values, `${line.kind} raw`);
    path(line, weight ? smoothed(line.values, weight) : line.values, line.kind);
  }
  const names = legend && drawn.length > 1 ? drawn.map(({name, kind}) => node("span", {class: kind}, `― ${name}`)) : [];
  return node("figure", {}, node("figcaption", {}, title, ...names), picture);
}
