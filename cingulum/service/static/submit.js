// The form: YAML, keys beside it, options of the launch; checked while one types, and shown before it is sent.
import {ask, byId, here, node, plural} from "./page.js";

const CHECK_MS = 400, JSON_BODY = {"Content-Type": "application/json"};
const changes = new Map(), inputs = new Map();
let timer = 0, newest = 0, checked = null, key = null;

const post = (address, body, headers = {}) =>
  ask(address, {method: "POST", headers: {...JSON_BODY, ...headers}, body: JSON.stringify(body)});

function asked() {
  const found = {config: byId("yaml").value, overrides: [...changes].map(([name, value]) => `${name}=${value}`)};
  for (const input of byId("form").elements) {
    if (!input.name) continue;
    if (input.type === "checkbox") found[input.name] = input.checked;
    else if (input.value.trim() === "") continue;
    else if ("list" in input.dataset) found[input.name] = input.value.trim().split(/\s+/);
    else found[input.name] = input.type === "number" ? Number(input.value) : input.value.trim();
  }
  return found;
}

function fill(given) {
  byId("yaml").value = given.config;
  for (const input of byId("form").elements) {
    const value = given[input.name];
    if (!input.name || value === undefined) continue;
    if (input.type === "checkbox") input.checked = value;
    else input.value = value === null ? "" : Array.isArray(value) ? value.join(" ") : value;
  }
}

function problem(error) {
  for (const [name, input] of inputs) input.toggleAttribute("aria-invalid", !!error && error.key === name);
  byId("yaml").toggleAttribute("aria-invalid", !!error && error.code === "CONFIG_INVALID");
  byId("problem").replaceChildren(...(error ? [node("p", {class: "bad"}, node("b", {}, error.key || error.code), ` ${error.message}`),
    node("p", {class: "hint"}, error.cure || "")] : []));
}

function job(one, number, all) {
  const wants = one.resources, words = [`${wants.nodes} × ${wants.ranks_per_node} ranks`, wants.gpus_per_node && `${plural(wants.gpus_per_node, "GPU")} per host`,
    wants.memory_mib ? `${wants.memory_mib} MiB per host` : "memory as the site says", wants.minutes ? `${wants.minutes} min` : "time as the site says"];
  const parts = Object.entries(one.files).map(([name, text]) => node("details", {}, node("summary", {}, name), node("pre", {}, text)));
  return node("section", {class: "card"}, node("h3", {}, `${number + 1} of ${all.length}: ${one.name} (${one.kind})`),
    node("p", {}, words.filter(Boolean).join(", "), one.tasks.length > 1 ? `, ${one.tasks.length} tasks` : "", one.after.length ? `, after ${one.after.join(", ")}` : ""),
    node("pre", {}, one.command.join(" ")), node("details", {}, node("summary", {}, "Command of a rank"), node("pre", {}, one.tasks[0].join(" "))), ...parts);
}

function show(said) {
  checked = said;
  problem(said.error);
  for (const [name, input] of inputs) input.placeholder = said.values[name] ?? input.placeholder;
  const whole = said.config ? [node("details", {}, node("summary", {}, "All of the configuration"), node("pre", {}, said.config))] : [];
  const needed = said.predicted ? [node("p", {}, said.predicted.said)] : [];
  if (said.predicted?.warning) needed.push(node("p", {class: "banner"}, said.predicted.warning));
  byId("dry").replaceChildren(...needed, ...said.jobs.map(job), ...whole);
  byId("submit").disabled = byId("plan").disabled = said.error !== null;
  byId("write").hidden = changes.size === 0 || said.config === null;
}

async function check() {
  const mine = ++newest;
  try {
    const said = await post("/api/v1/jobs/check", asked());
    if (mine === newest) show(said);
  } catch (error) {
    if (mine === newest) { problem({code: "", message: error.message}); byId("submit").disabled = byId("plan").disabled = true; }
  }
}

function changed() {
  newest += 1;
  byId("submit").disabled = byId("plan").disabled = true;
  byId("outlook").hidden = true;
  byId("changes").replaceChildren(...[...changes].map(([name, value]) => node("li", {}, `${name}=${value}`)));
  clearTimeout(timer);
  timer = setTimeout(check, CHECK_MS);
}

function field(one) {
  const id = `key-${one.key}`;
  const bounds = {min: one.minimum, max: one.maximum, step: one.kind === "number" ? "any" : null};
  const input = one.choices.length && !one.strategies.includes("own code") ?
    node("select", {id}, node("option", {value: ""}, "as in the YAML"), ...one.choices.map((name) => node("option", {}, name)),
      ...(one.optional ? [node("option", {}, "null")] : [])) :
    node("input", {id, ...(["integer", "number"].includes(one.kind) && !one.optional ? {type: "number", ...bounds} : {})});
  input.addEventListener("input", () => {
    if (input.value === "") changes.delete(one.key); else changes.set(one.key, input.value);
    changed();
  });
  inputs.set(one.key, input);
  return node("div", {class: "field", "data-text": `${one.key} ${one.description}`.toLowerCase().replaceAll("_", " ")},
    node("label", {for: id}, node("code", {}, one.key), one.strategies.length ? ` ${one.strategies.join(", ")}` : ""), input,
    node("p", {class: "hint"}, one.description));
}

function sections(fields) {
  const found = new Map();
  for (const one of fields) {
    const name = one.key.includes(".") ? one.key.split(".").slice(0, one.key.startsWith("train.strategy.") || one.key.startsWith("data.augment.") ? 2 : 1).join(".") : "run";
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(field(one));
  }
  return [...found].map(([name, inside]) => node("details", {open: name === "run" ? "" : null}, node("summary", {}, name), ...inside));
}

function search() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const box of byId("fields").children) {
    let hits = 0;
    for (const one of box.querySelectorAll(".field")) {
      one.hidden = !words.every((word) => one.dataset.text.includes(word));
      hits += one.hidden ? 0 : 1;
    }
    box.hidden = hits === 0;
    if (words.length) box.open = hits > 0;
  }
}

// A new key for each submission; the same one where an answer was lost, so that nothing is submitted twice.
const drawn = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (one) => one.toString(16).padStart(2, "0")).join("");

async function sure() {
  key = drawn();
  byId("yes").disabled = true;
  byId("sure-title").textContent = checked.jobs.length > 1 ? `Submit ${checked.jobs.length} jobs?` : "Submit this job?";
  byId("sure-jobs").replaceChildren(...checked.jobs.map((one) => node("li", {}, `${one.name} (${one.kind}), ${one.resources.nodes} × ${one.resources.ranks_per_node} ranks`)));
  byId("sure-queue").textContent = "The queue is asked ...";
  byId("sure").showModal();
  try {
    const said = await post("/api/v1/jobs/check?queue=true", asked());
    byId("sure-queue").textContent = said.error ? [said.error.message, said.error.cure].filter(Boolean).join(" ") : said.queue.join(" ") || "The launcher would take it.";
    byId("yes").disabled = said.error !== null;
  } catch (error) { byId("sure-queue").textContent = error.message; }
}

async function submit() {
  byId("yes").disabled = true;
  byId("sure-queue").textContent = "Submitting ...";
  try {
    const made = (await post("/api/v1/jobs", asked(), {"Idempotency-Key": key})).jobs;
    location.assign(here(`/jobs/${encodeURIComponent((made.find((one) => ["train", "crossval"].includes(one.kind)) || made[0]).key)}`));
  } catch (error) {
    byId("sure-queue").textContent = error.message;
    if (error instanceof TypeError) byId("yes").disabled = false;  // no answer: ask again by the same key
  }
}

async function plan() {
  byId("plan").disabled = true;
  byId("outlook").hidden = false;
  byId("outlook").textContent = "Planned; this takes seconds ...";
  try { byId("outlook").textContent = (await post("/api/v1/jobs/plan", asked())).text; } catch (error) { byId("outlook").textContent = error.message; }
  byId("plan").disabled = byId("submit").disabled;
}

function write() {
  byId("yaml").value = checked.config;
  for (const name of changes.keys()) inputs.get(name).value = "";
  changes.clear();
  changed();
}

async function begin() {
  byId("fields").replaceChildren(...sections((await ask("/api/v1/jobs/schema")).fields));
  const from = new URLSearchParams(location.search).get("from");
  if (from) {
    try { fill(await ask(`/api/v1/jobs/${encodeURIComponent(from)}/submission`)); changed(); } catch (error) { problem({code: "", message: error.message}); }
  }
}

byId("form").addEventListener("submit", (event) => event.preventDefault());
byId("form").addEventListener("input", (event) => { if (event.target.name || event.target === byId("yaml")) changed(); });
byId("search").addEventListener("input", search);
byId("write").addEventListener("click", write);
byId("plan").addEventListener("click", plan);
byId("submit").addEventListener("click", sure);
byId("no").addEventListener("click", () => byId("sure").close());
byId("yes").addEventListener("click", submit);
begin();
