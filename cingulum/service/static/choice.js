// Which runs and jobs are chosen to be compared, in the order of choice; kept while the tab is open, over both lists.
import {byId, here, node} from "./page.js";

const KEY = "cingulum-compare";
let ids = JSON.parse(sessionStorage.getItem(KEY) || "[]");

function keep(now) {
  ids = now;
  sessionStorage.setItem(KEY, JSON.stringify(ids));
  tell();
}

function tell() {
  byId("compare").textContent = `Compare ${ids.length}`;
  byId("compare").href = here(`/compare?runs=${ids.map(encodeURIComponent).join(",")}`);
  byId("compare").hidden = byId("none").hidden = !ids.length;
}

export const choice = {
  tick(id, name) {
    const made = node("input", {type: "checkbox", value: id, class: "pick", "aria-label": `compare ${name}`});
    made.checked = ids.includes(id);
    made.addEventListener("change", () => keep(made.checked ? [...ids, id] : ids.filter((one) => one !== id)));
    return made;
  },
  add: (more) => keep([...new Set([...ids, ...more])]),
  clear: () => keep([]),
};
tell();
