// A list that is filtered, searched, sorted and paged by its address, and follows what changes.
import {choice} from "./choice.js";
import {ask, byId, figure, follow, keepFocus, node, warn} from "./page.js";

const LIMIT = 50;
const form = byId("filters");
const FIELDS = ["text", "state", "whose", "sort", "order"].filter((name) => form.elements[name]);
let leave = null, what = null;

// `address` of the API, `rows` of its answer, `row` that makes one of the table, `id` of one for comparing, or null where it
// cannot be compared, what to say where there is `none`.
export function list(told) {
  what = told;
  begin();
}

// The address has what is filtered, searched and sorted, so that it can be kept and sent.
function wanted() {
  const given = new URLSearchParams(location.search), query = new URLSearchParams();
  for (const name of FIELDS) if (given.get(name)) query.set(name, given.get(name));
  const offset = parseInt(given.get("offset") || "0", 10);
  query.set("offset", String(offset > 0 ? offset : 0));
  query.set("limit", String(LIMIT));
  return query;
}

export function cell(title, ...inside) {
  return node("td", {"data-title": title, class: title === "hosts" ? "hosts" : "tight"}, ...inside);
}

export function best(found) {
  return cell("best", ...(found ? [`${found.metric} ${figure(found.value)}`, node("span", {class: "under"}, `epoch ${found.epoch}`)] : []));
}

async function show() {
  const page = await ask(`${what.address}?${wanted()}`), rows = page[what.rows];
  keepFocus(byId("rows"), () => byId("rows").replaceChildren(...rows.map((one) => {
    const made = what.row(one);
    if (what.id(one)) made.querySelector("th").prepend(choice.tick(what.id(one), one.name));
    return made;
  })));
  const last = page.offset + rows.length;
  byId("count").textContent = page.total ? `${page.offset + 1} to ${last} of ${page.total}`
    : form.text.value || FIELDS.some((name) => ["state", "whose"].includes(name) && form.elements[name].selectedIndex) ? what.noMatch : what.none;
  byId("newer").disabled = page.offset === 0;
  byId("older").disabled = last >= page.total;
  warn(page.warnings);
}

function begin() {
  const query = new URLSearchParams(location.search);
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (document.activeElement !== field) field.value = query.get(name) || (field.options ? field.options[0].value : "");
  }
  if (leave) leave();
  leave = follow(`${what.address}/events`, show);
}

function go(offset, replace) {
  const query = new URLSearchParams();
  for (const name of FIELDS) {
    const field = form.elements[name];
    if (field.value && !(field.options && field.selectedIndex === 0)) query.set(name, field.value);
  }
  if (offset > 0) query.set("offset", String(offset));
  const address = `${location.pathname}${query.size ? `?${query}` : ""}`;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  begin();
}

let typed = 0;
form.addEventListener("input", (event) => {
  clearTimeout(typed);
  if (event.target.name === "text") typed = setTimeout(() => go(0, true), 250);
  else go(0, false);
});
form.addEventListener("submit", (event) => event.preventDefault());
const offset = () => parseInt(wanted().get("offset"), 10);
byId("newer").addEventListener("click", () => go(Math.max(0, offset() - LIMIT), false));
byId("older").addEventListener("click", () => go(offset() + LIMIT, false));
addEventListener("popstate", begin);
byId("all").addEventListener("click", async () => {
  const query = wanted();
  query.set("offset", "0");
  query.set("limit", "200");
  choice.add((await ask(`${what.address}?${query}`))[what.rows].map(what.id).filter(Boolean));
  await show();
});
byId("none").addEventListener("click", async () => { choice.clear(); await show(); });
