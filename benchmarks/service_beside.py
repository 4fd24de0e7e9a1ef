#!/usr/bin/env python3
"""What `cingulum serve` costs a training on the same host: steps while it is asked, and while it is stopped.

    .venv/bin/python benchmarks/service_beside.py --pairs 40

A training on all cores, the service of its job, and a reader who asks what a browser does that has the job's
page and the list open. Windows of some seconds with both running and with both stopped (SIGSTOP) take turns,
in alternating order. As root, all three have a higher priority than what else the machine does, so that this
hits them less. The reader stands for another computer: what it takes here is told apart, and is part of the
difference. The interval is that of the median over pairs, by bootstrap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from socket import AF_UNIX
from socket import socket as Connection

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "helpers"))
PARTS = ("", "/related", "/run", "/curves", "/log", "/time")
LINE_S, SETTLE_S = 0.5, 0.2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--window", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--pages", type=int, default=1, help="browsers, with two pages each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--read", metavar="SOCKET KEY", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.read:
        read(*asked.read, pages=asked.pages)
        return
    with contextlib.suppress(PermissionError):
        os.nice(-10 - os.nice(0))
    with tempfile.TemporaryDirectory() as name:
        found = measure(asked, Path(name))
    if asked.json:
        print(json.dumps(found, indent=2))
        return
    low, high = found["interval"]
    print(
        f"steps beside a service that is asked take {found['slowed']:+.2%} (95 %: {low:+.2%} to {high:+.2%}, "
        f"{asked.pairs} pairs of {asked.window:.0f} s); alone {1e3 * found['step_s']:.1f} ms, pairs vary "
        f"by {found['spread']:.1%} (half of them). The service took {found['cores']:.3f} cores and the "
        f"reader {found['reader_cores']:.3f}, for {found['answers_per_s']:.1f} answers a second."
    )


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, float | list[float]]:
    """Train beside the service in windows; return what the difference is."""
    os.environ["CINGULUM_HOME"] = str(folder / "home")
    key, log, run = make(folder)
    serve = [sys.executable, "-m", "cingulum", "serve", "--json", "--socket", str(folder / "s")]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True, cwd=folder) as service:
        try:
            socket = json.loads(service.stdout.readline())["socket"]
            words = [sys.executable, __file__, "--pages", str(asked.pages), "--read", socket, key]
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as reader:
                try:
                    return windows(asked, training(run, log), service, reader)
                finally:
                    send((reader,), signal.SIGCONT)
                    reader.terminate()
        finally:
            send((service,), signal.SIGCONT)
            service.terminate()


def make(folder: Path) -> tuple[str, Path, Path]:
    """Put a job that trains into the store; return its key, log and run folder."""
    from jobs_to_serve import write_run

    from jobs.home import job_folder, new_token
    from jobs.schedulers.base import TaskState
    from jobs.spec import JobSpec
    from jobs.store.store import Store

    run = write_run(folder / "runs" / "beside", 12)
    spec = JobSpec("beside", "train", (("cingulum", "train", "x"),), str(folder), run=str(run))
    store, token = Store(), new_token()
    job = store.add(token, spec, launcher="slurm", site="here", folder=job_folder(token))
    job = store.adopt(job, "4711")
    store.record([(job, [TaskState(0, "RUNNING", hosts=("here",), started=time.time())])])
    log = Path(job.folder) / "out.log"
    log.touch()
    return job.key, log, run


def training(run: Path, log: Path) -> Callable[[], None]:
    """Return a training step, which also writes what a training does: telemetry, and a line of output."""
    import keras
    import tensorflow as tf

    from trainer import models

    model = models.build("resattnet18", (32, 32, 32, 1), 2, width=8)
    optimizer = keras.optimizers.AdamW(1e-3)
    optimizer.build(model.trainable_variables)
    x = tf.random.normal((4, 32, 32, 32, 1))
    y = tf.constant([0, 1, 0, 1])

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    wrote = [time.monotonic(), 60.0]

    def whole() -> None:
        step()
        if time.monotonic() - wrote[0] > LINE_S:
            wrote[0], wrote[1] = time.monotonic(), wrote[1] + 1
            with log.open("a") as file, (run / "telemetry" / "rank-00000.jsonl").open("a") as lines:
                file.write(f"epoch 13  step {wrote[1]:.0f}  41.2 samples/s\n")
                lines.write(json.dumps({"step": int(wrote[1]), "seconds": 0.1, "exposed": 0.01}) + "\n")

    return whole


def windows(
    asked: argparse.Namespace,
    step: Callable[[], None],
    service: subprocess.Popen[str],
    reader: subprocess.Popen[str],
) -> dict[str, float | list[float]]:
    """Take windows with and without, in turn."""
    both = (service, reader)
    answers = [0]

    def count() -> None:
        for line in reader.stdout:
            answers[0] += int(line)

    threading.Thread(target=count, daemon=True).start()
    for _ in range(100):  # TensorFlow learns which operations are quick
        step()

    def window(is_asked: bool) -> float:
        send(both, signal.SIGCONT if is_asked else signal.SIGSTOP)
        begin = time.perf_counter()
        while time.perf_counter() < begin + SETTLE_S:
            step()
        taken = []
        while (now := time.perf_counter()) < begin + SETTLE_S + asked.window:
            step()
            taken.append(time.perf_counter() - now)
        return statistics.fmean(taken)

    used, before, began = [psutil.Process(one.pid) for one in both], answers[0], time.perf_counter()
    at_first = [sum(one.cpu_times()[:2]) for one in used]
    pairs = []
    for number in range(asked.pairs):
        order = (True, False) if number % 2 == 0 else (False, True)
        seconds = {is_asked: window(is_asked) for is_asked in order}
        pairs.append((seconds[True], seconds[False]))
    running = (time.perf_counter() - began) / 2
    ratios = np.array([beside / alone - 1 for beside, alone in pairs])
    drawn = np.random.default_rng(0).choice(ratios, (2000, len(ratios)))
    cores = [(sum(one.cpu_times()[:2]) - at) / running for one, at in zip(used, at_first, strict=True)]
    quarters = np.quantile(ratios, [0.25, 0.75])
    return {
        "slowed": float(np.median(ratios)),
        "interval": np.quantile(np.median(drawn, axis=1), [0.025, 0.975]).tolist(),
        "spread": float(quarters[1] - quarters[0]),
        "step_s": statistics.median(alone for _, alone in pairs),
        "cores": cores[0],
        "reader_cores": cores[1],
        "answers_per_s": (answers[0] - before) / running,
    }


def send(processes: tuple[subprocess.Popen[str], ...], signal_: signal.Signals) -> None:
    """Send a signal to those that still run."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal_)


def read(socket: str, key: str, *, pages: int) -> None:
    """Follow the list and the page of the job, and print how much was asked, once a second.

    With plain sockets, as it must take little of the cores.
    """
    asks_of = {"/api/v1/jobs": ("",), f"/api/v1/jobs/{key}": PARTS}
    answers = [0]

    def follow(base: str, parts: tuple[str, ...]) -> None:
        for line in asked_for(socket, f"{base}/events").makefile("rb"):
            if line.startswith(b"data"):
                for part in parts:
                    with asked_for(socket, base + part) as answer:
                        while answer.recv(1 << 16):
                            pass
                    answers[0] += 1

    for base, parts in list(asks_of.items()) * pages:
        threading.Thread(target=follow, args=(base, parts), daemon=True).start()
    told = 0
    while True:
        time.sleep(1)
        print(answers[0] - told, flush=True)
        told = answers[0]


def asked_for(path: str, address: str) -> Connection:
    """Return a connection on which the service answers for this address."""
    connection = Connection(AF_UNIX)
    connection.connect(path)
    connection.sendall(f"GET {address} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return connection


if __name__ == "__main__":
    main()
