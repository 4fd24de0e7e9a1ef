"""`cingulum bench scaling` on this host, with real ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SMALL = ["--models", "tiny", "--size", "16", "--batch", "2", "--steps", "2", "--repeats", "1"]


def line(folder, *options):
    program = str(Path(sys.executable).parent / "cingulum")
    return [program, "bench", "scaling", *SMALL, *options, "--out", str(folder)]


def rows(folder):
    return [json.loads(text) for text in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_study_goes_on_after_ctrl_c_and_measures_nothing_twice(tmp_path):
    """Also: a strategy that fails is a row, a server is a process of its own, and a network is trained."""
    folder = tmp_path / "study"
    strategies = "data,parameter-server"
    asked = line(folder, "--ranks", "1,2", "--scaling", "strong", "--strategies", strategies)
    process = subprocess.Popen(asked, stderr=subprocess.PIPE, text=True, start_new_session=True)
    began = time.monotonic()
    while not (folder / "scaling.html").exists():  # the first cell is done
        assert process.poll() is None and time.monotonic() - began < 180
        time.sleep(0.05)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().endswith("interrupted; the same command goes on where it stopped")
    first = rows(folder)
    assert first and all(row["error"] is None for row in first)
    with (folder / "rows.jsonl").open("a") as file:
        file.write('{"key": "a line that was cut sho')
    ran = subprocess.run([*asked, "--json"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert rows(folder)[: len(first)] == first
    assert [(row["cell"]["strategy"], row["cell"]["ranks"], row["error"]) for row in found] == [
        ("data", 1, None),
        ("parameter-server", 1, None),
        ("data", 2, None),
        ("parameter-server", 2, None),
    ]
    assert all(row["samples_per_second"] > 0 for row in found)
    page = (folder / "scaling.html").read_text()
    assert "4 of 4 cells measured" in page and "Not finished" not in page
    assert len((folder / "table.csv").read_text().splitlines()) == 5
    assert r"\begin{tabular}" in (folder / "table.tex").read_text()
    assert list((folder / "figures").glob("tiny-*-speed-up.png"))


def test_a_training_gives_a_curve_of_accuracy_against_time(tmp_path):
    ran = subprocess.run(
        line(tmp_path, "--ranks", "2", "--scaling", "strong", "--epochs", "2", "--json"),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stderr
    _, trained = json.loads(ran.stdout)
    assert trained["error"] is None
    seconds = [point["seconds"] for point in trained["curve"]]
    assert len(seconds) == 2 and 0 < seconds[0] < seconds[1]
    assert all({"val_accuracy", "val_loss", "loss"} <= set(point) for point in trained["curve"])
    assert "validation accuracy" in (tmp_path / "scaling.html").read_text()
