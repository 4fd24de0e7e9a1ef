"""The Slurm launcher against programs that answer as Slurm does, refuse, or never answer."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

import pytest
from wording import fails_with

from jobs.schedulers.base import Launch, NoAnswer
from jobs.schedulers.slurm import commands
from jobs.schedulers.slurm import launcher as slurm
from jobs.schedulers.slurm.launcher import Slurm
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.sites import HERE, Site
from jobs.spec import JobSpec
from trainer.errors import JobError, LauncherError

ANSWERS = Path(__file__).parent / "slurm_answers"
SPEC = JobSpec(name="mine", kind="train", tasks=(("cingulum", "train", "mine.yaml"),), folder="/work")
TOKEN = "0123456789abcdef"  # noqa: S105


class Programs:
    """Stand-ins for Slurm's commands; each writes down how it was called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = folder / "calls"

    def put(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f'#!/bin/bash\nprintf \'%s\\n\' "$(basename "$0") $*" >>{self.record}\n{body}\n')
        path.chmod(0o755)

    def answers(self, name: str, file: str) -> None:
        self.put(name, f"cat {ANSWERS / file}")

    @property
    def calls(self) -> list[str]:
        return self.record.read_text().splitlines() if self.record.exists() else []


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    (tmp_path / "bin").mkdir()
    found = Programs(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}:/usr/bin:/bin")
    # No real Slurm of the machine may answer in their place.
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol", "srun"):
        found.put(name, f"echo '{name} was not expected' >&2; exit 97")
    return found


def test_a_job_is_submitted_with_its_token_and_the_jobs_it_waits_for(programs, tmp_path):
    programs.put("sbatch", "echo '4711;cluster'")
    plan = Slurm().plan(SPEC, HERE, tmp_path, TOKEN)
    assert Slurm().start(plan, tmp_path, ["41", "42"]) == "4711"
    assert programs.calls == [
        f"sbatch --parsable --comment=cingulum:{TOKEN} --kill-on-invalid-dep=yes "
        f"--dependency=afterok:41:42 {tmp_path}/job.sbatch"
    ]
    script = tmp_path / "job.sbatch"
    assert script.read_text().startswith("#!/bin/bash\n") and script.stat().st_mode & 0o777 == 0o600


def test_a_script_in_a_folder_with_an_odd_name_is_one_argument(programs, tmp_path):
    folder = tmp_path / "it's $(mine) ;"
    folder.mkdir()
    programs.put("sbatch", '[ -f "${@: -1}" ] || exit 3; echo 7')
    assert (
        Slurm().start(
            Launch({"job.sbatch": "#!/bin/bash\n"}, ("sbatch", str(folder / "job.sbatch"))), folder, []
        )
        == "7"
    )


def test_nothing_of_the_job_that_we_run_in_reaches_a_new_one(programs, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "99")
    monkeypatch.setenv("SLURM_CONF", "/etc/mine.conf")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    # These would win over what the script says; who pays is the user's own matter.
    monkeypatch.setenv("SBATCH_OUTPUT", "/dev/null")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    programs.put("sbatch", 'env | grep -E "^S(LURM|QUEUE|BATCH)_" | sort >"$(dirname "$0")/env"; echo 7')
    Slurm().start(Launch({}, ("sbatch", "job.sbatch")), tmp_path, [])
    assert (programs.folder / "env").read_text() == "SBATCH_ACCOUNT=mine\nSLURM_CONF=/etc/mine.conf\n"


@pytest.mark.parametrize(
    ("said", "cure"),
    [
        ("sbatch: error: invalid partition specified: nope", "sinfo -s"),
        (
            "sbatch: error: Batch job submission failed: Requested node configuration is not available",
            "sinfo",
        ),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller", "scontrol ping"),
        ("sbatch: fatal: Could not establish a configuration source", "SLURM_CONF"),
    ],
)
def test_what_slurm_refuses_is_told_with_a_cure(programs, tmp_path, said, cure):
    programs.put("sbatch", f"echo '{said}' >&2; exit 1")
    with pytest.raises(LauncherError) as failed:
        Slurm().start(Launch({}, ("sbatch", "job.sbatch")), tmp_path, [])
    assert said in failed.value.message and cure in (failed.value.cure or "")
    with fails_with(LauncherError):
        Slurm().preflight(SPEC, HERE)


@pytest.mark.parametrize(
    ("body", "unheard"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation'", True),
        ("echo 'Batch job submission failed: Unable to contact slurm controller (connect failure)'", False),
        ("echo 'sbatch: error: invalid partition specified: nope'", False),
    ],
)
def test_a_submission_that_slurm_may_have_taken_is_told_from_one_that_it_refused(
    programs, tmp_path, body, unheard
):
    programs.put("sbatch", f"{body} >&2; exit 1")
    with pytest.raises(LauncherError) as failed:
        Slurm().start(Launch({}, ("sbatch", "job.sbatch")), tmp_path, [])
    assert isinstance(failed.value, NoAnswer) is unheard


def test_an_answer_that_is_no_id_is_an_error(programs, tmp_path):
    programs.put("sbatch", "echo Submitted batch job 4711")
    with fails_with(LauncherError):
        Slurm().start(Launch({}, ("sbatch", "job.sbatch")), tmp_path, [])


def test_an_image_that_is_not_there_is_named_before_hours_in_a_queue(programs, tmp_path):
    programs.put("sbatch", "cat >/dev/null")
    site = Site(container="apptainer")
    job = dataclasses.replace(SPEC, image=str(tmp_path / "cingulum.sif"))
    with fails_with(JobError):
        Slurm().preflight(job, site)
    assert programs.calls == []
    (tmp_path / "cingulum.sif").touch()
    Slurm().preflight(job, site)


def test_a_slurm_that_does_not_answer_is_named_in_time(programs, monkeypatch):
    programs.put("squeue", "exec sleep 60")
    monkeypatch.setattr(slurm, "ASK_S", 0.3)
    with fails_with(NoAnswer):
        Slurm().states(["12"])


def test_a_host_without_slurm_is_told_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with fails_with(LauncherError) as failed:
        Slurm().states(["12"])
    assert "--launcher mpirun" in (failed.value.cure or "")


def test_states_come_from_the_queue_and_for_what_it_forgot_from_the_accounting(programs):
    programs.answers("squeue", "squeue.txt")
    programs.answers("sacct", "sacct.txt")
    states = Slurm().states(["12", "22", "2", "777"])
    assert sorted(states) == ["12", "2", "22"]
    assert [s.state for s in states["12"]] == ["COMPLETED"]
    assert [s.task for s in states["22"]] == [0, 1, 2, 3, 4, 5, 6]
    assert states["2"][0].restarts == 1
    asked = programs.calls[1].split()[-1].split(",")
    assert sorted(asked) == ["2", "22", "777"]  # not 12: it is no array, and the queue knows it


def test_times_come_as_seconds_lists_whole_and_of_requeued_jobs_every_start(programs):
    settings = 'env | grep ^SLURM_ | sort >"$0.env"'
    programs.put("squeue", settings)
    programs.put("sacct", settings)
    Slurm().states(["2"])
    for name in ("squeue", "sacct"):
        told = (programs.folder / f"{name}.env").read_text()
        assert told == "SLURM_BITSTR_LEN=0\nSLURM_TIME_FORMAT=%s\n"
    asked = [set(call.split()) for call in programs.calls]
    assert "--states=all" in asked[0] and "--duplicates" in asked[1]


def test_an_array_of_which_the_queue_knows_only_the_first_task_is_asked_for(programs):
    programs.put("squeue", "echo '1|0|RUNNING|0|0|1795279330|NONE|n1|None|(null)|'")
    programs.answers("sacct", "sacct.txt")
    assert [state.state for state in Slurm().states(["1"])["1"]] == [
        *("RUNNING", "FAILED", "FAILED", "COMPLETED", "COMPLETED", "COMPLETED"),
    ]


def test_a_job_that_only_the_accounting_takes_for_running_has_ended_unnoticed(programs):
    programs.put("squeue", "")
    programs.answers("sacct", "sacct.txt")
    assert sorted(Slurm().states(["25", "29", "2"])) == ["2"]


def test_where_there_is_no_accounting_the_queue_is_all_there_is(programs):
    programs.answers("squeue", "squeue.txt")
    programs.put("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert sorted(Slurm().states(["12", "2"])) == ["12"]
    assert Slurm().find(TOKEN) is None


def test_an_accounting_that_does_not_answer_is_no_proof_that_a_job_is_gone(programs):
    programs.answers("squeue", "squeue.txt")
    programs.put(
        "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"
    )
    with fails_with(LauncherError):
        Slurm().states(["2"])
    with fails_with(LauncherError):
        Slurm().find(TOKEN)


@pytest.mark.parametrize(
    ("priorities", "is_held"), [("0", True), ("4294901757\\n 0", True), ("10\\n200", False)]
)
def test_what_is_held_has_no_priority(programs, priorities, is_held):
    programs.put("squeue", f"printf ' {priorities} \\n'")
    assert Slurm().is_held("4711", 3) is is_held
    assert programs.calls[-1].endswith(" --jobs 4711_3")


@pytest.mark.parametrize("order", [Slurm.hold, Slurm.release, lambda *words: Slurm.nice(*words, None, 100)])
@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        ("1_0: Job has already finished\\n1_1-4: No error", ""),
        ("1_0: Job/step already completing or completed\\n1_1-4: No error", ""),
        ("1_0-3: Job has already finished", "already finished"),
        ("1_0: Access/permission denied\\n1_1-4: No error", "permission denied"),
        ("1_0: Job has already finished\\n1_1: Job update not available right now", "not available"),
        ("", "exit code 1"),
    ],
)
def test_an_order_to_an_array_is_obeyed_where_only_tasks_that_had_ended_did_not(
    programs, order, lines, refused
):
    """The lines of Slurm 22.05, which exits with 1 in all these cases."""
    programs.put("scontrol", f"printf '{lines}\\n' >&2; exit 1")
    with pytest.raises(LauncherError, match=refused) if refused else contextlib.nullcontext():
        order(Slurm(), "1")


def test_a_submission_whose_answer_was_lost_is_found(programs):
    programs.answers("squeue", "squeue.txt")
    assert Slurm().find("8d1b85eb36644d88") == "16"
    programs.put("squeue", "")
    programs.answers("sacct", "sacct-submit-lines.txt")
    assert Slurm().find("8d1b85eb36644d88") == "16"


def test_a_running_job_is_told_to_save_and_one_that_ended_is_put_back(programs):
    programs.answers("squeue", "squeue.txt")
    programs.put("sacct", "")
    for name in ("scancel", "scontrol"):
        programs.put(name, "")
    launcher = Slurm()
    launcher.requeue("25")
    launcher.requeue("22", 0)
    launcher.requeue("22", 1)
    launcher.requeue("31")
    done = [call for call in programs.calls if call.split()[0] in ("scancel", "scontrol")]
    assert done == [
        "scancel --batch --signal=USR2 25",
        "scancel --batch --signal=USR2 22_0",
        "scontrol requeue 22_1",
        "scontrol requeue 31",
    ]
    with fails_with(JobError):
        launcher.requeue("29")


def test_of_an_array_all_that_run_save_and_all_that_failed_start_again(programs):
    programs.answers("squeue", "squeue.txt")
    programs.put("sacct", "")
    for name in ("scancel", "scontrol"):
        programs.put(name, "")
    Slurm().requeue("22")
    assert [call for call in programs.calls if call.split()[0] in ("scancel", "scontrol")] == [
        "scancel --batch --signal=USR2 22_0",
        "scancel --batch --signal=USR2 22_3",
        "scontrol requeue 22_1",
        "scontrol requeue 22_2",
    ]


def test_of_an_array_that_has_ended_only_what_failed_starts_again(programs):
    programs.put("squeue", "")
    programs.answers("sacct", "sacct.txt")
    programs.put("scontrol", "")
    Slurm().requeue("1")
    assert programs.calls[2:] == ["scontrol requeue 1_1", "scontrol requeue 1_2"]


def test_the_output_of_a_task_is_beside_its_job(tmp_path):
    assert Slurm().logs(tmp_path, "7", 0) == tmp_path / "out.log"
    array = JobSpec(name="a", kind="train", tasks=(("x",), ("y",)), folder="/work")
    (tmp_path / "spec.json").write_text(array.to_json())
    assert Slurm().logs(tmp_path, "7", 1) == tmp_path / "out-1.log"


def test_a_site_that_needs_an_mpi_which_slurm_lacks_is_told_before(programs):
    programs.put("sbatch", "")
    programs.put("srun", "echo 'MPI plugin types are... none pmi2'")
    with fails_with(LauncherError):
        Slurm().preflight(SPEC, SlurmSite(launcher="srun", mpi="pmix"))
    programs.put("srun", "printf 'MPI plugin types are...\\n\\tpmix\\n\\tnone\\nversions: pmix_v4\\n'")
    Slurm().preflight(SPEC, SlurmSite(launcher="srun", mpi="pmix_v4"))
    programs.put("srun", "printf 'srun: MPI types are...\\nsrun: pmix\\n' >&2")  # before 22.05
    Slurm().preflight(SPEC, SlurmSite(launcher="srun", mpi="pmix"))


@pytest.mark.parametrize(
    ("variable", "options"), [("a,b", ()), ("all", ()), ("", ("--clusters=b",)), ("", ("--clus=b",))]
)
def test_a_job_that_may_go_to_another_cluster_is_refused(programs, monkeypatch, variable, options):
    programs.put("sbatch", "")
    monkeypatch.setenv("SLURM_CLUSTERS", variable)
    with fails_with(JobError):
        Slurm().preflight(SPEC, Site(options=options))


def test_the_accounting_is_asked_for_the_cluster_that_all_else_goes_to(programs, monkeypatch):
    monkeypatch.setenv("SLURM_CLUSTERS", "far")
    programs.put("squeue", "")
    programs.put("sacct", "")
    Slurm().states(["2"])
    assert "--clusters=far" in programs.calls[-1].split()


def test_the_cluster_is_named_by_its_configuration(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_CLUSTERS", raising=False)
    (tmp_path / "slurm.conf").write_text("# ClusterName=no\nClusterName=mountain # ours\n")
    monkeypatch.setenv("SLURM_CONF", os.fspath(tmp_path / "slurm.conf"))
    assert Slurm().place == "mountain"


def test_a_job_is_not_handed_the_url_of_the_store(monkeypatch):
    monkeypatch.setenv("CINGULUM_STORE", "postgresql://me:hush@db/jobs")
    monkeypatch.setenv("CINGULUM_HOME", "/home/me/jobs")
    handed = commands._environment()
    assert "CINGULUM_STORE" not in handed
    assert handed["CINGULUM_HOME"] == "/home/me/jobs"
