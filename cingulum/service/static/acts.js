// What who may write can do with a job, besides cancelling: requeue, hold, release, lower its priority, share, submit again.
import {ask, byId, isActive, node} from "./page.js";

const KEY = encodeURIComponent(document.body.dataset.job), WAITING = ["PENDING", "REQUEUED", "SUSPENDED"];

async function act(name, body = null) {
  byId("said").textContent = "";
  const more = body ? {headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)} : {};
  try { await ask(`/api/v1/jobs/${KEY}/${name}`, {method: "POST", ...more}); } catch (error) { byId("said").textContent = error.message; }
}

const button = (text, what) => {
  const made = node("button", {type: "button"}, text);
  made.addEventListener("click", what);
  return made;
};

// To show a job to others takes two decisions; to take that back, one.
function offer(job) {
  for (const option of byId("share-group").options) option.hidden = option.disabled = job.shared_with.includes(option.value);
  byId("share-group").value = others(job)[0];
  byId("share").showModal();
}

const others = (job) => [...byId("share-group")?.options ?? []].map((one) => one.value).filter((name) => !job.shared_with.includes(name));

function show(job) {
  const found = [];
  if (job.state === "RUNNING") found.push(button("Save and start again", () => act("requeue")));
  else if (!isActive(job.state) && job.state !== "COMPLETED") found.push(button("Start again", () => act("requeue")));
  if (WAITING.includes(job.state) && job.launcher === "slurm") {
    const held = job.reason.startsWith("JobHeld");
    // With another priority, Slurm might start what is held.
    if (held) found.push(button("Release", () => act("release")));
    else found.push(button("Hold", () => act("hold")), button("Let others go first", () => act("nice", {by: 1000})), button("Normal priority", () => act("nice", {by: 0})));
  }
  if (others(job).length) found.push(button("Share", () => offer(job)));
  for (const name of job.shared_with) found.push(button(`Stop sharing with ${name}`, () => act("share", {groups: [name], stop: true})));
  if (["train", "crossval"].includes(job.kind)) found.push(node("a", {class: "button", href: `/submit?from=${KEY}`}, "Submit again with changes"));
  // The keyboard stays where it was: at the same words, else at what took their place.
  const at = [...byId("acts").children].indexOf(document.activeElement), words = document.activeElement?.textContent;
  byId("acts").replaceChildren(...found);
  if (at >= 0) (found.find((one) => one.textContent === words) ?? found[at])?.focus();
}

if (byId("share")) {
  byId("share-no").addEventListener("click", () => byId("share").close());
  byId("share-yes").addEventListener("click", () => { byId("share").close(); act("share", {groups: [byId("share-group").value]}); });
}
if (byId("acts")) document.addEventListener("job", (event) => show(event.detail));
