"""Every command in README.md and docs/ is run, in the order of its page, as a reader would run it.

The gate runs README.md, with a smaller demo; the other pages and the whole demo are marked `deep`, and
tests/unit/test_command_lines.py parses all their lines in the gate.

A page's ```sh blocks run in a copy of the checkout with `.venv/bin` first on PATH. The copy holds
`my-study/`, a small BIDS cohort of phantoms (the pages' stand-in for the reader's own data),
`my-study-shards/`, imported from it, and the finished run `runs/my-first-run`. A block that cannot run
here is preceded by `<!-- not run: why -->`; blocks of other languages are not commands.
"""

import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pages import FENCE, PAGES, ROOT

# Run by the gate itself; from within a test they would recurse.
RUN_BY_THE_GATE = ("make setup", "make test", "make check")
SMALL_DEMO = {"DEMO_SUBJECTS": "48", "DEMO_CHANGES": "train.epochs=4"}


@dataclass(frozen=True)
class Block:
    commands: str
    why_not: str | None


def blocks(page: Path) -> list[Block]:
    found = [match for match in FENCE.finditer(page.read_text()) if match["language"] == "sh"]
    return [Block(match["body"], match["why"]) for match in found]


def runnable(page: Path) -> list[str]:
    lines = [line for block in blocks(page) if block.why_not is None for line in block.commands.splitlines()]
    return [line for line in lines if not line.startswith(RUN_BY_THE_GATE)]


def environment(folder: Path, **variables: str) -> dict[str, str]:
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="1", COLUMNS="80", **variables)
    # Not the user's own jobs, nor the user's own site profiles.
    env.update(CINGULUM_HOME=str(folder / ".jobs"), XDG_CONFIG_HOME=str(folder / ".settings"))
    env.pop("CINGULUM_STORE", None)
    env["PATH"] = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{env['PATH']}"
    if os.getuid() == 0:
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    return env


def run(script: str, folder: Path, timeout: float, **variables: str) -> None:
    started = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment(folder, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = started.communicate(timeout=timeout)
        ended = f"exit code {started.returncode}"
    except subprocess.TimeoutExpired:
        # All that it started, too: whoever holds the pipes would be waited for.
        os.killpg(started.pid, signal.SIGKILL)
        out, err = started.communicate()
        ended = f"not done after {timeout:.0f} s"
    shown = f"{script}\n--- stdout\n{out[-3000:]}\n--- stderr\n{err[-5000:]}"
    assert ended == "exit code 0", f"{ended}:\n{shown}"


def copy_checkout(to: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    (to / ".venv").symlink_to(ROOT / ".venv")


@pytest.fixture(scope="session")
def study(tmp_path_factory, worker_id) -> Path:
    """The reader's own data: a cohort, its shards and one finished run; made once for all workers."""
    if worker_id == "master":
        return make_study(tmp_path_factory.mktemp("study"))
    shared = tmp_path_factory.getbasetemp().parent
    with (shared / "study.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "study").is_dir():
            make_study(tmp_path_factory.mktemp("study")).rename(shared / "study")
    return shared / "study"


def make_study(folder: Path) -> Path:
    run(
        "cingulum phantom my-study --subjects 24 --size 32 --seed 5\n"
        "cingulum import my-study my-study-shards --label diagnosis --size 32\n"
        "cingulum train " + str(ROOT / "examples" / "my-study.yaml") + " train.epochs=2\n",
        folder,
        timeout=300,
    )
    return folder


def pages_to_run() -> Iterator:
    """Pages with commands, and variables that they run with."""
    for page in filter(runnable, PAGES):
        name = str(page.relative_to(ROOT))
        if page == ROOT / "README.md":
            yield pytest.param(page, SMALL_DEMO, id=name)
        else:
            yield pytest.param(page, {}, id=name, marks=pytest.mark.deep)
    yield pytest.param(ROOT / "README.md", {}, id="README.md with the whole demo", marks=pytest.mark.deep)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("page", "variables"), list(pages_to_run()))
def test_the_commands_of_a_page_run(page, variables, study, tmp_path):
    copy_checkout(tmp_path)
    shutil.copytree(study, tmp_path, dirs_exist_ok=True)
    run("\n".join(runnable(page)), tmp_path, timeout=800, **variables)


def test_a_command_block_that_fails_is_noticed(tmp_path):
    with pytest.raises(AssertionError, match="exit code 3"):
        run("true\nexit 3", tmp_path, timeout=10)


def test_a_command_that_hangs_is_ended_and_named(tmp_path):
    with pytest.raises(AssertionError, match=r"not done after 1 s:\s+sleep 100"):
        run("sleep 100 | cat", tmp_path, timeout=1)


def test_a_page_neither_sees_nor_changes_the_jobs_and_sites_of_who_runs_the_tests(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_STORE", "sqlite:////nowhere/jobs.db")
    run(
        "[[ $CINGULUM_HOME == $PWD/* && $XDG_CONFIG_HOME == $PWD/* && ! -v CINGULUM_STORE ]]",
        tmp_path,
        timeout=10,
    )
