import {ask, byId, follow, kindOf, moment} from "/static/page.js";
import {fact, howFar, showCurves, showFiles} from "/static/run_view.js";

const ID = document.body.dataset.run, BASE = `/api/v1/runs/${ID}`;

follow(`${BASE}/events`, async () => {
  const run = await ask(BASE);
  byId("state").className = kindOf(run.state);
  byId("state").textContent = run.state;
  byId("facts").replaceChildren(...howFar(run), ...fact("Strategy", run.strategy), ...fact("Last start", moment(run.started)),
    ...fact("Last change", moment(run.changed)), ...fact("Run folder", run.folder));
  showFiles(run, `/runs/${ID}/report`);
  showCurves(await ask(`${BASE}/curves`));
});
