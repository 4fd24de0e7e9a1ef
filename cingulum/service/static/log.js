// The log of a task: its end, which follows what is written, parts before and after, and lines that hold a text.
import {ask, byId, bytes, node} from "./page.js";

const PART = 65536, MOST = 2000000, BEFORE = 4096;
let base = null, task = 0, log = {from: null, next: null, size: 0}, search = null;

export function beginLog(address, number) {
  [base, task] = [address, number];
  forget();
  byId("log-matches").replaceChildren();
  byId("log-matches").hidden = byId("more-matches").hidden = true;
  byId("log-found").textContent = "";
}

function forget() {
  log = {from: null, next: null, size: 0};
  byId("log-text").replaceChildren();
}

const part = (offset, limit = PART) => ask(`${base}/log?task=${task}&offset=${offset}&limit=${limit}`);

function write(found, where) {
  const text = byId("log-text");
  if (where === "before") text.prepend(found.text); else text.append(found.text);
  // A page that follows for days must not grow without end.
  while (where !== "before" && text.textContent.length > MOST && text.childNodes.length > 1) {
    log.from += new TextEncoder().encode(text.firstChild.data).length;
    text.firstChild.remove();
  }
}

function tell(size) {
  log.size = size;
  byId("earlier").hidden = !log.from;
  byId("later").hidden = byId("follow").checked || log.next === null || log.next >= size;
  byId("log-size").textContent = bytes(size);
}

async function more() {
  const found = await part(log.next ?? -PART);
  if (found.size < log.next) { forget(); return true; } // a new file
  log.from ??= found.offset;
  log.next = found.next;
  if (found.text) write(found, "after");
  tell(found.size);
  return Boolean(found.text) && found.next < found.size;
}

export async function showLog() {
  const follows = byId("follow").checked;
  try {
    if (!follows && log.next !== null) { tell((await part(log.next, 1)).size); return; }
    while (await more() && byId("follow").checked);
    if (follows) byId("log-text").scrollTop = byId("log-text").scrollHeight;
  } catch (error) { byId("log-size").textContent = error.message; }
}

async function earlier() {
  const begin = Math.max(0, log.from - PART);
  byId("follow").checked = false;
  const found = await part(begin, log.from - begin);
  const text = byId("log-text"), height = text.scrollHeight;
  log.from = found.offset;
  write(found, "before");
  tell(found.size);
  text.scrollTop += text.scrollHeight - height;
}

// Shows the log around a byte, and stops to follow.
async function goTo(offset) {
  byId("follow").checked = false;
  const begin = Math.max(0, offset - BEFORE), text = byId("log-text");
  const found = await part(begin);
  forget();
  [log.from, log.next] = [found.offset, found.next];
  const bytesOf = new TextEncoder().encode(found.text), at = offset - found.offset;
  const upTo = (end, from = 0) => new TextDecoder().decode(bytesOf.slice(from, end));
  const end = bytesOf.indexOf(10, at), stop = end < 0 ? bytesOf.length : end;
  const mark = node("mark", {}, upTo(stop, at));
  text.append(upTo(at), mark, upTo(bytesOf.length, stop));
  tell(found.size);
  mark.scrollIntoView({block: "nearest"});
  text.scrollTop = mark.offsetTop - text.offsetTop - text.clientHeight / 3;
  text.focus({preventScroll: true});
}

const SHOWN = 50;

// Asks on until so many lines are found or the log has ended; a later search ends an earlier one.
async function find(from) {
  const mine = search = {text: byId("log-wanted").value};
  const list = byId("log-matches");
  if (!mine.text) return;
  if (from === 0) list.replaceChildren();
  byId("more-matches").hidden = true;
  let next = from, count = 0, told = null;
  try {
    do {
      told = await ask(`${base}/log/search?task=${task}&offset=${next}&limit=${SHOWN - count}&text=${encodeURIComponent(mine.text)}`);
      if (search !== mine) return;
      next = told.next;
      count += told.matches.length;
      list.append(...told.matches.map((one) => {
        const button = node("button", {type: "button"}, one.text || " ");
        button.addEventListener("click", () => goTo(one.offset));
        return node("li", {}, button);
      }));
      list.hidden = !list.childElementCount;
      byId("log-found").textContent = `${list.childElementCount || "no"} lines in ${bytes(next)}${told.done ? "" : " so far"}`;
    } while (!told.done && count < SHOWN);
  } catch (error) { byId("log-found").textContent = error.message; return; }
  mine.next = next;
  byId("more-matches").hidden = told.done;
}

byId("follow").addEventListener("change", async () => {
  // Between a part that was gone to and the end there may be a gigabyte.
  if (byId("follow").checked && log.next !== null && log.size - log.next > PART) forget();
  await showLog();
});
byId("earlier").addEventListener("click", earlier);
byId("later").addEventListener("click", more);
byId("log-search").addEventListener("submit", (event) => { event.preventDefault(); find(0); });
byId("more-matches").addEventListener("click", () => find(search.next));
