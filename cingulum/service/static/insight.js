// Where the time of a run goes, and who holds what of a network that is divided; asked for when they are opened.
import {ask, byId, bytes, figure, node} from "./page.js";

const COLOURS = 8, LEAST_SHARE = 0.03;
let address = null;

export function watchInsight(made) {
  address = made;
  byId("time-inside").replaceChildren();
  byId("placement-inside").replaceChildren();
}

// Brings up to date what is open.
export async function showInsight() {
  for (const [name, draw] of [["time", drawTime], ["placement", drawPlacement]]) {
    if (!byId(name).open) continue;
    const inside = byId(`${name}-inside`);
    try { inside.replaceChildren(...draw(await ask(address(name)))); } catch (error) { inside.replaceChildren(node("p", {}, error.message)); }
  }
}

const percent = (share) => `${Math.round(100 * share)} %`;
const ms = (seconds) => `${figure(+(1000 * seconds).toPrecision(4))}`;

function table(name, header, rows) {
  const cells = (row) => row.map((one, place) => (place ? node("td", {}, one) : node("th", {scope: "row"}, one)));
  return node("div", {class: "scroll", tabindex: 0, role: "region", "aria-label": name}, node("table", {}, node("caption", {}, name),
    node("thead", {}, node("tr", {}, ...header.map((one) => node("th", {scope: "col"}, one)))),
    node("tbody", {}, ...rows.map((row) => node("tr", {}, ...cells(row))))));
}

const listed = (lines) => node("ul", {}, ...lines.map((line) => node("li", {}, line)));

function drawTime(told) {
  const parts = told.ranks.length ? Object.keys(told.ranks[0].parts) : [];
  const slow = told.slowest_rank === null ? [] : [node("p", {}, `Rank ${told.slowest_rank} needs most time for itself: ${figure(told.slowest_ratio)} times that of the others.`)];
  return [
    node("p", {}, node("b", {}, told.summary)), node("p", {class: "hint"}, `Of the newest steps; a step takes ${ms(told.step_s)} ms.`), listed(told.evidence), ...slow,
    table("A step would take less by, at most, without", ["bottleneck", "share of a step"], Object.entries(told.gains).sort((a, b) => b[1] - a[1]).map(([name, gain]) => [name, percent(gain)])),
    ...(told.proposals.length ? [table("To try, in a new run", ["setting", "now", "why"], told.proposals.map((one) => [one.change, one.now, one.why]))] : []),
    table(`Ranks, ms per step${told.ranks_left_out ? `; ${told.ranks_left_out} quicker ones are left out` : ""}`, ["rank", "host", "own time", ...parts.map((part) => part.replaceAll("_", " "))],
      told.ranks.map((one) => [String(one.rank), one.host, ms(one.own), ...parts.map((part) => ms(one.parts[part]))])),
    ...(told.hosts.length ? [table("Hosts, last epoch", ["host", "ranks", "processor", "memory", "sent a step", "received a step", "GPUs"],
      told.hosts.map((one) => [one.host, String(one.ranks), `${Math.round(one.cpu_percent)} % of ${100 * one.cores} %`, bytes(one.memory_bytes),
        bytes(Math.round(one.sent_per_step)), bytes(Math.round(one.received_per_step)), one.gpus.join(", ") || "none"]))] : []),
  ];
}

function strip(row) {
  const words = row.parts.map((part) => `rank ${part.rank}: ${percent(part.share)}`);
  const bar = node("div", {class: "strip", role: "img", "aria-label": words.join(", ")}, ...row.parts.map((part, place) => {
    const one = node("i", {class: `f${1 + (part.rank % COLOURS)}${part.rank >= COLOURS ? " again" : ""}`, title: words[place]},
      part.share >= LEAST_SHARE * String(part.rank).length ? String(part.rank) : "");
    one.style.flexGrow = String(part.share);
    return one;
  }));
  return node("div", {class: "held"}, node("p", {}, node("b", {}, row.first), row.last === row.first ? "" : ` to ${row.last}`), bar, node("p", {class: "hint"}, row.how));
}

function drawPlacement({placement, rank_header: ranks, rule_header: rules, reason_header: reasons}) {
  const {matrix, reasons: why} = placement;
  const to = matrix.map((_, place) => `to ${place}`);
  return [
    node("p", {}, `The network is divided over ranks: ${placement.way}.`),
    node("p", {class: "hint"}, "A row for operations that are divided alike; each colour is a rank, each width its share."),
    ...placement.rows.map(strip),
    ...(placement.rows_left_out ? [node("p", {class: "hint"}, `${placement.rows_left_out} more rows are in plan.json.`)] : []),
    ...(why ? [table("Why it is divided so", rules, why.rules), table("Layers that are cut alike", reasons, why.rows)] : []),
    table(`What each rank holds${placement.ranks_left_out ? `; ${placement.ranks_left_out} more are in plan.json` : ""}`, ranks, placement.ranks),
    ...(matrix.length ? [table("Bytes of an update: rows send, columns receive", ["rank", ...to], matrix.map((row, place) => [String(place), ...row.map(([words]) => words)]))] : []),
    ...(placement.pairs.length ? [table("Pairs that send most in an update", ["from rank", "to rank", "bytes"], placement.pairs)] : []),
  ];
}

for (const name of ["time", "placement"]) byId(name).addEventListener("toggle", showInsight);
