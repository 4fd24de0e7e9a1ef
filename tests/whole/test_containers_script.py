"""docker/containers.sh with a stand-in for Docker: what it asks for, what it refuses, what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docker" / "containers.sh"
# Notes every call. Containers with a server add their key; `mpirun` does what MPIRUN says.
DOCKER = f"""#!{sys.executable}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
here = Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[0] in os.environ.get("REFUSED", "").split():
    sys.exit("Cannot connect to the Docker daemon")
if words[0] == "ps":
    print("c1\\nc2")
if words[0] == "inspect":
    print("75" if "{{{{.State.ExitCode}}}}" in words else "false")
if words[0] == "run" and "mpirun" in words:
    (here / "mpirun").touch()
    os.execvp("sh", ["sh", "-c", os.environ["MPIRUN"]])
if words[0] == "run" and "NO_SERVER" not in os.environ:
    (mount,) = [word for word in words if word.endswith("target=/run/cingulum-ssh")]
    keys = Path(mount.split("source=")[1].split(",")[0])
    with (keys / "known_hosts").open("a") as known:
        known.write("key\\n")
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "a study $(id) 'x'").mkdir()
    return tmp_path


def start(folder: Path, *words: str, cwd: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    user = str(os.getuid() or 12345)
    given = {
        "CINGULUM_DOCKER": str(folder / "docker"),
        "TMPDIR": str(folder / "tmp"),
        "SUDO_UID": user,
        "SUDO_GID": user if os.getuid() == 0 else str(os.getgid()),
        "MPIRUN": "exit 0",
        **variables,
    }
    return subprocess.Popen(
        [str(SCRIPT), *(words or ("cingulum:ssh", "2", "3", "cingulum", "train", "a b.yaml"))],
        cwd=cwd or folder / "a study $(id) 'x'",
        env={**os.environ, **given},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def calls(folder: Path) -> list[list[str]]:
    path = folder / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"no {path.name} within 30 s"
        time.sleep(0.01)


def test_containers_see_what_they_must_and_nothing_is_left(folder):
    assert ended(start(folder, CINGULUM_DATA="/data one::/data2")) == (0, "")
    first, second, mpirun = [words for words in calls(folder) if words[0] == "run"]
    study = f"{folder}/a study $(id) 'x'"
    for words in (first, second, mpirun):
        assert f"type=bind,source={study},target={study}" in words
        assert "type=bind,source=/data one,target=/data one,readonly" in words
        assert "type=bind,source=/data2,target=/data2,readonly" in words
        assert {"--init", "--pull=never", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(words)
        assert words[words.index("--shm-size") + 1] == "1024m"
    names = [words[words.index("--name") + 1] for words in (first, second)]
    at = mpirun.index("mpirun")
    assert mpirun[at - 1] == "cingulum:ssh"
    assert mpirun[at + 1 : at + 3] == ["--host", f"{names[0]}:3,{names[1]}:3"]
    assert mpirun[-3:] == ["cingulum", "train", "a b.yaml"]
    assert ["rm", "--force", "c1", "c2"] in calls(folder)
    assert calls(folder)[-1][:2] == ["network", "rm"]
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_reaches_mpirun_whose_exit_code_is_ours(folder, number):
    name = number.name.removeprefix("SIG")
    process = start(
        folder, MPIRUN=f'trap "exit 75" {name}; touch "{folder}/ready"; while :; do sleep 0.01; done'
    )
    wait_for(folder / "ready")
    process.send_signal(number)
    assert ended(process) == (75, "")
    assert list((folder / "tmp").iterdir()) == []


def test_a_signal_that_comes_when_mpirun_has_ended_does_not_change_the_exit_code(folder):
    """The script is held still until both have happened: its trap finds nobody to tell, bash no exit code."""
    told = "(sleep 0.3; kill -USR2 $PPID; kill -CONT $PPID) & kill -STOP $PPID; exit 75"
    assert ended(start(folder, MPIRUN=told)) == (75, "")


@pytest.mark.parametrize("refused", ["ps", "rm", "network"])
def test_keys_go_and_the_exit_code_stays_whatever_docker_says(folder, refused):
    code, said = ended(start(folder, MPIRUN="exit 75", REFUSED=refused))
    assert code == (1 if refused == "network" else 75), said
    assert list((folder / "tmp").iterdir()) == []


def test_containers_that_end_at_once_are_a_failure_that_may_be_tried_again(folder):
    code, said = ended(start(folder, NO_SERVER="1"))
    assert code == 1
    assert "has ended" in said
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize("data", ["/a,readonly=false", '/a"b', "relative", "/a\n/b", "/ok:/x,y"])
def test_data_that_would_be_another_mount_is_refused(folder, data):
    code, said = ended(start(folder, CINGULUM_DATA=data))
    assert code == 2, said
    assert not [words for words in calls(folder) if words[0] == "run"]
    assert list((folder / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("cingulum:ssh", "2", "1"),
        ("cingulum:ssh", "0", "1", "true"),
        ("cingulum:ssh", "2", "1 2", "true"),
        ("cingulum:ssh", "a[$(id)]", "1", "true"),
        ("--privileged", "2", "1", "true"),
    ],
)
def test_words_that_cannot_be_are_refused(folder, words):
    assert ended(start(folder, *words))[0] == 2
    assert calls(folder) == []


def test_a_working_folder_that_docker_cannot_mount_is_refused(folder):
    (folder / "a,b").mkdir()
    code, said = ended(start(folder, cwd=folder / "a,b"))
    assert code == 2
    assert "a,b" in said
    assert calls(folder) == []
