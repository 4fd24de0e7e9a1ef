"""How fast `cingulum serve` answers over 10,000 jobs and compares runs, and what fifty followers cost.

.venv/bin/python benchmarks/service.py
.venv/bin/python benchmarks/service.py --follow 600

Makes a store, 1,000 run folders and a log of 1 GiB in a temporary folder, starts the service at a socket, and
asks it. What it says is of this machine as it is loaded now.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx2
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
JOBS, RUNS, COMPARED, FOLLOWERS = 10_000, 1_000, 200, 50
LINE = b"epoch 1  step 3/100  41.2 samples/s  0:01:02 left\n"


def make(folder: Path) -> Path:
    """Fill the store, newest job last, with a run folder for each of the newest; return the newest's log."""
    from jobs_to_serve import write_run

    from jobs.home import job_folder, new_token
    from jobs.schedulers.base import TaskState
    from jobs.spec import JobSpec
    from jobs.store import statements, submitter, tables
    from jobs.store.store import Store

    store = Store()
    now = time.time()
    common = {"launcher": "slurm", "place": "", "site": "lab", "user": submitter.user(), "submitter": "x"}
    with tables.writing(store._engine) as connection:
        for number in range(1, JOBS + 1):
            run = str(folder / "runs" / str(number)) if number > JOBS - RUNS else None
            spec = JobSpec(f"job-{number % 97}", "train", (("cingulum", "train", "x"),), "/work", run=run)
            token = new_token()
            row = {
                **common,
                "token": token,
                "external": str(number),
                "folder": str(folder),
                "submitted": now,
            }
            if number == JOBS:
                row["folder"] = str(job_folder(token))
            key = statements.insert(connection, row, spec, now)
            (job,) = statements.jobs(connection, tables.jobs.c.number == key)
            state = "RUNNING" if number > JOBS - 10 else "COMPLETED"
            statements.write(connection, job, [TaskState(0, state, hosts=(f"n{number % 50}",))], now)
    for number in range(JOBS - RUNS + 1, JOBS + 1):
        run = write_run(folder / "runs" / str(number), 12)
        if number > JOBS - COMPARED:
            make_long(run, number)
    log = Path(row["folder"]) / "out.log"
    with log.open("wb") as file:
        for _ in range(1024):
            file.write(LINE * (2**20 // len(LINE)))
    return log


def make_long(run: Path, number: int) -> None:
    """Give a run 100 epochs, a configuration with all defaults, and the figures of an evaluation."""
    from jobs_to_serve import row

    from trainer import config as configuration

    given = f"name: r{number}\ndata: {{shards: s}}\ntrain: {{epochs: 100, global_batch: {number % 7 + 1}}}\n"
    (run / "config.yaml").write_text(given)
    (run / "config.yaml").write_text(configuration.dump(configuration.load(run / "config.yaml")))
    (run / "metrics.jsonl").write_text("".join(json.dumps(row(epoch)) + "\n" for epoch in range(1, 101)))
    (run / "evaluation").mkdir(exist_ok=True)
    (run / "evaluation" / "test.json").write_text('{"auc": 0.8, "auc_interval": [0.7, 0.9], "brier": 0.2}')


def client(socket: str) -> httpx2.Client:
    """Return a client of the service."""
    return httpx2.Client(transport=httpx2.HTTPTransport(uds=socket), base_url="http://localhost", timeout=60)


def timed(asks: httpx2.Client, address: str, times: int = 60) -> str:
    """Return median and 95th percentile of the answers' times, in ms; `#` in an address is the turn."""
    seconds = []
    for turn in range(times):
        began = time.perf_counter()
        asks.get(address.replace("#", str(turn))).raise_for_status()
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    return f"{1e3 * seconds[times // 2]:.0f} ms, {1e3 * seconds[int(0.95 * times)]:.0f} ms"


def searched(asks: httpx2.Client) -> str:
    """Return how long a search through the newest job's log takes, and in how many answers."""
    began, answers, told = time.perf_counter(), 0, {"next": 0, "done": False}
    while not told["done"]:
        query = f"text=nowhere&offset={told['next']}"
        told = asks.get(f"/api/v1/jobs/{JOBS}/log/search?{query}").raise_for_status().json()
        answers += 1
    return f"{time.perf_counter() - began:.1f} s, {answers} answers"


def follow(socket: str, until: float, reads: bool, seen: list[float]) -> None:
    """Follow the newest job; note when it is said to have changed, or when what has is read, too."""
    with client(socket) as asks, asks.stream("GET", f"/api/v1/jobs/{JOBS}/events") as events:
        for line in events.iter_lines():
            if time.time() > until:
                return
            if line.startswith("data"):
                if reads:
                    with client(socket) as other:
                        for part in ("", "/curves", "/log"):
                            other.get(f"/api/v1/jobs/{JOBS}{part}")
                seen.append(time.time())


def followed(socket: str, log: Path, service: psutil.Process, seconds: float) -> None:
    """Write a line and a point of the curves every 5 s while many follow, and print what that costs."""
    from jobs_to_serve import row

    metrics = log.parents[3] / "runs" / str(JOBS) / "metrics.jsonl"
    until, seen = time.time() + seconds, []
    noted: list[list[float]] = [[] for _ in range(FOLLOWERS)]
    threads = [
        threading.Thread(target=follow, args=(socket, until + 2, number < 5, noted[number]))
        for number in range(FOLLOWERS)
    ]
    for thread in threads:
        thread.start()
    time.sleep(3)
    before, began, delays = sum(service.cpu_times()[:2]), time.time(), []
    memory: list[tuple[float, float]] = []
    while time.time() < until:
        with log.open("ab") as file, metrics.open("a") as points:
            file.write(LINE)
            points.write(json.dumps(row(101 + len(delays))) + "\n")
        wrote = time.time()
        time.sleep(5)
        memory.append((time.time() - began, service.memory_info().rss / 2**20))
        seen = [moment for moment in noted[0] if moment >= wrote]
        delays.append(seen[0] - wrote if seen else float("inf"))
    cores = (sum(service.cpu_times()[:2]) - before) / (time.time() - began)
    with log.open("ab") as file:
        file.write(LINE)
    for thread in threads:
        thread.join(60)
    held = [mib for _, mib in memory]
    print(
        f"{FOLLOWERS} followers for {seconds:.0f} s: {cores:.2f} cores, {held[0]:.1f} to {held[-1]:.1f} MiB"
    )
    settled = [one for one in memory if one[0] >= seconds / 5] or memory
    slope, _ = statistics.linear_regression(*zip(*settled, strict=True))
    print(f"  after the first fifth {60 * slope:+.3f} MiB/min, at most {max(held):.1f} MiB")
    told = sorted(delay for delay in delays if delay < float("inf"))
    print(
        f"a point is read {statistics.median(told):.1f} s after it was written (median), "
        f"{told[int(0.95 * len(told))]:.1f} s (95 %), "
        f"{len(delays) - len(told)} of {len(delays)} later than 5 s"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--follow", type=float, default=60.0, metavar="SECONDS")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["CINGULUM_HOME"] = str(folder / "home")
        log = make(folder)
        command = [sys.executable, "-m", "cingulum", "serve", "--json", "--socket", str(folder / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            try:
                socket = json.loads(process.stdout.readline())["socket"]
                with client(socket) as asks:
                    print(f"median and 95th percentile of 60 answers over {JOBS} jobs, {RUNS} run folders")
                    ids = ",".join(str(number) for number in range(JOBS - COMPARED + 1, JOBS + 1))
                    for what, address, *times in (
                        ("a bare route", "/api/v1/session"),
                        ("the list", "/api/v1/jobs"),
                        ("the list, never the same page", "/api/v1/jobs?offset=#0"),
                        ("by name", "/api/v1/jobs?sort=name&order=up&offset=#0"),
                        ("searched", f"/api/v1/jobs?text={quote('job-1')}&offset=#0"),
                        ("a job", f"/api/v1/jobs/{JOBS}"),
                        ("its curves", f"/api/v1/jobs/{JOBS}/curves"),
                        ("the end of its log of 1 GiB", f"/api/v1/jobs/{JOBS}/log"),
                        ("what belongs to it", f"/api/v1/jobs/{JOBS}/related"),
                        (f"{COMPARED} runs compared for the first time", f"/api/v1/compare?runs={ids}", 1),
                        (f"{COMPARED} runs compared", f"/api/v1/compare?runs={ids}"),
                        ("a curve of each", f"/api/v1/compare/curves?metric=val_loss&runs={ids}"),
                    ):
                        print(f"  {what}: {timed(asks, address, *times)}")
                    print(f"the log of 1 GiB, searched for what it does not hold: {searched(asks)}")
                followed(socket, log, psutil.Process(process.pid), given.follow)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
