import {ask, byId, duration, figure, follow, kindOf, moment, node, progressBar, warn} from "/static/page.js";

const LIMIT = 50;
const FIELDS = ["text", "state", "sort", "order"];
const form = byId("filters");
let leave = null;

// The address has what is filtered, searched and sorted, so that it can be kept and sent.
function wanted() {
  const given = new URLSearchParams(location.search), query = new URLSearchParams();
  for (const name of FIELDS) if (given.get(name)) query.set(name, given.get(name));
  const offset = parseInt(given.get("offset") || "0", 10);
  query.set("offset", String(offset > 0 ? offset : 0));
  query.set("limit", String(LIMIT));
  return query;
}

function cell(title, ...inside) {
  return node("td", {"data-title": title, class: title === "hosts" ? "hosts" : "tight"}, ...inside);
}

function hosts(job) {
  const first = job.hosts.slice(0, 4).join(", ");
  return job.hosts.length > 4 ? `${first} and ${job.hosts.length - 4} more` : first;
}

function row(job) {
  const state = node("span", {class: kindOf(job.state)}, job.state);
  const why = job.reason && !["RUNNING", "COMPLETED"].includes(job.state) ? job.reason : null;
  const done = job.tasks > 1 ? [`${job.tasks_completed} of ${job.tasks} tasks`,
    node("progress", {max: job.tasks, value: job.tasks_completed, "aria-label": "tasks completed"})] : [];
  const best = job.best ? [`${job.best.metric} ${figure(job.best.value)}`,
    node("span", {class: "under"}, `epoch ${job.best.epoch}`)] : [];
  return node("tr", {},
    node("th", {scope: "row"}, node("a", {href: `/jobs/${encodeURIComponent(job.key)}`}, job.name),
      node("span", {class: "under"}, `${job.id} · ${job.kind}`)),
    node("td", {"data-title": "state"}, state, why ? node("span", {class: "under"}, why.slice(0, 200)) : null),
    cell("progress", ...(job.progress ? progressBar(job.progress) : done)),
    cell("left", duration(job.progress && job.progress.seconds_left)),
    cell("best", ...best),
    cell("by", job.strategy || ""),
    cell("hosts", hosts(job)),
    cell("submitted", moment(job.submitted)));
}

async function show() {
  const page = await ask(`/api/v1/jobs?${wanted()}`);
  const focused = document.activeElement && document.activeElement.getAttribute("href");
  byId("rows").replaceChildren(...page.jobs.map(row));
  if (focused) {
    const same = [...byId("rows").querySelectorAll("a")].find((one) => one.getAttribute("href") === focused);
    if (same) same.focus({preventScroll: true});
  }
  const last = page.offset + page.jobs.length;
  byId("count").textContent = page.total ? `${page.offset + 1} to ${last} of ${page.total}`
    : form.text.value || form.state.value ? "no job matches" : "no jobs yet: cingulum submit CONFIG starts one";
  byId("newer").disabled = page.offset === 0;
  byId("older").disabled = last >= page.total;
  warn(page.warnings);
}

function begin() {
  const query = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (document.activeElement !== field) field.value = query.get(name) || (field.options ? field.options[0].value : "");
  }
  if (leave) leave();
  leave = follow("/api/v1/jobs/events", show);
}

function go(offset, replace) {
  const query = new URLSearchParams();
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (field.value && !(field.options && field.selectedIndex === 0)) query.set(name, field.value);
  }
  if (offset > 0) query.set("offset", String(offset));
  const address = `${location.pathname}${query.size ? `?${query}` : ""}`;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  begin();
}

let typed = 0;
form.addEventListener("input", (event) => {
  clearTimeout(typed);
  if (event.target.name === "text") typed = setTimeout(() => go(0, true), 250);
  else go(0, false);
});
form.addEventListener("submit", (event) => event.preventDefault());
const offset = () => parseInt(wanted().get("offset"), 10);
byId("newer").addEventListener("click", () => go(Math.max(0, offset() - LIMIT), false));
byId("older").addEventListener("click", () => go(offset() + LIMIT, false));
addEventListener("popstate", begin);
begin();
