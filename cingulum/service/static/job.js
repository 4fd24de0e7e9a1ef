import {watchDifferences} from "./differ.js";
import {showInsight, watchInsight} from "./insight.js";
import {beginLog, showLog} from "./log.js";
import {ask, byId, duration, fact, follow, isActive, kindOf, moment, node, plural, warn} from "./page.js";
import {explained} from "./reasons.js";
import {howFar, links, showCurves, showFiles} from "./run_view.js";

const KEY = encodeURIComponent(document.body.dataset.job);
const BASE = `/api/v1/jobs/${KEY}`;
let task = Number(document.body.dataset.task), leave = null;

function facts(job, run, related) {
  const one = job.task_list[task], asked = job.resources, found = howFar(run);
  const add = (name, ...inside) => found.push(...fact(name, ...inside));
  add("Strategy", job.strategy);
  add("Hosts", one.hosts.join(", "));
  add("Started", moment(one.started));
  add("Ended", moment(one.ended));
  add("Exit code", one.exit_code === null ? "" : String(one.exit_code));
  add("Started again", one.restarts ? plural(one.restarts, "time") : "");
  add("Submitted", `${moment(job.submitted)} by ${job.user}`);
  add("Shared with", job.shared_with.join(", "));
  add("Launcher", `${job.launcher} on ${job.site}`);
  add("Asks for (hosts × ranks)", [`${asked.nodes} × ${asked.ranks_per_node} ranks`, asked.gpus_per_node && `${plural(asked.gpus_per_node, "GPU")} per host`, asked.minutes && duration(60 * asked.minutes)].filter(Boolean).join(", "));
  add("After", ...(related.before.length ? links(related.before) : [job.after.join(", ")]));
  add("Before", ...links(related.then));
  add("Same run folder", ...links(related.jobs));
  add("Variables", job.environment.join(", "));
  add("Run folder", ...(related.run ? [node("a", {href: related.run}, run ? run.folder : "run")] : [run ? run.folder : ""]));
  byId("facts").replaceChildren(...found);
}

function history(job) {
  const many = job.tasks > 1;
  const changes = job.changes.filter((one) => one.task === task).map((one) => ({time: one.time, inside: [
    node("b", {class: kindOf(one.state)}, one.state), one.exit_code === null ? "" : ` exit code ${one.exit_code}`,
    one.restarts ? ` (start ${one.restarts + 1})` : "", one.reason ? ` ${one.reason}` : ""]}));
  const actions = job.actions.filter((one) => one.task === null || one.task === task).map((one) => ({time: one.time, inside: [
    node("b", {}, one.action), ` asked for by ${one.who}${many && one.task !== null ? `, task ${one.task}` : ""}`]}));
  // Stable: what was asked for comes before what came of it in the same second.
  const all = [...actions, ...changes].sort((a, b) => a.time.localeCompare(b.time));
  const failed = job.task_list[task].failures.map((line) => node("li", {}, node("b", {class: "bad"}, "failed start "), line.replaceAll("\t", ", ")));
  byId("history").replaceChildren(...all.map((one) => node("li", {}, node("time", {datetime: one.time}, moment(one.time, "medium")), ...one.inside)), ...failed);
}

function details(job, run) {
  byId("command").textContent = job.task_list[task].command.join(" ");
  showFiles(run, `/jobs/${KEY}/report?task=${task}`);
  if (job.tasks > 1) {
    byId("tasks").replaceChildren(...job.task_list.map((one) => node("tr", {}, node("th", {scope: "row"}, one.id),
      node("td", {}, node("span", {class: kindOf(one.state)}, one.state)), node("td", {}, one.hosts.join(", ")), node("td", {}, one.reason))));
  }
}

async function show() {
  const job = await ask(BASE), one = job.task_list[task];
  const related = await ask(`${BASE}/related?task=${task}`);
  let run = null;
  try {
    run = await ask(`${BASE}/run?task=${task}`);
    showCurves(await ask(`${BASE}/curves?task=${task}`));
  } catch { showCurves(null); }  // no run folder yet
  byId("state").className = kindOf(one.state);
  byId("state").textContent = one.state;
  byId("reason").textContent = explained(one.reason);
  facts(job, run, related);
  history(job);
  details(job, run);
  if (byId("cancel")) byId("cancel").hidden = !isActive(job.state);
  warn(job.warnings);
  document.dispatchEvent(new CustomEvent("job", {detail: job}));
  await showInsight();
  await showLog();
}

function begin() {
  if (leave) leave();
  beginLog(BASE, task);
  watchInsight((what) => `${BASE}/${what}?task=${task}`);
  watchDifferences(document.querySelector("#task") ? `${KEY}_${task}` : KEY);
  leave = follow(`${BASE}/events?task=${task}`, show);
}

if (byId("task")) byId("task").addEventListener("change", (event) => { task = Number(event.target.value); begin(); });
if (byId("cancel")) {
  byId("cancel").addEventListener("click", () => byId("sure").showModal());
  byId("no").addEventListener("click", () => byId("sure").close());
  byId("yes").addEventListener("click", async () => {
    byId("sure").close();
    byId("said").textContent = "";
    try { await ask(`${BASE}/cancel`, {method: "POST"}); } catch (error) { byId("said").textContent = error.message; }
    await show();
  });
}
begin();
