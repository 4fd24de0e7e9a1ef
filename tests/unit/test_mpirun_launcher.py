"""The command line of an mpirun launch."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from wording import fails_with

from jobs.local import host_checks, host_facts, mpirun
from jobs.local.attended_files import TERMS, Terms
from jobs.local.mpirun import Mpirun
from jobs.schedulers import registry
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError, LauncherError, WorldError

ARGV = ["python", "train.py"]


@pytest.fixture(autouse=True)
def _an_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpirun, "find", lambda: "mpirun")
    for name in [key for key in os.environ if key.startswith("SLURM_")]:
        monkeypatch.delenv(name)


def test_the_line_ends_with_the_program_and_its_arguments() -> None:
    line, _ = mpirun.command(2, ARGV, root=False)
    assert line == ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none", *ARGV]


def test_the_url_of_the_store_is_sent_to_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINGULUM_STORE", "postgresql://me:hush@db/jobs")
    monkeypatch.setenv("CINGULUM_HOME", "/home/me/jobs")
    line, _ = mpirun.command(2, ARGV, hosts={"a": 1, "b": 1}, root=False)
    other = mpirun.on_hosts(Path("hosts"), tuple(ARGV), mpirun="mpirun", folder="/", forwarded=())
    assert "CINGULUM_STORE" not in [*line, *other]
    assert line.count("CINGULUM_HOME") == other.count("CINGULUM_HOME") == 1


def test_only_root_confirms_that_it_is_root() -> None:
    assert mpirun.command(2, ARGV, root=False)[1] == {}
    assert set(mpirun.command(2, ARGV, root=True)[1]) == {
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
    }


def test_hosts_are_named_with_their_slots_and_get_our_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2")
    line, _ = mpirun.command(3, ARGV, hosts={"a": 2, "b": 1})
    assert line[line.index("--host") + 1] == "a:2,b:1"
    assert line[line.index("HOROVOD_CYCLE_TIME") - 1] == "-x"


def test_hosts_without_room_are_refused() -> None:
    with fails_with(WorldError):
        mpirun.command(4, ARGV, hosts={"a": 2, "b": 1})


def test_no_rank_at_all_is_refused() -> None:
    with fails_with(WorldError):
        mpirun.command(0, ARGV)


HOSTILE = "a b\n$(reboot) -x 'q'"


def spec(**changes) -> JobSpec:
    given = {"resources": Resources(nodes=2, ranks_per_node=2), **changes}
    return JobSpec("test", "train", (("cingulum", "train", HOSTILE),), "/data/my study", **given)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "hosts").write_text("n1 slots=2\nn2\nn3 slots=1\n")
    return Site(hostfile=str(tmp_path / "hosts"), interfaces=("eth0",), environment={"OF_THE_SITE": "1"})


def terms_of(site: Site, job: JobSpec) -> Terms:
    plan = Mpirun().plan(job, site, Path("/jobs/x"), "0" * 16)
    agreed = Terms.from_json(plan.files[TERMS])
    assert plan.command == agreed.commands[0] and plan.environment == agreed.environment
    return agreed


def test_a_plan_on_hosts_reads_the_hosts_of_each_start_and_sends_names_only(site) -> None:
    agreed = terms_of(site, spec(environment={"MY_KEY": HOSTILE}))
    line = list(agreed.commands[0])
    assert line[:6] == ["mpirun", "--hostfile", "/jobs/x/hosts-0", "--wdir", "/data/my study", "--bind-to"]
    assert line[-3:] == ["cingulum", "train", HOSTILE]
    sent = [line[k + 1] for k, word in enumerate(line[:-3]) if word == "-x"]
    assert {"MY_KEY", "OF_THE_SITE", "PATH", "CINGULUM_TASK", "CINGULUM_RESTARTS"} <= set(sent)
    assert not any(name.startswith("OMPI_") for name in sent) and HOSTILE not in line[:-1]
    assert agreed.hosts == {"n1": 2, "n2": 2, "n3": 1}
    assert agreed.environment["OMPI_MCA_btl_tcp_if_include"] == "eth0"
    assert agreed.environment["MY_KEY"] == HOSTILE and agreed.probe[0] == "ssh"


def test_how_soon_a_host_is_given_up_can_be_set_by_site_and_job(site) -> None:
    name = "OMPI_MCA_oob_tcp_keepalive_time"
    assert terms_of(site, spec()).environment[name] == mpirun.DETECTION[name]
    changed = site.model_copy(update={"environment": {name: "60"}})
    assert terms_of(changed, spec()).environment[name] == "60"
    assert terms_of(changed, spec(environment={name: "90"})).environment[name] == "90"


def test_without_hosts_a_job_runs_here_and_wants_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = terms_of(HERE, spec(resources=Resources(ranks_per_node=2)))
    assert agreed.hosts == {} and agreed.commands[0][1:3] == ("-np", "2")
    with fails_with(JobError):
        terms_of(HERE, spec())


@pytest.mark.parametrize("value", ["$(reboot)", '"; reboot; "', "`reboot`", "a\\", "a\nb", "!1"])
def test_no_parameter_of_open_mpi_reaches_the_shells_of_hosts_that_means_something_there(site, value) -> None:
    name = "OMPI_MCA_plm_rsh_args"
    with pytest.raises(JobError, match=name):
        terms_of(site, spec(environment={name: value}))
    with pytest.raises(JobError, match=name):
        terms_of(site.model_copy(update={"environment": {name: value}}), spec())
    assert terms_of(site, spec(environment={name: "-o Port=2222 -i '/a b'"})).environment[name]


def test_the_mpirun_of_the_site_is_used_here_as_on_hosts(site) -> None:
    here = Site(mpirun="/opt/mpi/bin/mpirun")
    assert terms_of(here, spec(resources=Resources())).commands[0][0] == "/opt/mpi/bin/mpirun"
    there = site.model_copy(update={"mpirun": "/opt/mpi/bin/mpirun"})
    assert terms_of(there, spec()).commands[0][0] == "/opt/mpi/bin/mpirun"


def test_a_job_without_ranks_is_run_without_mpirun(site) -> None:
    assert terms_of(site, spec(parallel=False)).commands == (("cingulum", "train", HOSTILE),)


def test_an_allocation_goes_before_the_hostfile(site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[07-08]")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2(x2)")
    agreed = terms_of(site, spec())
    assert agreed.hosts == {"gpu07": 2, "gpu08": 2} and agreed.probe[0] == "srun"


@pytest.mark.parametrize(
    "resources", [Resources(nodes=3, ranks_per_node=2), Resources(nodes=2, ranks_per_node=3)]
)
def test_hosts_without_enough_slots_are_refused_with_their_slots(site, resources) -> None:
    with fails_with(JobError):
        terms_of(site, spec(resources=resources))


def test_a_hostfile_that_is_not_there_is_named(tmp_path) -> None:
    with fails_with(JobError):
        terms_of(Site(hostfile=str(tmp_path / "nowhere")), spec())


def test_a_host_that_differs_is_told_in_what(site) -> None:
    here = {
        "openmpi": "4.1.8",
        "cingulum": "a",
        "python": "3.11.7",
        "program": True,
        "folder": True,
        "missing": [],
        "interfaces": ["eth0"],
    }
    assert host_checks.differences(here, here, site, spec()) == []
    other = {**here, "openmpi": "", "cingulum": "b", "python": "3.12.0", "program": False, "folder": False}
    told = host_checks.differences(here, {**other, "missing": ["/i.sif"], "interfaces": ["lo"]}, site, spec())
    assert len(told) == 7
    assert told[-2].startswith("/i.sif is not there")
    assert told[0] == "Open MPI is missing; here it is 4.1.8"
    assert "no network interface eth0" in told[-1]


def test_each_host_is_asked_for_the_image_and_what_its_containers_see(monkeypatch, tmp_path) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(host_checks, "ask", lambda hosts, words: asked.append(tuple(words)) or {})
    job = spec(image="/i.sif", binds=("/data",), readonly=("/shards",))
    host_checks.check([], 0, mpirun="mpirun", spec=job, site=Site())
    assert asked[0][-3:] == ("/i.sif", "/data", "/shards")
    facts = host_facts.facts("mpirun", "/", "sh", str(tmp_path), "/nowhere.sif")
    assert facts["missing"] == ["/nowhere.sif"]


def test_ranks_that_outlive_each_other_are_started_so_and_keep_lost_hosts_company(site) -> None:
    """mpirun is told to go on, and ended by `surviving`; no attendant ends ranks for a silent host."""
    plain, outliving = terms_of(site, spec()), terms_of(site, spec(outlives=True))
    assert list(outliving.commands[0][1:3]) == ["-m", "jobs.local.surviving"]
    assert outliving.commands[0][3:] == plain.commands[0]
    assert outliving.check_s == 0 < plain.check_s
    line, _ = mpirun.command(2, ["program"], root=False, outlives=True)
    assert line[1:] == ["-m", "jobs.local.surviving", *mpirun.command(2, ["program"], root=False)[0]]


@pytest.mark.parametrize(("found", "launcher"), [("/usr/bin/sbatch", "slurm"), (None, "mpirun")])
def test_where_there_is_no_slurm_mpirun_is_proposed(monkeypatch, found, launcher) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: found)
    assert registry.preferred() == launcher


def test_a_scheduler_of_another_package_that_cannot_be_loaded_is_named(monkeypatch) -> None:
    monkeypatch.setattr(registry, "schedulers", lambda: {"pbs": "no_such_package.launcher:Pbs"})
    assert registry.is_scheduler("pbs") and "pbs" in registry.names()
    with fails_with(LauncherError) as failed:
        registry.preferred()
    assert "no_such_package.launcher:Pbs" in failed.value.message
