"""Slurm itself takes the scripts, and its ranks get what the job says."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest
import supervised_folder
import yaml
from shard_sets import make_shard_set

from jobs.schedulers import site_profiles
from jobs.schedulers.slurm.script import batch_script
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from jobs.testbed import Testbed

TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission
NOTES = Path(__file__).parent / "programs" / "note_arguments.py"
PLACE = site_profiles.shipped()
NASTY = [
    *("", " ", "-", "--", "--help", "*", "~", "a b", "it's", '"', "\\", "$(id)", "`id`", "$HOME", "#", ";"),
    *("a\nb", "\r\n", "\x1b[2J", "{{ x }}", "ünï 脳 \u202e", "a=b", "&& id", "a,b:c", "-x", "x" * 3000),
]
# How a folder may be called that Slurm writes to and a job runs in.
ODD = 'it\'s 50%j "quoted" ünï 脳 $HOME #1 (x)'


def slurm(cluster: Testbed, *command: str, cwd: Path | None = None) -> str:
    done = cluster.exec("ctl", command, cwd=cwd or "/")
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout + done.stderr


def finish(cluster: Testbed, job: str, seconds: float = 90) -> None:
    """Wait until a job is no longer in the queue's active states."""
    until = time.monotonic() + seconds
    while (states := set(slurm(cluster, "squeue", "-h", "-r", "-j", job, "-o", "%T").split())) - {
        "COMPLETED"
    }:
        assert time.monotonic() < until, f"job {job} is still {states} after {seconds:g} s"
        time.sleep(0.1)


def submit(cluster: Testbed, script: Path, *arguments: str, cwd: Path) -> str:
    said = slurm(cluster, "sbatch", "--parsable", *arguments, cwd=cwd)
    return said.strip().splitlines()[0]


def on_the_testbed(site: Site) -> Site:
    """The same profile on a cluster that has one partition, and neither accounts nor features."""
    gone = {"partition": None, "account": None, "qos": None, "gpu_type": None, "options": ()}
    return site.model_copy(update=gone)


@pytest.mark.parametrize("name", ["here", "lab", "centre", "apptainer", "cloud", "testbed"])
@pytest.mark.parametrize("array", [False, True], ids=["one", "array"])
def test_slurm_takes_what_is_rendered_for_each_kind_of_site(cluster, tmp_path, name, array):
    site = HERE if name == "here" else on_the_testbed(site_profiles.load(name))
    resources = Resources(3, 2, 2, 2, 1, memory_mib=200, minutes=5)
    job = JobSpec("a 'job'", "train", (("program",),) * (3 if array else 1), "/", resources, at_once=2)
    script = tmp_path / "job.sbatch"
    script.write_text(batch_script(job, site, tmp_path, TOKEN))
    said = slurm(cluster, "sbatch", "--test-only", str(script), cwd=tmp_path)
    assert re.search(r"Job \d+ to start at", said), said


@pytest.mark.parametrize("path", sorted(PLACE.glob("*.sbatch")), ids=lambda path: path.stem)
def test_slurm_takes_the_scripts_to_edit_by_hand(cluster, path):
    """With what is marked CHANGE changed on the command line, which wins over the lines of a script."""
    changed = ["--partition=all", "--cpus-per-task=1", "--ntasks-per-node=2"]
    if "--gpus-per-node" in path.read_text():
        changed.append("--gpus-per-node=2")
    said = slurm(cluster, "sbatch", "--test-only", *changed, str(path), "x.yaml")
    assert re.search(r"Job \d+ to start at", said), said
    unknown = cluster.exec("ctl", ["sbatch", "--test-only", str(path), "x.yaml"], cwd="/")
    assert "invalid partition" in unknown.stderr


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ranks_on_every_host_get_the_words_and_variables_of_the_job(cluster, tmp_path, launcher):
    run_in, private = tmp_path / f"run {ODD}", tmp_path / f"job {ODD}"
    run_in.mkdir()
    private.mkdir()
    environment = {f"V_{number}": text for number, text in enumerate(NASTY)}
    job = JobSpec(
        name=ODD,
        kind="train",
        tasks=((sys.executable, str(NOTES), *NASTY),),
        folder=str(run_in),
        resources=Resources(2, None, 2),
        environment={**environment, "V_NOTES": str(tmp_path)},
    )
    script = tmp_path / "job.sbatch"
    options = ("--cpu-bind=verbose,none", "--network=lower") if launcher == "srun" else ()
    site = SlurmSite(
        launcher=launcher,
        fabric="ethernet",
        interfaces=("eth0",),
        before_modules="export V_FIRST=1",
        setup='export V_SETUP="a  b$V_FIRST"',
        srun_options=options,
    )
    supervised_folder.fill(private)
    script.write_text(batch_script(job, site, private, TOKEN))
    finish(cluster, submit(cluster, script, str(script), cwd=tmp_path))

    log = (private / "out.log").read_text(errors="replace")
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("0-*.json"))]
    assert len(found) == 4, log
    assert len({rank["host"] for rank in found}) == 2
    for rank in found:
        assert rank["arguments"] == NASTY
        assert {key: rank["environment"][key] for key in environment} == environment
        assert rank["environment"]["V_SETUP"] == "a  b1"
        if launcher == "srun":  # told its ranks what it was told
            assert "none" in rank["environment"]["SLURM_CPU_BIND"]
        assert rank["environment"]["OMPI_MCA_btl_tcp_if_include"] == "eth0"
        assert rank["folder"] == str(run_in)


def test_a_line_of_the_site_that_fails_on_a_host_fails_the_job(cluster, tmp_path):
    job = JobSpec("line", "train", ((sys.executable, "-c", "print('WRONG')"),), "/")
    script = tmp_path / "job.sbatch"
    supervised_folder.fill(tmp_path)
    script.write_text(batch_script(job, Site(setup="source /nowhere/activate"), tmp_path, TOKEN))
    finish(cluster, submit(cluster, script, str(script), cwd=tmp_path))
    log = (tmp_path / "out.log").read_text()
    assert "failed on n1 with exit code 1: source /nowhere/activate" in log and "WRONG" not in log
    (task,) = json.loads((tmp_path / "state.json").read_text())["tasks"]
    assert (task["state"], task["exit_code"]) == ("FAILED", 2)


WORLD = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
gpus = len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))
os.write(1, f"rank {world.rank} of {world.allreduce(1)} GPUs {gpus}\\n".encode())
"""


@pytest.mark.parametrize(("launcher", "form", "gpus"), [("mpirun", "gres", 2), ("srun", "gpus-per-task", 1)])
def test_ranks_of_two_hosts_are_one_world_with_their_gpus(cluster, tmp_path, launcher, form, gpus):
    site = SlurmSite(launcher=launcher, gpu_request=form, fabric="ethernet", interfaces=("eth0",))
    job = JobSpec("world", "train", ((sys.executable, "-c", WORLD),), "/", Resources(2, None, 2, 2))
    script = tmp_path / "job.sbatch"
    supervised_folder.fill(tmp_path)
    script.write_text(batch_script(job, site, tmp_path, TOKEN))
    finish(cluster, submit(cluster, script, str(script), cwd=tmp_path))
    log = (tmp_path / "out.log").read_text()
    for rank in range(4):
        assert f"rank {rank} of 4 GPUs {gpus}\n" in log, log


def test_each_task_of_an_array_gets_its_own_words_and_log(cluster, tmp_path):
    private = tmp_path / f"job {ODD}"
    private.mkdir()
    tasks = tuple((sys.executable, str(NOTES), f"task {number}", "\n") for number in range(3))
    job = JobSpec("array", "crossval", tasks, "/", at_once=2, environment={"V_NOTES": str(tmp_path)})
    script = tmp_path / "job.sbatch"
    supervised_folder.fill(private)
    script.write_text(batch_script(job, Site(), private, TOKEN))
    finish(cluster, submit(cluster, script, str(script), cwd=tmp_path))
    for number in range(3):
        log = (private / f"out-{number}.log").read_text()
        assert (tmp_path / f"{number}-0.json").exists(), log
        noted = json.loads((tmp_path / f"{number}-0.json").read_text())
        assert noted["arguments"] == [f"task {number}", "\n"]


def test_a_token_finds_its_job(cluster, tmp_path):
    job = JobSpec("a job", "train", ((sys.executable, "-c", "pass"),), "/")
    script = tmp_path / "job.sbatch"
    supervised_folder.fill(tmp_path)
    script.write_text(batch_script(job, Site(), tmp_path, TOKEN))
    number = submit(cluster, script, "--hold", str(script), cwd=tmp_path)
    assert slurm(cluster, "squeue", "-h", "-j", number, "-o", "%k %j").split() == [
        f"cingulum:{TOKEN}",
        "a_job",
    ]


@pytest.mark.slow
def test_a_script_edited_by_hand_trains_on_two_hosts(cluster, tmp_path):
    make_shard_set(tmp_path / "shards", 20, shape=(16, 16, 16, 1))
    config = {
        "name": "by-hand",
        "data": {"shards": "shards"},
        "model": {"name": "tiny", "width": 2},
        "train": {"epochs": 1, "global_batch": 4},
    }
    (tmp_path / "my run.yaml").write_text(yaml.safe_dump(config))
    script = tmp_path / "mine.sbatch"
    text = (PLACE / "multi-node.sbatch").read_text()
    text = text.replace(
        "# source /path/to/cingulum/.venv/bin/activate", f"PATH={Path(sys.executable).parent}:$PATH"
    )
    script.write_text(text)
    changed = ["--partition=all", "--cpus-per-task=1", "--ntasks-per-node=1", "--gpus-per-node=0"]
    # Only as root, which Open MPI asks twice about; the hosts of the testbed have few cores.
    root = "ALL,OMPI_ALLOW_RUN_AS_ROOT=1,OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
    job = submit(cluster, script, *changed, f"--export={root}", str(script), "my run.yaml", cwd=tmp_path)
    finish(cluster, job, 150)
    log = (tmp_path / f"cingulum-{job}.log").read_text()
    result = tmp_path / "runs" / "by-hand" / "result.json"
    assert result.exists(), log
    record = json.loads((tmp_path / "runs" / "by-hand" / "run.json").read_text())
    assert record["world_size"] == 2
