import {best, cell, list} from "./list.js";
import {duration, kindOf, moment, node, progressBar} from "./page.js";

function hosts(job) {
  const first = job.hosts.slice(0, 4).join(", ");
  return job.hosts.length > 4 ? `${first} and ${job.hosts.length - 4} more` : first;
}

function row(job) {
  const state = node("span", {class: kindOf(job.state)}, job.state);
  const why = job.reason && !["RUNNING", "COMPLETED"].includes(job.state) ? job.reason : null;
  const done = job.tasks > 1 ? [`${job.tasks_completed} of ${job.tasks} tasks`,
    node("progress", {max: job.tasks, value: job.tasks_completed, "aria-label": "tasks completed"})] : [];
  return node("tr", {},
    node("th", {scope: "row"}, node("a", {href: `/jobs/${encodeURIComponent(job.key)}`}, job.name),
      node("span", {class: "under"}, `${job.id} · ${job.kind}${job.mine ? "" : ` · of ${job.user}`}`)),
    node("td", {"data-title": "state"}, state, why ? node("span", {class: "under"}, why.slice(0, 200)) : null),
    cell("progress", ...(job.progress ? progressBar(job.progress) : done)),
    cell("left", duration(job.progress && job.progress.seconds_left)),
    best(job.best),
    cell("by", job.strategy || ""),
    cell("hosts", hosts(job)),
    cell("submitted", moment(job.submitted)));
}

list({address: "/api/v1/jobs", rows: "jobs", row, id: (job) => (job.kind === "import" ? null : job.key), noMatch: "no job matches", none: "no jobs yet: cingulum submit CONFIG starts one"});
