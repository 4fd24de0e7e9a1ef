// Runs side by side: which, what is drawn and how the table is sorted are in the address, so that it can be kept and sent.
import {chart, kindOfLine, swatch} from "./chart.js";
import {ask, byId, digits, figure, follow, keepFocus, kindOf, named, node, warn} from "./page.js";

const FIRST_METRICS = 2, MOST_TESTED = Number(document.body.dataset.mostTested);
const BASE = "/api/v1/compare";
const given = () => new URLSearchParams(location.search);
const runsOf = () => given().get("runs") || "";
const hidden = new Set();
let found = null, lines = new Map(), leave = null, lit = null;

const chosen = () => {
  const named = given().get("metrics");
  if (named !== null) return named.split(",").filter((name) => found.metrics.includes(name));
  const best = found.runs.filter((run) => run.best).map((run) => run.best.metric);
  return [...new Set([...best.slice(0, 1), "loss", ...found.metrics])].filter((name) => found.metrics.includes(name)).slice(0, FIRST_METRICS);
};

function go(changed, push = false) {
  const query = given();
  for (const [name, value] of Object.entries(changed)) if (value === null) query.delete(name); else query.set(name, value);
  history[push ? "pushState" : "replaceState"](null, "", `${location.pathname}?${query.toString().replaceAll("%2C", ",")}`);
}

// Figures that have an interval are in the table, and the others where they are asked for.
function figures() {
  const known = found.figures.filter((name) => found.runs.some((run) => run.figures[name] && run.figures[name].interval));
  return byId("every").checked || !known.length ? found.figures : known;
}

// What the table may be sorted by: a title, and the value of a run.
function sorts() {
  const best = [...new Set(found.runs.filter((run) => run.best).map((run) => run.best.metric))];
  return [
    ["given", "as asked for", null],
    ["name", "name", (run) => run.name.toLowerCase()],
    ["state", "state", (run) => run.state],
    ...best.map((name) => [`best ${name}`, `best ${name}`, (run) => (run.best && run.best.metric === name ? run.best.value : null)]),
    ...found.figures.map((name) => [name, named(name), (run) => (run.figures[name] ? run.figures[name].value : null)]),
    ...found.keys.map((key, place) => [key, key, (run) => {
      const value = run.settings[place];
      return value !== null && value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
    }]),
  ];
}

function ordered() {
  const [, , value] = sorts().find(([name]) => name === given().get("sort")) || [];
  const places = found.runs.map((run, place) => [run, place]);
  if (!value) return given().get("order") === "up" ? places.reverse() : places;
  const sign = given().get("order") === "up" ? 1 : -1;
  // Runs without a value come last, whatever the order.
  return places.sort(([a], [b]) => {
    const [one, other] = [value(a), value(b)];
    if (one === null || other === null) return (one === null) - (other === null);
    return sign * (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other)));
  });
}

const cell = (title, ...inside) => node("td", {"data-title": title}, ...inside);
// The value, and its interval below it.
function inCell(one) {
  if (!one) return [""];
  const [value, bounds] = digits(one);
  return [value, bounds ? node("span", {class: "under"}, bounds) : null];
}

function settings(run) {
  const lines = found.keys.map((key, at) => node("div", {}, node("span", {class: "key"}, key), ` ${run.settings[at] === null ? "–" : run.settings[at]}`));
  return node("td", {class: "settings", "data-title": "settings"}, ...lines);
}

function row([run, place]) {
  const tick = node("input", {type: "checkbox", value: run.id, "aria-label": `draw ${run.name}`});
  tick.checked = !hidden.has(run.id);
  tick.addEventListener("change", () => { if (tick.checked) hidden.delete(run.id); else hidden.add(run.id); draw(); });
  const made = node("tr", {},
    node("th", {scope: "row"}, tick, swatch(place), node("a", {href: run.page}, run.name),
      found.runs.some((one) => one !== run && one.name === run.name) ? node("span", {class: "under"}, run.id) : null),
    cell("state", node("span", {class: kindOf(run.state)}, run.state),
      run.progress ? node("span", {class: "under"}, `epoch ${run.progress.epoch} of ${run.progress.epochs}`) : null),
    cell("best", ...(run.best ? [`${run.best.metric} ${figure(run.best.value)}`, node("span", {class: "under"}, `epoch ${run.best.epoch}`)] : [""])),
    ...figures().map((name) => cell(named(name), ...inCell(run.figures[name]))),
    ...(found.keys.length ? [settings(run)] : []),
    node("td", {class: "act"}, node("button", {type: "button", "aria-label": `take out ${run.name}`, value: `out ${run.id}`}, "Take out")));
  made.querySelector("button").addEventListener("click", () => take(found.runs.filter((one) => one !== run)));
  for (const kind of ["pointerenter", "focusin"]) made.addEventListener(kind, () => light(run.id));
  for (const kind of ["pointerleave", "focusout"]) made.addEventListener(kind, () => light(null));
  return made;
}

// Draws the curves of one run in full strength, and the others less.
function light(id) {
  lit = id;
  for (const picture of byId("charts").querySelectorAll("svg")) {
    picture.classList.toggle("lit", id !== null);
    for (const path of picture.querySelectorAll("[data-line]")) path.classList.toggle("on", path.dataset.line === id);
  }
}

function take(runs) {
  go({runs: runs.map((run) => run.id).join(",")}, true);
  begin();
}

function table() {
  const titles = ["Run", "State", "Best", ...figures().map(named), ...(found.keys.length ? ["Settings"] : [])];
  byId("columns").replaceChildren(...titles.map((title) => node("th", {scope: "col"}, title)), node("td", {}));
  byId("sort").replaceChildren(...sorts().map(([name, title]) => node("option", {value: name}, title)));
  byId("sort").value = sorts().some(([name]) => name === given().get("sort")) ? given().get("sort") : "given";
  byId("order").value = given().get("order") || "down";
  keepFocus(byId("rows"), () => byId("rows").replaceChildren(...ordered().map(row)));
  byId("count").textContent = `${found.runs.length} runs`;
  byId("every").closest("label").hidden = !byId("every").checked && figures().length === found.figures.length;
  byId("test").disabled = found.runs.length < 2 || found.runs.length > MOST_TESTED;
  if (found.runs.length > MOST_TESTED) byId("tested").textContent = `Tests are for ${MOST_TESTED} runs at most: draw those, and keep them.`;
}

function choices() {
  const drawn = chosen();
  keepFocus(byId("metrics"), () => byId("metrics").replaceChildren(...found.metrics.map((name) => {
    const tick = node("input", {type: "checkbox", value: name});
    tick.checked = drawn.includes(name);
    tick.addEventListener("change", () => {
      const now = [...byId("metrics").querySelectorAll("input:checked")].map((one) => one.value);
      go({metrics: now.join(",")});
      curves();
    });
    return node("label", {}, tick, ` ${name.replaceAll("_", " ")}`);
  })));
}

async function curves() {
  const axis = byId("axis").value, query = `runs=${encodeURIComponent(runsOf())}&axis=${axis}`;
  const all = await Promise.all(chosen().map((name) => ask(`${BASE}/curves?${query}&metric=${encodeURIComponent(name)}`)));
  lines = new Map(all.map((one) => [one.metric, one.lines]));
  draw();
}

function draw() {
  const places = new Map(found.runs.map((run, place) => [run.id, [place, run.name]]));
  const unit = {epoch: "epoch", step: "step", time: "s"}[byId("axis").value];
  const options = {weight: Number(byId("smooth").value), log: byId("log").checked, unit, legend: false};
  byId("charts").replaceChildren(...[...lines].map(([metric, of]) => {
    const drawn = of.filter((line) => places.has(line.id) && !hidden.has(line.id));
    return chart(metric.replaceAll("_", " "), null, drawn.map(({id, x, y}) => ({name: places.get(id)[1], values: y, xs: x, id, kind: kindOfLine(places.get(id)[0])})), options);
  }).filter(Boolean));
  // Who points at a run while the curves are drawn anew goes on seeing which ones are its own.
  light(places.has(lit) ? lit : null);
}

async function tests() {
  byId("test").disabled = true;
  byId("tested").textContent = "Testing …";
  byId("pairs-box").hidden = true;
  try {
    const told = await ask(`${BASE}/tests?runs=${encodeURIComponent(runsOf())}&split=${byId("split").value}&common=${byId("common").checked}`);
    const names = new Map(found.runs.map((run) => [run.id, run.name]));
    byId("pairs").replaceChildren(...told.differences.map((pair) => node("tr", {},
      node("th", {scope: "row"}, `${pair.metric}: ${names.get(pair.first)} − ${names.get(pair.second)}`),
      cell("difference", ...inCell(pair.difference === null ? null : {value: pair.difference, interval: pair.interval})),
      cell("p", likely(pair.p_value)), cell("p, Holm", likely(pair.p_holm)), cell("test", pair.test))));
    byId("pairs-box").hidden = false;
    byId("tested").replaceChildren(`${told.task}, ${told.split} split, ${told.n} scans of ${told.subjects} subjects.`, ...told.notes.map((note) => node("span", {class: "under"}, note)));
  } catch (error) { byId("tested").textContent = error.message; }
  byId("test").disabled = false;
}

const likely = (p) => (p === null ? "" : p < 0.001 ? "< 0.001" : figure(p));

async function show() {
  found = await ask(`${BASE}?runs=${encodeURIComponent(runsOf())}&split=${byId("split").value}`);
  table();
  choices();
  await curves();
  warn(found.warnings, false);
}

function begin() {
  if (leave) leave();
  byId("pairs-box").hidden = true;
  byId("tested").textContent = "";
  byId("split").value = given().get("split") || "test";
  byId("axis").value = given().get("axis") || "epoch";
  if (!runsOf()) {
    byId("count").textContent = "Nothing is chosen: tick runs or jobs in their lists, and press Compare.";
    for (const section of document.querySelectorAll("main section")) section.hidden = true;
    return;
  }
  leave = follow(`${BASE}/events?runs=${encodeURIComponent(runsOf())}`, show);
}

byId("axis").addEventListener("change", () => { go({axis: byId("axis").value}); curves(); });
byId("split").addEventListener("change", () => { go({split: byId("split").value}); byId("pairs-box").hidden = true; show(); });
for (const name of ["sort", "order"]) byId(name).addEventListener("change", () => { go({[name]: byId(name).value}); table(); });
byId("every").addEventListener("change", table);
byId("smooth").addEventListener("input", draw);
byId("log").addEventListener("change", draw);
byId("all").addEventListener("click", () => { hidden.clear(); table(); draw(); });
byId("none").addEventListener("click", () => { for (const run of found.runs) hidden.add(run.id); table(); draw(); });
byId("keep").addEventListener("click", () => {
  const kept = found.runs.filter((run) => !hidden.has(run.id));
  if (kept.length) take(kept);
});
byId("test").addEventListener("click", tests);
addEventListener("popstate", begin);
begin();
