import {watchDifferences} from "./differ.js";
import {showInsight, watchInsight} from "./insight.js";
import {ask, byId, fact, follow, kindOf, moment} from "./page.js";
import {howFar, links, showCurves, showFiles} from "./run_view.js";

const ID = document.body.dataset.run, BASE = `/api/v1/runs/${ID}`;

watchInsight((what) => `${BASE}/${what}`);
watchDifferences(ID);
follow(`${BASE}/events`, async () => {
  const run = await ask(BASE), related = await ask(`${BASE}/related`);
  byId("state").className = kindOf(run.state);
  byId("state").textContent = run.state;
  byId("facts").replaceChildren(...howFar(run), ...fact("Strategy", run.strategy), ...fact("Last start", moment(run.started)),
    ...fact("Last change", moment(run.changed)), ...fact("Jobs", ...links(related.jobs)), ...fact("Run folder", run.folder));
  showFiles(run, `/runs/${ID}/report`);
  showCurves(await ask(`${BASE}/curves`));
  await showInsight();
});
