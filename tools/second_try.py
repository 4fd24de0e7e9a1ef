#!/usr/bin/env python3
"""Run tests, and those that failed once more, alone; say afterwards which tests needed that.

    second_try.py run tests/unit -- -n 2    run tests of one folder; the exit code is that of the last pytest
    second_try.py all test-a -- test-b      make two lists of targets side by side, the second into a log
    second_try.py show                      seconds of each folder, and the tests that needed a second try
    second_try.py forget                    forget what earlier runs noted

Notes lie in `.pytest_cache/tries`, apart for each folder of tests, so that several folders may run at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

NOTES = Path(".pytest_cache") / "tries"
# pytest's exit code for "tests were run and some failed". Any other says that not every test was run, and a
# second try of those that failed would pass for all that were left out.
SOME_FAILED = 1
# Tests that are interrupted may take so long to tidy up; what they then leave may take so long to end.
TIDYING_S, ENDING_S = 60, 5
_interrupted: list[int] = []  # by which signal
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER, <linux/prctl.h>


def run(paths: Sequence[str], options: Sequence[str]) -> int:
    """Run pytest on `paths` of one folder, and once more on what failed; return the last exit code."""
    folder = "/".join(Path(paths[0]).parts[:2])
    cache = NOTES / folder.replace("/", "-")
    began = time.monotonic()
    print(f"== {folder}", flush=True)
    code = _pytest(cache, *paths, *options, "--cache-clear")
    failed = _failed(cache)
    still_failing = failed
    if code == SOME_FAILED:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        print(f"== {folder}: once more, alone: {failed[0] if failed else '?'}{more}", flush=True)
        code = _pytest(cache, *paths, "--last-failed", "--last-failed-no-failures", "none")
        still_failing = _failed(cache)
    note = {
        "folder": folder,
        "seconds": round(time.monotonic() - began),
        "exit_code": code,
        "failed": failed,
        "still_failing": still_failing,
    }
    cache.with_suffix(".json").write_text(json.dumps(note, indent=1))
    ended = "passed" if code == 0 else f"exit code {code}, first {still_failing[0] if still_failing else '?'}"
    print(f"== {folder}: {ended}, {note['seconds']} s", flush=True)
    return code


def side_by_side(shown_now: Sequence[Sequence[str]], shown_later: Sequence[str], **options: Any) -> list[int]:
    """Run programs one after the other, and another one beside them; return their exit codes, its own last.

    The output of the other one is shown at the end: that of two at once cannot be read.
    """
    NOTES.mkdir(parents=True, exist_ok=True)
    log = NOTES / "beside.log"
    running: list[subprocess.Popen[bytes]] = []

    def end(number: int, _: object) -> None:
        for one in running:
            one.terminate()
        sys.exit(128 + number)

    # Ctrl-C reaches what runs, too, which ends in order and is waited for.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, end)
    codes = []
    with contextlib.ExitStack() as ended:
        ended.callback(lambda: [one.wait() for one in running])
        file = ended.enter_context(log.open("w"))
        if shown_later:
            print(f"{' '.join(shown_later)[:100]}: beside the others, into {log}", flush=True)
            running.append(subprocess.Popen(shown_later, stdout=file, stderr=subprocess.STDOUT, **options))
        for words in shown_now:
            running.append(subprocess.Popen(words, **options))
            codes.append(running[-1].wait())
        codes += [one.wait() for one in running[: 1 if shown_later else 0]]
    print(log.read_text(errors="replace"), end="", flush=True)
    return codes


def _pytest(cache: Path, *words: str) -> int:
    """Run pytest, and end what its tests have left running; an interrupted one ends this program.

    Its folder is kept where tests have failed, until the next run of the same tests.
    """
    kept = cache.with_suffix(".kept")
    if kept.is_file():
        shutil.rmtree(kept.read_text(), ignore_errors=True)
    # As pytest's own: /tmp/pytest-of-USER/pytest-NUMBER.
    folder = tempfile.mkdtemp(prefix="pytest-of-")
    kept.write_text(folder)
    line = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", f"--basetemp={folder}/pytest-0"]
    code = _outcome(subprocess.Popen([*line, *words]))
    left = _descendants()
    if left:
        print(f"== left running by tests, now ended: {len(left)}, first {_name(left[0])}", flush=True)
        _end(left)
    if code != SOME_FAILED:
        shutil.rmtree(folder, ignore_errors=True)
        kept.unlink()
    if _interrupted:
        sys.exit(128 + _interrupted[0])
    return code


def _outcome(process: subprocess.Popen[bytes]) -> int:
    """Wait for a process; return its exit code.

    Meanwhile what its descendants leave behind becomes ours (`_ADOPT_ORPHANS`), so that it can be found. When
    it ends it is waited for, as init would, or tests would take it for running.
    """
    while process.returncode is None:
        number, status = os.wait()
        if number == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def _descendants() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:100]
    except psutil.Error:
        return f"process {process.pid}"


def _end(processes: Sequence[psutil.Process]) -> None:
    for tell in (psutil.Process.terminate, psutil.Process.kill):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                tell(process)
        _, processes = psutil.wait_procs(processes, timeout=ENDING_S)


def _interrupt(number: int, _: object) -> None:
    """Interrupt pytest and its workers, as Ctrl-C in a terminal would, and later whatever is still there."""
    if not _interrupted:
        _interrupted.append(number)
        signal.alarm(TIDYING_S)
    ours = psutil.Process().children()
    for process in [*ours, *(one for child in ours for one in child.children())]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGINT)


def _lose_patience(number: int, _: object) -> None:
    for process in _descendants():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _failed(cache: Path) -> list[str]:
    """Return the node ids that pytest noted as failed and not yet passed."""
    file = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(file.read_text())) if file.is_file() else []


def shown(notes: Sequence[dict[str, Any]]) -> str:
    """Return the seconds of each folder, the tests that failed twice, and those that needed a second try."""
    lines = ["seconds: " + ", ".join(f"{note['folder']} {note['seconds']}" for note in notes)]
    for note in notes:
        if note["exit_code"] not in (0, SOME_FAILED):
            lines.append(
                f"not every test of {note['folder']} was run: pytest's exit code {note['exit_code']}"
            )
    twice = [test for note in notes for test in note["still_failing"]]
    if twice:
        lines += ["failed:", *(f"  {test}" for test in twice)]
    mended = [test for note in notes for test in note["failed"] if test not in note["still_failing"]]
    lines += ["needed a second try:" + ("" if mended else " no test"), *(f"  {test}" for test in mended)]
    return "\n".join(lines)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("run", "all", "show", "forget"))
    parser.add_argument("paths", nargs="*", help="a folder of tests, or files of one folder")
    words = sys.argv[1:]
    options = words[words.index("--") + 1 :] if "--" in words else []
    args = parser.parse_args(words[: -len(options) - 1] if "--" in words else words)
    if args.action == "forget":
        shutil.rmtree(NOTES, ignore_errors=True)
        return 0
    if args.action == "show":
        files = sorted(NOTES.glob("*.json"), key=lambda file: file.stat().st_mtime)
        print(shown([json.loads(file.read_text()) for file in files]))
        return 0
    if not args.paths:
        parser.error(f"{args.action}: name a folder of tests, or targets")
    if args.action == "all":
        make = ["make", "--no-print-directory"]
        codes = side_by_side([[*make, *args.paths]], [*make, *options])
        files = sorted(NOTES.glob("*.json"), key=lambda file: file.stat().st_mtime)
        print(shown([json.loads(file.read_text()) for file in files]))
        return max(map(abs, codes))
    NOTES.mkdir(parents=True, exist_ok=True)
    # Ctrl-C reaches pytest too, which ends the tests in order and is waited for.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGALRM, _lose_patience)
    ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
    return run(args.paths, options)


if __name__ == "__main__":
    sys.exit(main())
