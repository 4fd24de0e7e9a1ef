"""Containers on several hosts: under Slurm, by a script of one's own, and over ssh, as a user without rights.

Each host starts one container per rank; everything around it (requeue, ssh) stays outside.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apptainer_image
import pytest
from apptainer_image import User
from slurm_jobs import ROOT, Job, slurm, wait_until
from tiny_runs import make_shards, result, steps, write_config

from jobs.testbed import Testbed

pytestmark = pytest.mark.timeout(1800)  # the image is built before the first

PAGE = ROOT / "docs" / "how-to" / "run-in-apptainer.md"
EPOCHS = 20  # of 6 steps
ETHERNET = "fabric: ethernet\ninterfaces: [eth0]\n"


@dataclass(frozen=True)
class Study:
    """A folder of the testbed's user that all its hosts see, with shards, and commands run there."""

    hosts: Testbed
    image: Path
    folder: Path

    def run(self, *words: object, code: int = 0, timeout: float = 600) -> str:
        """What a command prints on the controller's host; AssertionError where it ends otherwise."""
        inside = self.image / "opt" / "cingulum" / "bin"  # holds an mpirun, where the host has none
        places = (self.folder / "bin", Path(apptainer_image.program() or "").parent)
        environment = {
            "PATH": ":".join(
                [*map(str, places), "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", str(inside)]
            ),
            "CINGULUM_HOME": str(self.folder / "home"),
            "CINGULUM_APPTAINER": "",
            "PYTHONPATH": "",
            "XDG_CONFIG_HOME": "",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        line = [str(word) for word in words]
        done = self.hosts.exec(
            *("ctl", line, self.hosts.user), cwd=self.folder, environment=environment, timeout=timeout
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{line}: exit code {done.returncode}\n{said[-5000:]}"
        return done.stdout if code == 0 else said

    def config(self, **changes: object) -> Path:
        changes.setdefault("checkpoint__every_steps", 10)
        return write_config(self.folder, self.folder / "shards", "run", **changes)

    def site(self, text: str) -> Path:
        path = self.folder / "site.yaml"
        path.write_text(text)
        return path

    def saved(self) -> list[int]:
        return steps(self.folder / "run")

    def containers(self) -> list[int]:
        """How many each host runs."""
        line = ["pgrep", "--count", "--full", "^Apptainer runtime parent"]
        return [int(self.hosts.exec(host, line).stdout) for host in self.hosts.hosts]

    def went_on(self, log: str) -> None:
        """The run was interrupted, went on at the very step, and ended as it should."""
        stopped = re.search(rf"stopped at step (\d+) of {EPOCHS * 6}", log)
        assert stopped, log
        assert f"resumed from {self.folder}/run/checkpoints/step-{int(stopped[1]):08d}" in log
        ended = result(self.folder / "run")
        assert (ended["world_size"], ended["steps"], ended["epochs"]) == (2, EPOCHS * 6, EPOCHS)
        assert json.loads((self.folder / "run" / "run.json").read_text())["hosts"] == ["n1", "n2"]
        owners = {path.owner() for path in (self.folder / "run").rglob("*") if path.stat().st_uid == 0}
        assert not owners


@pytest.fixture(scope="module")
def hosts(cluster_machine, apptainer_user: User) -> Iterator[Testbed]:
    """Two hosts with Slurm that see the image."""
    apptainer_user.folder.chmod(0o711)
    name = f"test-apptainer-{os.getpid()}"
    testbed = Testbed.up(2, shared=[apptainer_user.folder], name=name, tied=True)
    yield testbed
    testbed.down()


@pytest.fixture
def study(hosts: Testbed, apptainer_user: User) -> Iterator[Study]:
    folder = Path(tempfile.mkdtemp(prefix="my study ", dir=apptainer_user.folder))
    make_shards(folder / "shards")
    (folder / "bin").mkdir()
    command = folder / "bin" / "cingulum"
    command.write_text(f'#!/bin/sh\nexec {apptainer_user.python} -m cingulum "$@"\n')
    command.chmod(0o755)
    owned = hosts.exec("ctl", ["chown", "-R", f"{hosts.user}:", str(folder)])
    assert owned.returncode == 0, owned.stderr
    yield Study(hosts, apptainer_user.image, folder)
    hosts.settle()
    shutil.rmtree(folder)


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_slurm_brings_containers_on_two_hosts_through_preemption(study, launcher):
    site = study.site(f"container: apptainer\nlauncher: {launcher}\n{ETHERNET}")
    words = ("--launcher", "slurm", "--site", site, "--image", study.image, "--nodes", 2, "--time", 20)
    said = study.run("cingulum", "submit", study.config(train__epochs=EPOCHS), *words, "--json")
    label = json.loads(said)["jobs"][0]["id"]
    log = study.folder / "home" / "jobs"
    wait_until(study.saved, f"a checkpoint; see {log}")
    assert study.containers() == [1, 1]
    urgent = ["--partition=urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
    slurm(study.hosts, "sbatch", *urgent)
    study.run("cingulum", "wait", label)
    said = study.run("cingulum", "logs", label)
    assert "PMIX ERROR" not in said
    # srun ends the other ranks as soon as one has saved and gone, and tells of those.
    assert "asked to save (USR2)" in said and "; to be started again" in said
    study.went_on(said)
    (task,) = json.loads(study.run("cingulum", "show", label, "--json"))["tasks"]
    assert (task["state"], task["exit_code"], task["restarts"]) == ("COMPLETED", 0, 1)
    assert task["hosts"] == ["n1", "n2"]


def test_the_hybrid_script_to_edit_by_hand_saves_and_goes_on(study):
    text = (ROOT / "slurm" / "hybrid.sbatch").read_text()
    text, images = re.subn(
        r"^image=.*$", lambda _: f"image={shlex.quote(str(study.image))}", text, flags=re.M
    )
    text, gpus = re.subn(r"^#SBATCH --gpus-per-node.*\n", "", text, flags=re.M)  # "without GPUs: remove"
    assert (images, gpus) == (1, 1)
    (study.folder / "mine.sbatch").write_text(text)
    study.config(train__epochs=EPOCHS)
    changed = ("--partition=all", "--ntasks-per-node=1", "--cpus-per-task=1")
    label = study.run("sbatch", "--parsable", *changed, "mine.sbatch", "run.yaml").strip()
    log = study.folder / f"cingulum-{label}.log"
    wait_until(study.saved, f"a checkpoint; see {log}")
    assert study.containers() == [1, 1]
    study.run("scancel", "--batch", "--signal=USR2", label)
    job = Job(study.hosts, label, study.folder)
    wait_until(lambda: job.says("Restarts") == "1", "the requeue")
    job.wait_for_state("COMPLETED", seconds=400)
    study.went_on(log.read_text())


def test_mpirun_starts_containers_over_ssh_and_starts_them_again(study):
    (study.folder / "hosts").write_text("n1\nn2\n")
    site = study.site(f"hostfile: {study.folder}/hosts\n{ETHERNET}")
    words = ("--launcher", "apptainer", "--site", site, "--nodes", 2, "--ranks-per-node", 1)
    config = study.config(train__epochs=EPOCHS)
    study.run("ln", "-s", study.image, "/tmp/image")  # noqa: S108 - each host has its own /tmp
    said = study.run("cingulum", "submit", config, *words, "--image", "/tmp/image", code=1)  # noqa: S108
    assert "n1: /tmp/image is not there" in said and "n2: /tmp/image is not there" in said, said

    study.run("cingulum", "submit", config, *words, "--image", study.image)
    wait_until(study.saved, "a checkpoint")
    assert study.containers() == [1, 1]
    study.run("cingulum", "requeue", "apptainer-1")
    study.run("cingulum", "wait", "apptainer-1")
    study.went_on(study.run("cingulum", "logs", "apptainer-1"))
    (task,) = json.loads(study.run("cingulum", "show", "apptainer-1", "--json"))["tasks"]
    assert (task["state"], task["restarts"], task["hosts"]) == ("COMPLETED", 1, ["n1", "n2"])


def test_the_commands_of_the_page_run_with_a_sif_file(study, apptainer_user):
    program = str(apptainer_image.program())
    file = apptainer_user.folder / "cingulum.sif"
    fast = ("--mksquashfs-args", "-comp zstd -Xcompression-level 1")
    apptainer_user.run(program, "build", *fast, str(file), str(study.image), timeout=600)
    (study.folder / file.name).symlink_to(file)
    study.config(train__epochs=1).rename(study.folder / "my-run.yaml")
    mark = r"<!-- not run: run by tests/cluster/test_apptainer_hosts\.py[^>]*-->\n```sh\n(.*?)^```$"
    blocks = re.findall(mark, PAGE.read_text(), re.M | re.S)
    assert len(blocks) == 4
    for commands in blocks:
        allocation = ("salloc", "--nodes=2", "--ntasks-per-node=1") if "srun" in commands else ()
        study.run(*allocation, "bash", "-euc", commands)
        if "cingulum submit" in commands:
            study.run("cingulum", "wait", "apptainer-1")
        if "my-run.yaml" in commands:
            assert result(study.folder / "run")["world_size"] == 2
            shutil.rmtree(study.folder / "run")
