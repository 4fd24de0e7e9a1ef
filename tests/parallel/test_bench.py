import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import starting
from cingulum.bench import step

BESIDE = Path(__file__).parents[2] / "benchmarks" / "beside_peers.py"
SMALL = ["--model", "tiny", "--size", "16", "--batch", "2", "--steps", "2", "--repeats", "1", "--json"]
LOADER = ["--size", "16", "--volumes", "8", "--repeats", "1", "--json"]


def line(what, options):
    return [str(Path(sys.executable).parent / "cingulum"), "bench", what, *options]


def beside_peers(what, options):
    return [sys.executable, str(BESIDE), what, *options]


def bench(what, options=SMALL, *, line=line, **environment):
    env = {**os.environ, **environment}
    ran = subprocess.run(line(what, options), capture_output=True, text=True, timeout=240, env=env)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_a_step_is_measured_against_copies_against_keras_and_against_peers():
    figures = bench("step", line=beside_peers)
    # What was measured, not how fast: timed assertions do not belong in a test.
    ratio = figures["two_copies_step_s"] / figures["two_ranks_step_s"]
    assert abs(figures["efficiency"] - ratio) < 1e-9
    for name in ("efficiency", "waiting_limit", "overhead"):
        assert figures[f"{name}_min"] <= figures[f"{name}_low"] <= figures[name]
        assert figures[name] <= figures[f"{name}_high"] <= figures[f"{name}_max"]
    assert figures["waiting_limit"] <= 1
    assert figures["overhead"] == pytest.approx(figures["our_loop_step_s"] / figures["keras_fit_step_s"] - 1)
    assert figures["machine"]["cores"] >= 1
    if starting.missing("ddp"):
        assert figures["peers"]["ddp"] == {"skipped": "not installed: make bench-peers"}
    theirs = figures["peers"][figures["best_peer"]]
    assert theirs["efficiency"] == pytest.approx(theirs["two_copies_step_s"] / theirs["two_ranks_step_s"])
    lead = theirs["two_ranks_step_s"] / figures["two_ranks_step_s"]
    assert theirs["lead"] == figures["best_peer_lead"] == pytest.approx(lead)


def test_a_benchmark_that_is_killed_leaves_no_process_though_they_stand_still():
    mark = f"marked-{os.getpid()}"
    process = subprocess.Popen(
        line("step", [*SMALL, "--repeats", "1000", "--no-overhead"]),
        env={**os.environ, "MARK_OF_THIS_TEST": mark},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    began = time.monotonic()
    while not stopped(mark):
        assert process.poll() is None and time.monotonic() - began < 120
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    while marked(mark):
        assert time.monotonic() - began < 180, marked(mark)
        time.sleep(0.05)


def marked(mark):
    """The processes that have this mark in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found.append(path)
    return found


def stopped(mark):
    states = []
    for path in marked(mark):
        with contextlib.suppress(OSError):
            states.append((path / "stat").read_text().rpartition(")")[2].split()[0])
    return [state for state in states if state == "T"]


def test_every_way_to_reduce_is_timed():
    figures = bench("ring")
    assert set(figures["step_s"]) == {"no reduction", *(name for name, _, _ in step.REDUCTIONS)}
    assert all(found["median"] > 0 for found in figures["step_s"].values())


def test_the_loader_is_measured_beside_others_and_its_limit(tmp_path):
    compared = ("h5py", "nibabel", "tfrecord")
    others = [word for name in compared for word in ("--reader", name)]
    figures = bench("loader", [*LOADER, *others], line=beside_peers, TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    rows = {(row["reader"], row["cache"]): row for row in figures["readers"]}
    assert set(rows) == {
        (name, cache) for name in ("ours", "limit", *compared) for cache in ("cold", "warm")
    } | {("ours_past_cache", "cold")}
    for cache in ("cold", "warm"):
        ours = {"cold": "ours_past_cache", "warm": "ours"}[cache]
        speed = {name: rows[name, cache]["volumes_per_s"]["median"] for name in (ours, "limit", *compared)}
        case = next(case for case in figures["cases"] if case["cache"] == cache)
        assert case["limit_ratio"] == pytest.approx(speed[ours] / speed["limit"])
        assert case["best_peer"] in compared
        assert case["best_peer_ratio"] == pytest.approx(speed[ours] / max(speed[name] for name in compared))
        slowest = max(rows["limit", cache][f"{part}_s"]["median"] for part in ("read", "decode", "cast"))
        assert speed["limit"] == pytest.approx(8 / slowest)
        assert rows[ours, cache]["bytes_per_s"]["median"] == pytest.approx(speed[ours] * 16**3 * 4)
        assert not rows[ours, cache]["in_stored_order"]
    for name in ("limit_ratio", "best_peer_ratio"):
        assert figures[name] == min(case[name] for case in figures["cases"])
    assert set(figures["peak_memory_by_volumes"]["16"]) == {"4", "8"}
    assert figures["machine"]["memory_bytes"] > 0


def test_ctrl_c_leaves_no_files_and_no_processes(tmp_path):
    process = subprocess.Popen(
        line("loader", LOADER), env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, text=True
    )
    began = time.monotonic()
    while not list(tmp_path.glob("*/*/.prepared-nibabel")):  # the readers' processes are being started
        assert process.poll() is None and time.monotonic() - began < 120
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert said.strip().endswith("interrupted")
    assert list(tmp_path.iterdir()) == []
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    assert not [words for words in lines if str(tmp_path).encode() in words]


def test_ranks_share_an_epoch_and_read_its_bytes_once(tmp_path):
    picture = tmp_path / "throughput.png"
    figures = bench("loader", [*LOADER, "--plot", str(picture), "--volumes", "4", "--batch", "2"])
    along = {(point["axis"], point["value"]): point for point in figures["points"]}
    assert {"volumes", "threads", "ranks"} == {axis for axis, _ in along}
    assert along["volumes", 4]["volumes_per_s"]["median"] > 0
    # What HDF5 itself needs in the shards is not read.
    once = along["ranks", 1]["bytes_read_by_all_ranks"]
    assert 0 < once < figures["stored_bytes"]
    assert {point["bytes_read_by_all_ranks"] for (axis, _), point in along.items() if axis == "ranks"} == {
        once
    }
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_waiting_for_input_is_measured(tmp_path):
    small = ["--model", "tiny", "--size", "16", "--volumes", "8", "--batch", "2", "--steps", "2", "--json"]
    figures = bench("input", [*small, "--repeats", "2"], TMPDIR=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert 0 <= figures["input_wait_share_min"] <= figures["input_wait_share"] <= 1
    assert figures["synthetic_gain_min"] <= figures["synthetic_gain"] <= figures["synthetic_gain_max"]
    assert len(figures["timeline"]) == 2
    assert all(0 <= step["wait_s"] <= step["step_s"] for step in figures["timeline"])
