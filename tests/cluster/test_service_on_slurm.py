"""The service's pages in a real browser, over a real Slurm: from the form to the last cancel."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import browsers
import pytest
import tiny_runs
import yaml
from axe_playwright_python.sync_playwright import Axe
from forwarded import at_port
from playwright.sync_api import Page, expect
from served_on_slurm import Served
from slurm_jobs import preempt, slurm, wait_until
from watched_pages import PHONE, Watched, fits

from jobs.testbed import Testbed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
# Two cores start TensorFlow beside other tests.
PATIENCE_MS = 120_000
EPOCHS = 100_000  # more than any machine trains in the time limit
# By what one may know the element that the keyboard is at.
NAMES = """() => {
  const at = document.activeElement;
  return [at.textContent, at.id, at.labels?.[0]?.textContent ?? ""];
}"""
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def served(cluster, tmp_path) -> Iterator[Served]:
    """A service on the host that submits, in a folder with a shard set."""
    tiny_runs.make_shards(tmp_path / "shards")
    made = Served(cluster, tmp_path)
    made.start()
    yield made
    made.kill()


def config(name: str, epochs: int) -> str:
    tree = {
        "name": name,
        "data": {"shards": "shards", "prefetch": 1},
        "model": {"name": "tiny", "width": 2},
        "train": {
            "epochs": epochs,
            "global_batch": 6,
            "threads": 1,
            "optimizer": {"name": "adamw", "learning_rate": 0.0005},
        },
        "checkpoint": {"every_steps": 20},
    }
    return yaml.safe_dump(tree, sort_keys=False)


def points(page: Page) -> int:
    """Points of the first curve that is drawn."""
    lines = page.locator("#charts path")
    return (lines.first.get_attribute("d") or "").count("L") if lines.count() else 0


def broken(page: Page) -> list[str]:
    """Rules of axe that the page breaks, and where."""
    told = Axe().run(page).response["violations"]
    return [f"{one['id']}: {node['html']}" for one in told for node in one["nodes"]]


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the keyboard is at what has this name."""
    for _ in range(120):
        page.keyboard.press("Tab")
        at = page.evaluate(NAMES)
        if any(name == text.strip() for text in at):
            return
    raise AssertionError(f"Tab does not come to {name!r}; it is at {at}")


def test_runs_are_submitted_watched_preempted_held_compared_and_cancelled_on_the_pages(
    served, cluster, tmp_path
):
    """What is looked at is kept as pictures beside the run."""
    with at_port(served.socket) as address, browsers.started() as browser:
        watched = Watched(browser, address, bypass_csp=True)  # for axe
        page = watched.page
        page.set_default_timeout(PATIENCE_MS)
        state, history, log = (page.locator(f"#{name}") for name in ("state", "history", "log-text"))

        def picture(name: str) -> None:
            page.screenshot(path=tmp_path / f"{name}.png", full_page=True)

        # A form, what would be done, what the queue says, and a job.
        page.get_by_role("link", name="Submit").click()
        expect(page.locator(".field")).not_to_have_count(0)
        page.locator("#yaml").fill(config("ad-vs-nc", EPOCHS))
        page.locator("[name=gpus_per_node]").fill("1")
        page.locator("[name=time]").fill("20m")
        expect(page.locator("#dry h3")).to_have_text(["1 of 1: ad-vs-nc (train)"])
        picture("submit")
        page.locator("summary", has_text="job.sbatch").click()
        expect(page.locator("#dry")).to_contain_text("#SBATCH --gpus-per-node=1")
        assert slurm(cluster, "squeue", "--noheader") == ""
        page.locator("#submit").click()
        expect(page.locator("#sure-queue")).to_contain_text("to start at")
        page.locator("#yes").click()
        expect(page.locator("h1")).to_have_text("ad-vs-nc")
        expect(state).to_have_text("RUNNING")
        first, label = page.url, page.locator(".kicker").inner_text().split()[0]

        # Curve and log go on by themselves.
        wait_until(lambda: points(page) > 2, "points of a curve")
        expect(log).to_contain_text("epoch   2")
        before, size = points(page), page.locator("#log-size").inner_text()
        wait_until(lambda: points(page) > before, "more points")
        expect(page.locator("#log-size")).not_to_have_text(size)
        expect(page.locator("#facts")).to_contain_text("Time left")

        # Preempted, it saves and waits; meanwhile another one is submitted with changes.
        preempt(cluster, tmp_path / "urgent")
        expect(log).to_contain_text("saved and stopped; to be started again")
        expect(state).to_have_text("PENDING")
        expect(page.locator("#reason")).to_contain_text("BeginTime")
        expect(history).to_contain_text("PENDING (start 2)")
        (saved,) = re.findall(r"stopped at step (\d+) of", log.inner_text())
        page.get_by_role("link", name="Submit again with changes").click()
        expect(page.locator("#yaml")).to_have_value(re.compile(f"epochs: {EPOCHS}"))
        page.locator("#key-name").fill("mci-vs-nc")
        page.locator("#search").fill("epochs")
        page.locator("[id='key-train.epochs']").fill("12")
        expect(page.locator("#dry h3")).to_have_text(["1 of 1: mci-vs-nc (train)"])
        page.locator("#submit").click()
        page.locator("#yes").click()
        expect(page.locator("h1")).to_have_text("mci-vs-nc")
        second = page.url
        start_now(cluster, label)

        # It goes on at the very step.
        page.goto(first)
        expect(log).to_contain_text(f"step-{int(saved):08d}")
        expect(history.locator("li").last).to_contain_text("RUNNING")
        expect(page.locator("#facts")).to_contain_text("Started again")
        before = points(page)
        wait_until(lambda: points(page) > before, "points of the second start")
        page.goto(second)
        expect(state).to_have_text("COMPLETED")

        # By hand it saves, and goes on, too.
        page.goto(first)
        page.get_by_role("button", name="Save and start again").click()
        expect(history).to_contain_text("requeue asked for by root (service, own socket)")
        expect(history).to_contain_text("PENDING (start 3)")
        steps = re.compile(r"stopped at step (\d+) of")
        wait_until(lambda: len(steps.findall(log.inner_text())) == 2, "the second end in the log")
        assert int(saved) < int(steps.findall(log.inner_text())[1])
        start_now(cluster, label)
        expect(history.locator("li").last).to_contain_text("RUNNING (start 3)")

        # The cluster: what is free, the user's part, what waits and why.
        script = ["sbatch", "--nodes=3", "--exclusive", "--output=/dev/null", "--wrap=true"]
        assert cluster.exec("ctl", script, cluster.user, cwd="/").returncode == 0
        page.goto(f"{address}/cluster")
        expect(page.locator("#queue tr")).to_have_count(2)
        expect(page.locator("#queue tr", has_text="tester")).to_contain_text("Resources")
        expect(page.locator("#facts")).to_contain_text("5 of 6")
        expect(page.locator("#facts")).to_contain_text("1 running, 0 waiting")
        expect(page.locator("#facts")).to_contain_text("1 GPU, 1 CPU")  # though nobody accounts for GPUs here
        assert fits(page)
        picture("cluster")
        page.locator("#queue").get_by_role("link", name="ad-vs-nc").click()
        expect(page.locator("h1")).to_have_text("ad-vs-nc")

        without_controller(page, cluster)
        with_the_keyboard(page, address, picture)

        # Side by side, and the end.
        page.goto(f"{address}/jobs")
        expect(page.locator("#rows tr")).to_have_count(3)
        for name in ("ad-vs-nc", "mci-vs-nc"):
            page.get_by_role("checkbox", name=f"compare {name}").check()
        picture("jobs")
        page.locator("#compare").click()
        expect(page.locator("#rows tr")).to_have_count(2)
        expect(page.locator("#rows tr").first).to_contain_text("train.epochs")
        expect(page.locator("#charts svg")).to_have_count(2)
        picture("compare")
        page.goto(first)
        wait_until(lambda: points(page) > 2, "the curve")
        picture("job")
        page.get_by_role("button", name="Cancel job").click()
        page.locator("#yes").click()
        expect(state).to_have_text("CANCELLED")
        expect(history).to_contain_text("cancel asked for by root (service, own socket)")
        wait_until(lambda: slurm(cluster, "squeue", "--noheader", "--user=root") == "", "an empty queue")
        # Before a job has started there is no run folder and no log: 404.
        assert [text for text in watched.complaints if "404 (Not Found)" not in text] == []


def start_now(cluster: Testbed, job: str) -> None:
    """Let a job start that was requeued: Slurm would wait. On a busy machine it may have begun already."""
    cluster.exec("ctl", ["scontrol", "update", f"JobId={job}", "StartTime=now"], cwd="/")


def without_controller(page: Page, cluster: Testbed) -> None:
    """Kill slurmctld beside the page of a job that runs: both pages go on, and say what is out of date."""
    hosts = page.context.new_page()
    hosts.goto(page.url.partition("/jobs/")[0] + "/cluster")
    as_of = hosts.locator("#as-of")
    expect(as_of).to_contain_text("slurm, as of")
    cluster.kill_controller()
    expect(page.locator("#warnings")).to_contain_text("did not answer")
    expect(as_of).to_contain_text("out of date")
    expect(hosts.locator("#queue")).to_contain_text("ad-vs-nc")
    mark = "getComputedStyle(document.querySelector('#state'), '::after').content"
    assert page.evaluate(mark) == '" (out of date)"'
    before = points(page)
    wait_until(lambda: points(page) > before, "points of a curve without Slurm")
    cluster.start_controller()
    expect(page.locator("#warnings")).to_be_empty()
    expect(as_of).not_to_contain_text("out of date")
    expect(page.locator("#state")).to_have_text("RUNNING")
    assert page.evaluate(mark) == "none"
    hosts.close()


def test_the_page_of_the_cluster_tells_the_own_share_where_slurm_accounts(cluster_with_accounting, tmp_path):
    made = cluster_with_accounting
    slurm(made, "sacctmgr", "--immediate", "add", "account", "neuro", "fairshare=3")
    slurm(made, "sacctmgr", "--immediate", "add", "user", "root", "account=neuro", "fairshare=1")
    service = Served(made, tmp_path)
    service.start()
    try:
        with at_port(service.socket) as address, browsers.started() as browser:
            page = Watched(browser, f"{address}/cluster").page
            expect(page.locator("#facts")).to_contain_text(re.compile("My share, account neuro.*factor"))
    finally:
        service.kill()
        slurm(made, "sacctmgr", "--immediate", "delete", "account", "neuro")


def with_the_keyboard(page: Page, address: str, picture: Callable[[str], None]) -> None:
    """By Tab, Enter and letters alone, on a dark phone: submit, hold, release, put last and cancel a job."""
    wide = page.viewport_size
    page.set_viewport_size(PHONE)
    page.emulate_media(color_scheme="dark")
    page.goto(f"{address}/jobs")
    expect(page.locator("#rows tr")).to_have_count(2)
    found = broken(page)
    picture("phone-jobs")
    tab_to(page, "Submit")
    page.keyboard.press("Enter")
    expect(page.locator(".field")).not_to_have_count(0)
    tab_to(page, "yaml")
    page.keyboard.insert_text(config("on-all-hosts", 12))
    tab_to(page, "nodes")
    page.keyboard.press("Control+A")
    page.keyboard.type("3")
    expect(page.locator("#dry h3")).to_have_text(["1 of 1: on-all-hosts (train)"])
    expect(page.locator("#submit")).to_be_enabled()
    found += broken(page)
    picture("phone-submit")
    tab_to(page, "submit")
    page.keyboard.press("Enter")
    expect(page.locator("#yes")).to_be_enabled()
    tab_to(page, "yes")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("on-all-hosts")
    expect(page.locator("#state")).to_have_text("PENDING")
    tab_to(page, "Hold")
    page.keyboard.press("Enter")
    expect(page.locator("#reason")).to_contain_text("JobHeldUser")
    found += broken(page)
    assert fits(page)
    picture("phone-job")
    tab_to(page, "Release")
    page.keyboard.press("Enter")
    expect(page.locator("#history")).to_contain_text("release asked for")
    expect(page.locator("#reason")).not_to_contain_text("Held")
    tab_to(page, "Let others go first")
    page.keyboard.press("Enter")
    expect(page.locator("#history")).to_contain_text("nice 1000 asked for")
    tab_to(page, "cancel")
    page.keyboard.press("Enter")
    tab_to(page, "yes")
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("CANCELLED")
    assert found == []
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(wide)
