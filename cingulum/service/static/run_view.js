// What the pages of a job and of a run show of a run folder.
import {chart} from "./chart.js";
import {byId, bytes, duration, fact, figure, here, measured, moment, named, node, progressBar} from "./page.js";

const FIRST = ["loss", "accuracy", "mae", "dice", "val_auc", "learning_rate", "samples_per_second"];
let curves = null;

// Links to jobs, each with its state.
export function links(jobs) {
  return jobs.flatMap((job, place) => [place ? ", " : "", node("a", {href: job.page}, `${job.name} (${job.id})`), ` ${job.state}`]);
}

export function howFar(run) {
  const found = [], {progress, best} = run || {};
  if (progress) found.push(...fact("Progress", ...progressBar(progress)), ...fact("Time left", duration(progress.seconds_left)));
  if (best) {
    const others = Object.entries(best.values).filter(([name]) => name.startsWith("val_") && name !== best.metric);
    found.push(...fact("Best epoch", String(best.epoch), ...[[best.metric, best.value], ...others].map(([name, value]) => node("div", {}, `${name.replaceAll("_", " ")} ${figure(value)}`))));
  }
  const figures = Object.entries((run && run.figures) || {});
  if (figures.length) found.push(...fact("On test subjects", ...figures.map(([name, one]) => node("div", {}, `${named(name)} ${measured(one)}`))));
  return found;
}

export function showFiles(run, report) {
  byId("config").textContent = (run && run.config) || "no configuration yet";
  const found = (run && run.checkpoints) || [];
  byId("checkpoints").replaceChildren(...(found.length ? found.map((one) => node("li", {}, `step ${one.step}, ${bytes(one.bytes)}, ${moment(one.time * 1000)}`)) : [node("li", {}, "none")]));
  byId("report").hidden = !(run && run.has_report);
  byId("report").href = here(report);
}

export function showCurves(found) {
  curves = found;
  draw();
}

function draw() {
  if (!curves) return;
  const options = {weight: Number(byId("smooth").value), log: byId("log").checked};
  const {epochs, steps} = curves, x = epochs.epoch || [], used = new Set(["epoch", "step", "start", "seconds", "input_wait_s", "slowest_rank", "slowest_ratio", "energy_j"]);
  const charts = [];
  const add = (title, names, of = epochs, at = x, unit = "epoch") => {
    const lines = names.filter((name) => of[name]).map((name) => ({name, values: of[name]}));
    if (lines.length) charts.push(chart(title, at, lines, {...options, unit}));
  };
  for (const name of [...FIRST, ...Object.keys(epochs)]) {
    if (used.has(name) || !epochs[name]) continue;
    used.add(name).add(`val_${name}`);
    add(name.replaceAll("_", " "), [name, `val_${name}`]);
  }
  add("seconds per step", ["seconds", "exposed", "input_wait"], steps, steps.step, "step");
  const found = charts.filter(Boolean);
  byId("charts").replaceChildren(...found);
  byId("curves").hidden = !found.length;
}

byId("smooth").addEventListener("input", draw);
byId("log").addEventListener("change", draw);
