"""What the gate does when a test process dies, or a test fails once or twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

PASSES = "import os, time\n" + "".join(f"def test_{name}():\n    time.sleep(0.05)\n" for name in "abc")
FILES = {
    "test_a.py": PASSES,
    "test_b_dies.py": PASSES.replace("time.sleep(0.05)", "os._exit(1)"),
    "test_c.py": PASSES,
    "test_d.py": PASSES,
}


@pytest.mark.parametrize(("dies", "code"), [(True, 3), (False, 0)])
def test_a_test_process_that_died_ends_the_gate_and_is_no_failure_to_try_again(
    tmp_path: Path, dies: bool, code: int
) -> None:
    """Replaced, it would run the same test again for ever; and tests that nobody ran have not passed."""
    for name, text in FILES.items():
        if dies or name != "test_b_dies.py":
            (tmp_path / name).write_text(text)
    (tmp_path / "tests" / "helpers").mkdir(parents=True)
    for name, place in (("conftest.py", "."), ("gate.yaml", "."), ("helpers/wording.py", "tests")):
        (tmp_path / place / name).write_bytes((ROOT / "tests" / name).read_bytes())
    (tmp_path / "setup.cfg").write_bytes((ROOT / "setup.cfg").read_bytes())

    done = subprocess.run(
        [sys.executable, "-m", "pytest", ".", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == code, done.stdout + done.stderr


# Fails when it is run first; with `always`, every time.
FAILS = """
from pathlib import Path

def test_{name}():
    seen = Path("{name}")
    first = not seen.exists()
    seen.touch()
    assert not first and not {always}
"""
PASSES_AND_RUNS_ONCE = """
from pathlib import Path

def test_that_passes():
    Path("passed").open("x").close()
"""


LEAVES = """
import subprocess

def test_that_leaves():
    subprocess.run(["sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! >left"])
"""
TIDIES = """
import subprocess, time
from pathlib import Path
import pytest

@pytest.fixture
def tidied():
    Path("begun").touch()
    yield
    Path("tidied").touch()

def test_that_lasts(tidied):
    subprocess.run(["sleep", "1000"])
"""


def make(folder: Path, target: str, tests: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the words and the environment for a target of our Makefile, with our setup.cfg and tools."""
    for name in ("Makefile", "setup.cfg", "tools"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("unit", "whole", "parallel", "docs", "cluster"):
        (folder / "tests" / name).mkdir(parents=True)
        text = tests.get(name, "def test_that_passes():\n    pass\n")
        (folder / "tests" / name / f"test_of_{name}.py").write_text(text)
    # No setup, and no processes of pytest-xdist.
    words = ["make", target, "PYTHON=true", f"BIN={ROOT / '.venv/bin'}", "WORKERS=0", "BESIDE=0", "WAITING=0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "MAKE", "MFLAGS"))}
    return words, environment


def make_test(folder: Path, tests: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `make test` on these tests."""
    words, environment = make(folder, "test", tests)
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )


def test_tests_that_needed_a_second_try_are_named_last_whichever_folder_they_are_in(tmp_path: Path) -> None:
    tests = {name: FAILS.format(name=name, always=False) for name in ("unit", "docs")}
    done = make_test(tmp_path, {**tests, "cluster": PASSES_AND_RUNS_ONCE})

    assert done.returncode == 0, done.stdout + done.stderr
    said, *named = done.stdout.splitlines()[-3:]
    assert said == "needed a second try:"
    # In the order in which they ended.
    assert set(named) == {
        "  tests/unit/test_of_unit.py::test_unit",
        "  tests/docs/test_of_docs.py::test_docs",
    }
    seconds = next(line for line in done.stdout.splitlines() if line.startswith("seconds: "))
    assert all(f"tests/{name} " in seconds for name in ("unit", "whole", "parallel", "docs", "cluster"))


def test_a_test_that_fails_twice_fails_make_test_and_is_named_apart(tmp_path: Path) -> None:
    tests = {
        "whole": FAILS.format(name="whole", always=False),
        "unit": PASSES_AND_RUNS_ONCE + FAILS.format(name="unit", always=True),
    }
    done = make_test(tmp_path, tests)

    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "failed:",
        "  tests/unit/test_of_unit.py::test_unit",
        "needed a second try:",
        "  tests/whole/test_of_whole.py::test_whole",
    ]
    assert (tmp_path / "passed").exists()


def test_where_every_test_passes_at_once_that_is_said(tmp_path: Path) -> None:
    done = make_test(tmp_path, {})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "needed a second try: no test"), done.stdout


def test_what_tests_leave_running_is_ended_and_named(tmp_path: Path) -> None:
    words, environment = make(tmp_path, "test-unit", {"unit": LEAVES})
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "== left running by tests, now ended: 1, first sleep 1000" in done.stdout
    assert not psutil.pid_exists(int((tmp_path / "left").read_text()))


def test_terminated_it_lets_its_tests_tidy_up_and_leaves_nothing(tmp_path: Path) -> None:
    words, environment = make(tmp_path, "test", {"unit": TIDIES})
    with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as running:
        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        started = psutil.Process(running.pid).children(recursive=True)
        running.terminate()
        running.communicate(timeout=60)

    assert running.returncode != 0
    assert (tmp_path / "tidied").exists()
    assert len(started) > 3 and not any(one.is_running() for one in started)
