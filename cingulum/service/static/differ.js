// The settings of this run beside those of another one, which is chosen among the newest runs and jobs.
import {ask, byId, here, node} from "./page.js";

const NEWEST = 100;
let own = null;

export function watchDifferences(id) {
  own = id;
  if (byId("differ").open) offer();
}

async function offer() {
  const [runs, jobs] = await Promise.all([ask(`/api/v1/runs?limit=${NEWEST}`), ask(`/api/v1/jobs?limit=${NEWEST}`)]);
  const option = (id, words) => node("option", {value: id}, words);
  const group = (label, options) => (options.length ? node("optgroup", {label}, ...options) : null);
  const others = [
    group("Runs", runs.runs.filter((run) => run.id !== own).map((run) => option(run.id, run.name))),
    group("Jobs", jobs.jobs.filter((job) => job.kind === "train" && job.key !== own).map((job) => option(job.key, `${job.name} (${job.id})`))),
  ];
  const before = byId("other").value;
  byId("other").replaceChildren(option("", "choose"), ...others.filter(Boolean));
  byId("other").value = before;
  await show();
}

async function show() {
  const other = byId("other").value;
  byId("differ-box").hidden = byId("beside").hidden = true;
  byId("differing").textContent = "";
  if (!other) return;
  try {
    const asked = `${encodeURIComponent(own)},${encodeURIComponent(other)}`, found = await ask(`/api/v1/compare?runs=${asked}`);
    byId("beside").href = here(`/compare?runs=${asked}`);
    byId("beside").hidden = false;
    if (found.runs.length < 2) byId("differing").textContent = [...found.warnings, "Both are the same run."][0];
    else if (!found.keys.length) byId("differing").textContent = "All settings are the same.";
    else {
      const [here, there] = found.runs, said = (value) => (value === null ? "–" : value);
      byId("differ-other").textContent = there.name;
      byId("differ-rows").replaceChildren(...found.keys.map((key, place) => node("tr", {}, node("th", {scope: "row"}, key),
        node("td", {}, said(here.settings[place])), node("td", {}, said(there.settings[place])))));
      byId("differ-box").hidden = false;
    }
  } catch (error) { byId("differing").textContent = error.message; }
}

byId("differ").addEventListener("toggle", () => { if (byId("differ").open) offer(); });
byId("other").addEventListener("change", show);
