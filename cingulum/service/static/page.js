// What pages share: nodes whose text is always text, questions to the API, events, and how values read.

// Where the pages are, behind a proxy that has others, too: addresses of ours begin there.
export const here = (address) => `${document.body.dataset.root}${address}`;

export function node(name, facts = {}, ...inside) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(facts)) {
    if (value !== null && value !== undefined) made.setAttribute(key, key === "href" ? here(value) : value);
  }
  made.append(...inside.filter((one) => one !== null));
  return made;
}

// A name and what is said of it, for a list of facts; nothing where there is nothing to say.
export function fact(name, ...inside) {
  return inside.some((part) => part) ? [node("div", {}, node("dt", {}, name), node("dd", {}, ...inside))] : [];
}

export const byId = (id) => document.getElementById(id);

export async function ask(address, options = {}) {
  const answer = await fetch(here(address), {...options, headers: {"X-Cingulum": "1", Accept: "application/json", ...options.headers}});
  const found = answer.status === 204 ? null : await answer.json();
  if (answer.status === 401) location.reload();
  if (!answer.ok) throw new Error([found.error.message, found.error.cure].filter(Boolean).join(" "));
  return found;
}

// Makes the inside of a node anew, and gives the keyboard back to what had it there: a link, or an input by its value.
export function keepFocus(box, make) {
  const before = box.contains(document.activeElement) ? document.activeElement : null;
  const isSame = (one) => one.tagName === before.tagName && one.getAttribute("href") === before.getAttribute("href") && one.value === before.value;
  make();
  const same = before && [...box.querySelectorAll("a, input, button")].find(isSame);
  if (same) same.focus({preventScroll: true});
}

const RETRY_MS = 3000;

// Calls `changed` at first and whenever the service says that there is more to tell, one call at a time, until
// the function that it returns is called.
export function follow(address, changed) {
  const live = byId("live");
  let busy = false, again = false;
  async function tell() {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      try { await changed(); } catch (error) { warn([error.message]); }
    } while (again);
    busy = false;
  }
  function tellState(isLive, text) {
    live.classList.toggle("on", isLive);
    live.textContent = text;
  }
  let events = null, retry = 0;
  function close() {
    clearTimeout(retry);
    if (events) events.close();
  }
  const openLater = () => { retry = setTimeout(() => { tell(); open(); }, RETRY_MS); };
  // Who may ask no more gets the page that asks for a token; who may do something else than before, other buttons.
  async function askAgain() {
    close();
    tellState(false, "asking whether you may still look");
    try { await ask("/api/v1/session"); location.reload(); } catch (error) { warn([error.message]); openLater(); }
  }
  function open() {
    close();
    events = new EventSource(here(address));
    events.addEventListener("changed", tell);
    events.addEventListener("refused", askAgain);
    events.onopen = () => tellState(true, "live");
    events.onerror = () => {
      tellState(false, "no connection, trying again");
      // A lost connection comes back by itself; an answer that is an error does not.
      if (events.readyState === EventSource.CLOSED) openLater();
    };
  }
  // A browser has six connections for all its pages here: one that nobody sees needs none.
  const seen = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", seen);
  open();
  return () => { document.removeEventListener("visibilitychange", seen); close(); };
}

// Where states are out of date, what waits or runs is marked: it may be in another one by now.
export function warn(warnings, isOld = warnings.length > 0) {
  document.body.classList.toggle("unheard", isOld);
  byId("warnings").replaceChildren(...warnings.map((one) => node("p", {class: "banner"}, one)));
}

const WAITS = ["PENDING", "SUBMITTING", "REQUEUED", "SUSPENDED", "CONFIGURING", "COMPLETING"];
export const ENDED_WELL = ["COMPLETED", "CANCELLED", "STOPPED"];
export const isActive = (state) => state === "RUNNING" || WAITS.includes(state);

export function kindOf(state) {
  return `state ${state} ${WAITS.includes(state) ? "wait" : isActive(state) || ENDED_WELL.includes(state) ? "" : "bad"}`;
}

export function figure(value) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value)) return String(value);
  return Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(2);
}

const NAMES = {auc: "AUC", pr_auc: "average precision", ece: "calibration error", brier: "Brier score", mae: "MAE", rmse: "RMSE", r2: "R²", pearson: "Pearson r", dice: "mean Dice"};

// A figure's name for people.
export const named = (name) => NAMES[name] || name.replaceAll("_", " ");

// A figure of an evaluation and its interval, with as many digits as that bears: two of half of it.
export function digits({value, interval}) {
  if (!interval || interval[0] === interval[1]) return [Math.abs(value) < 100 ? value.toPrecision(2) : String(Math.round(value)), ""];
  const places = Math.min(6, Math.max(0, 1 - Math.floor(Math.log10((interval[1] - interval[0]) / 2))));
  return [value.toFixed(places), `(${interval[0].toFixed(places)} to ${interval[1].toFixed(places)})`];
}

export const measured = (one) => digits(one).join(" ").trim();

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const left = Math.round(seconds), hours = Math.floor(left / 3600), minutes = Math.floor((left % 3600) / 60);
  if (hours >= 24) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min` : `${left} s`;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (count >= 1024 && unit < 4) { count /= 1024; unit += 1; }
  return `${unit ? count.toPrecision(3) : count} ${units[unit]}`;
}

export function moment(text, timeStyle = "short") {
  return text ? new Date(text).toLocaleString(undefined, {dateStyle: "medium", timeStyle}) : "";
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

export function progressBar(progress) {
  const part = Math.round(100 * progress.part);
  const bar = node("progress", {max: 100, value: part, "aria-label": "progress"});
  return [`epoch ${progress.epoch} of ${progress.epochs}`, bar];
}
