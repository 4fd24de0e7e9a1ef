// What runs, what waits and why, and what is free, as the scheduler told it last.
import {ask, byId, bytes, fact, figure, follow, keepFocus, kindOf, moment, node, plural, warn} from "./page.js";
import {explained} from "./reasons.js";

const form = byId("filters"), MIB = 2 ** 20;
const cell = (title, ...inside) => node("td", {"data-title": title}, ...inside);
const of = (free, all) => `${free} of ${all}`;

function job(one) {
  const name = one.name || one.id;
  const asked = [plural(one.nodes, "host"), plural(one.cpus, "CPU"), one.gpus ? plural(one.gpus, "GPU") : null].filter(Boolean).join(", ");
  const when = one.waits ? (one.expected ? `expected ${moment(one.expected)}` : `since ${moment(one.submitted)}`) : `since ${moment(one.started)}`;
  return node("tr", {class: one.mine ? "mine" : null},
    node("th", {scope: "row"}, one.page ? node("a", {href: one.page}, name) : name, node("span", {class: "under"}, [one.name ? one.id : null, one.user].filter(Boolean).join(" · "))),
    cell("state", node("span", {class: kindOf(one.state)}, one.state), one.reason ? node("span", {class: "under"}, explained(one.reason)) : null),
    cell("asks for", asked, one.partition ? node("span", {class: "under"}, one.partition) : null),
    cell("hosts", one.hosts), cell("when", when), cell("at most", one.limit));
}

function host(one) {
  return node("tr", {},
    node("th", {scope: "row"}, one.name),
    cell("state", node("span", {class: one.usable ? "state RUNNING" : "state bad"}, one.state), one.reason ? node("span", {class: "under"}, one.reason) : null),
    cell("free GPUs", one.gpus ? of(one.gpus_free, one.gpus) : ""), cell("free CPUs", of(one.cpus_free, one.cpus)),
    cell("free memory", one.memory_mib === null ? "" : of(bytes(one.memory_free_mib * MIB), bytes(one.memory_mib * MIB))),
    cell("partitions", one.partitions.join(", ")));
}

function facts({totals, mine}) {
  const share = (one) => [one.entitled === null ? null : `entitled to ${figure(one.entitled)}`, one.used === null ? null : `has used ${figure(one.used)}`,
    one.factor === null ? null : `factor ${figure(one.factor)}`].filter(Boolean).join(", ");
  return [
    ...(totals.gpus ? fact("Free GPUs", of(totals.gpus_free, totals.gpus)) : []), ...fact("Free CPUs", of(totals.cpus_free, totals.cpus)),
    ...fact("Usable hosts", of(totals.hosts_usable, totals.hosts)), ...fact("My jobs", `${mine.running} running, ${mine.waiting} waiting`),
    ...fact("I have now", [mine.gpus ? plural(mine.gpus, "GPU") : null, plural(mine.cpus, "CPU")].filter(Boolean).join(", ")),
    ...mine.shares.flatMap((one) => fact(`My share, account ${one.account}`, share(one)))];
}

async function show() {
  const query = new URLSearchParams({text: form.elements.text.value, mine: form.elements.mine.checked});
  const told = await ask(`/api/v1/cluster?${query}`);
  byId("as-of").textContent = told.as_of ? `${told.scheduler}, as of ${new Date(told.as_of).toLocaleTimeString()}${told.stale ? ": out of date" : ""}` : "asking …";
  for (const name of ["facts", "queue", "hosts"]) byId(name).classList.toggle("stale", told.stale);
  byId("facts").replaceChildren(...facts(told));
  const some = (shown, total, word) => (total > shown ? `${shown} of ${total} ${word}: search for others` : plural(total, word));
  byId("queue-count").textContent = some(told.queue.length, told.queue_total, "job");
  byId("hosts-count").textContent = some(told.hosts.length, told.hosts_total, "host");
  keepFocus(byId("queue"), () => byId("queue").replaceChildren(...told.queue.map(job)));
  byId("hosts").replaceChildren(...told.hosts.map(host));
  warn([...(told.stale ? ["What follows is out of date."] : []), ...told.warnings], told.stale);
}

let typed = 0;
form.addEventListener("input", () => { clearTimeout(typed); typed = setTimeout(show, 250); });
form.addEventListener("submit", (event) => event.preventDefault());
follow("/api/v1/cluster/events", show);
