// The first page: what runs, what needs attention, what ended.
import {ask, byId, duration, figure, follow, keepFocus, kindOf, measured, moment, named, node, progressBar, warn} from "./page.js";

// Of many figures the first of these are told.
const FIRST = ["auc", "mae", "dice", "accuracy", "r2"], SHOWN = 2;
const NONE = {
  running: "Nothing runs and nothing waits.", attention: "Nothing that failed or stopped is left undone.",
  ended: "Nothing has ended yet: cingulum submit CONFIG starts a job, mpirun -np 2 cingulum train CONFIG a run.",
};

function far(entry) {
  if (entry.tasks > 1) return [`${entry.tasks_completed} of ${entry.tasks} tasks`, node("progress", {max: entry.tasks, value: entry.tasks_completed, "aria-label": "tasks completed"})];
  if (!entry.progress) return [entry.reason];
  const left = duration(entry.progress.seconds_left);
  return [...progressBar(entry.progress), left ? node("span", {class: "under"}, `${left} left`) : null];
}

function judged(entry) {
  const names = FIRST.filter((name) => entry.figures[name]).slice(0, SHOWN);
  if (names.length) return names.map((name) => node("div", {}, `${named(name)} ${measured(entry.figures[name])}`));
  const {best} = entry;
  return best ? ["not evaluated", node("span", {class: "under"}, `best epoch ${best.epoch}: ${named(best.metric)} ${figure(best.value)}`)] : [""];
}

const why = (entry) => [entry.reason.slice(0, 200), entry.progress ? node("span", {class: "under"}, `epoch ${entry.progress.epoch} of ${entry.progress.epochs}`) : null];
const TOLD = {running: far, attention: why, ended: judged};

const row = (part) => (entry) => node("tr", {},
  node("th", {scope: "row"}, entry.page ? node("a", {href: entry.page}, entry.name) : entry.name, node("span", {class: "under"}, entry.what)),
  node("td", {}, node("span", {class: kindOf(entry.state)}, entry.state)),
  node("td", {}, ...TOLD[part](entry)),
  node("td", {class: "tight"}, moment(entry.changed)));

follow("/api/v1/home/events", async () => {
  const home = await ask("/api/v1/home");
  for (const part of Object.keys(TOLD)) {
    keepFocus(byId(part), () => byId(part).replaceChildren(...home[part].map(row(part))));
    byId(`${part}-box`).hidden = home[part].length === 0;
    byId(`${part}-none`).replaceChildren(...(home.more[part]
      ? [`${home.more[part]} more in the lists of `, node("a", {href: "/jobs"}, "jobs"), " and ", node("a", {href: "/runs"}, "runs"), "."]
      : home[part].length ? [] : [NONE[part]]));
  }
  warn(home.warnings);
});
