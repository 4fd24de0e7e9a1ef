import {best, cell, list} from "./list.js";
import {duration, kindOf, moment, node, progressBar} from "./page.js";

function row(run) {
  return node("tr", {},
    node("th", {scope: "row"}, node("a", {href: `/runs/${run.id}`}, run.name)),
    cell("state", node("span", {class: kindOf(run.state)}, run.state)),
    cell("progress", ...(run.progress ? progressBar(run.progress) : [])),
    cell("left", duration(run.progress && run.progress.seconds_left)),
    best(run.best),
    cell("by", run.strategy || ""),
    cell("started", moment(run.started)));
}

list({address: "/api/v1/runs", rows: "runs", row, id: (run) => run.id, noMatch: "no run matches", none: "no runs here: cingulum serve --runs FOLDER shows those of another folder"});
