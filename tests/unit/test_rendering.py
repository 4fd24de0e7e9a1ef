"""Scripts for Slurm as they are known to be right, and what a site's profile changes in them.

After a change that is meant: CINGULUM_WRITE_GOLDEN=1 pytest tests/unit/test_rendering.py, and read the diff.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import run_script
from wording import fails_with

from jobs.schedulers import script, site_profiles
from jobs.schedulers.script import _template, plain_name
from jobs.schedulers.slurm.script import batch_script
from jobs.schedulers.slurm.site_keys import SlurmSite
from jobs.site_keys import Kind
from jobs.sites import Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError

GOLDEN = Path(__file__).parent / "golden"
TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission
FOLDER = Path("/home/ada/.local/share/cingulum/jobs") / TOKEN
PYTHON = "/opt/cingulum/.venv/bin/python"
TRAIN = (PYTHON, "-m", "cingulum", "train", "my run.yaml", "--resume")


def spec(*tasks: tuple[str, ...], kind: str = "train", **keys: object) -> JobSpec:
    return JobSpec("my study", kind, tasks or (TRAIN,), "/data/my study", **keys)  # type: ignore[arg-type]


CASES: dict[str, tuple[JobSpec, str | None]] = {
    "plain": (spec(), None),
    "single-node": (
        spec(resources=Resources(1, None, 4, 4, 8, minutes=480), environment={"TF_CPP_MIN_LOG_LEVEL": "1"}),
        "lab",
    ),
    "multi-node": (spec(resources=Resources(4, None, 4, 4, 8, memory_mib=128000)), "centre"),
    "kfold-array": (
        spec(
            *(
                (PYTHON, "-m", "cingulum", "crossval", "c.yaml", "--folds", "3", f"--fold={i}")
                for i in range(3)
            ),
            at_once=2,
            resources=Resources(1, None, 2, 2, 4),
        ),
        "lab",
    ),
    "hybrid": (
        spec(
            ("cingulum", "train", "my run.yaml", "--resume"),
            resources=Resources(2, None, 4, 4, 8),
            image="/images/cingulum.sif",
            binds=("/data",),
        ),
        "apptainer",
    ),
    "import": (
        spec(
            (PYTHON, "-m", "cingulum", "import", "cohort", "shards"),
            kind="import",
            parallel=False,
            resources=Resources(cpus_per_rank=16),
        ),
        "centre",
    ),
    "shrinking": (
        spec(resources=Resources(4, 2, 2, 2, 4), shrink=True, requeues=5, grace_s=90),
        "cloud",
    ),
}


@pytest.fixture(autouse=True)
def _no_profiles_of_this_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def rendered(case: str) -> str:
    job, site = CASES[case]
    return batch_script(job, site_profiles.load(site), FOLDER, TOKEN)


@pytest.mark.parametrize("case", CASES)
def test_a_script_is_as_it_is_known_to_be_right(case):
    path = GOLDEN / f"{case}.sbatch"
    if os.environ.get("CINGULUM_WRITE_GOLDEN") == "1":
        path.write_text(rendered(case))
    assert rendered(case) == path.read_text()


@pytest.mark.parametrize(
    "path", [*GOLDEN.glob("*.sbatch"), *(site_profiles.shipped()).glob("*.sbatch")], ids=lambda p: p.name
)
def test_scripts_are_sound(path):
    subprocess.run(["bash", "-n", str(path)], check=True, timeout=60)
    checked = subprocess.run(
        [str(Path(sys.executable).parent / "shellcheck"), str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_every_golden_file_is_of_a_case():
    assert {path.stem for path in GOLDEN.glob("*.sbatch")} == set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_a_script_has_at_most_50_lines_of_bash(case):
    """What decides is in jobs/supervisor; around it are modules, variables and words."""
    found = [line.strip() for line in rendered(case).splitlines()]
    assert len([line for line in found if line and not line.startswith("#")]) <= 50


def lines(job: JobSpec, site: Site) -> list[str]:
    return batch_script(job, site, FOLDER, TOKEN).splitlines()


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("gpus-per-node", "#SBATCH --gpus-per-node=a100:4"),
        ("gres", "#SBATCH --gres=gpu:a100:4"),
        ("gpus-per-task", "#SBATCH --gpus-per-task=a100:1"),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants_it(form, expected):
    site = SlurmSite(gpu_request=form, gpu_type="a100", launcher="srun")
    assert expected in lines(spec(resources=Resources(1, None, 4, 4)), site)


def test_a_folder_with_a_percent_sign_is_no_pattern_of_slurm():
    script = batch_script(spec(), Site(), Path("/home/100%a/50%j"), TOKEN)
    assert "#SBATCH --output=/home/100%%a/50%%j/out.log" in script.splitlines()


def test_an_array_has_a_task_for_each_command():
    assert "#SBATCH --array=0-2%2" in lines(spec(TRAIN, TRAIN, TRAIN, at_once=2), Site())
    assert "#SBATCH --array=0-1" in lines(spec(TRAIN, TRAIN), Site())
    assert not any("--array" in line for line in lines(spec(), Site()))


def test_a_variable_of_the_job_wins_over_the_sites():
    found = lines(spec(environment={"V_A": "job"}), Site(environment={"V_A": "site", "V_B": "site"}))
    assert [line for line in found if "export V_" in line] == ["export V_A=job", "export V_B=site"]


@pytest.mark.parametrize(
    "keys", [{"requeues": -1}, {"grace_s": -1}, {"at_once": 0}, {"tasks": ()}, {"tasks": ((),)}]
)
def test_a_job_that_cannot_be_is_refused(keys):
    with pytest.raises(JobError):
        dataclasses.replace(spec(), **keys)


@pytest.mark.parametrize(
    "keys",
    [
        *({"nodes": 0}, {"ranks_per_node": 0}, {"cpus_per_rank": 0}, {"gpus_per_node": -1}),
        *({"nodes": 2, "least_nodes": 3}, {"least_nodes": 0}, {"memory_mib": 0}, {"minutes": 0}),
    ],
)
def test_resources_that_cannot_be_are_refused(keys):
    with pytest.raises(JobError):
        Resources(**keys)


@pytest.mark.parametrize(("launcher", "cores"), [("mpirun", None), ("srun", "3")])
def test_mpiruns_daemons_get_all_cores_and_sruns_ranks_their_own(tmp_path, launcher, cores):
    place = run_script.stubs(tmp_path)
    script = batch_script(spec(("program",)), SlurmSite(launcher=launcher), tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, SRUN_CPUS_PER_TASK="1")
    assert noted.environment.get("SRUN_CPUS_PER_TASK") == cores


@pytest.mark.parametrize(
    ("launcher", "told"),
    [("mpirun", "--mca orte_enable_recovery 1"), ("srun", "--kill-on-bad-exit=0 --wait=0 --no-kill")],
)
def test_ranks_of_asynchronous_training_outlive_each_other(tmp_path, launcher, told):
    """Only theirs do."""
    place = run_script.stubs(tmp_path)
    for outlives in (False, True):
        script = batch_script(
            spec(("program",), outlives=outlives), SlurmSite(launcher=launcher), tmp_path, TOKEN
        )
        noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path)
        assert (told in " ".join(noted.arguments)) is outlives
        assert ("PRTE_MCA_state_base_recoverable" in noted.environment) is (outlives and launcher == "mpirun")


def test_every_rank_has_a_gpu_and_every_gpu_a_rank():
    with fails_with(JobError):
        batch_script(spec(resources=Resources(1, None, 2, 4)), Site(), FOLDER, TOKEN)
    one_process = spec(kind="evaluate", parallel=False, resources=Resources(gpus_per_node=1))
    assert "#SBATCH --gpus-per-node=1" in lines(one_process, Site())


def test_a_job_of_one_process_asks_for_one_host():
    with fails_with(JobError):
        batch_script(spec(parallel=False, resources=Resources(2)), Site(), FOLDER, TOKEN)


def test_the_time_is_the_jobs_or_else_the_sites():
    assert "#SBATCH --time=7" in lines(spec(), Site(minutes=7))
    assert "#SBATCH --time=5" in lines(spec(resources=Resources(minutes=5)), Site(minutes=7))
    assert not any("--time" in line for line in lines(spec(), Site()))


@pytest.mark.parametrize(("minutes", "grace_s"), [(None, 120), (480, 120), (8, 120), (2, 30), (1, 15)])
def test_a_short_job_is_not_told_to_save_as_soon_as_it_starts(minutes, grace_s):
    assert f"#SBATCH --signal=B:USR2@{grace_s}" in lines(spec(), Site(minutes=minutes))


def test_the_time_to_save_is_the_jobs_or_else_the_sites():
    assert "#SBATCH --signal=B:USR2@90" in lines(spec(grace_s=90), Site(grace_s=600))
    assert "#SBATCH --signal=B:USR2@600" in lines(spec(), Site(grace_s=600))
    assert "#SBATCH --signal=B:USR2@90" in lines(spec(grace_s=90), Site())


def test_the_gpus_and_the_site_share_one_gres():
    """Of two, Slurm takes the last alone."""
    site = SlurmSite(gpu_request="gres", options=("--gres=lscratch:10", "--exclusive"))
    found = lines(spec(resources=Resources(1, None, 4, 4)), site)
    assert [line for line in found if "--gres=g" in line] == ["#SBATCH --gres=gpu:4,lscratch:10"]
    assert "#SBATCH --exclusive" in found
    without = lines(spec(), site)
    assert [line for line in without if "--gres=l" in line] == ["#SBATCH --gres=lscratch:10"]


def test_a_variable_of_the_script_itself_cannot_be_one_of_the_job():
    text = (site_profiles.shipped().parents[0] / "templates" / "job.sh.j2").read_text()
    text = re.sub(r"^ *#.*|{%.*?%}", "", re.sub(r"{#.*?#}", "", text, flags=re.S), flags=re.M)
    names = set(re.findall(r"(?:^|[ ;({])([a-z_]+)\+?=", text, re.M))
    names |= set(re.findall(r"\bfor ([a-z]+) in", text))
    assert {"task", "modules", "module", "command", "supervised", "held"} < names
    for name in names:
        with pytest.raises(JobError, match=f"{name} is a variable of the batch script"):
            batch_script(spec(environment={name: "1"}), Site(), FOLDER, TOKEN)
    batch_script(spec(environment={"http_proxy": "1"}), Site(), FOLDER, TOKEN)


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ranks_get_the_environment_of_a_job_that_was_submitted_without_one(tmp_path, launcher):
    place = run_script.stubs(tmp_path)
    script = batch_script(spec(("program",)), SlurmSite(launcher=launcher), tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, SLURM_EXPORT_ENV="NONE")
    assert noted.environment["SLURM_EXPORT_ENV"] == "ALL"


@pytest.mark.parametrize("missing", ["mpirun", "apptainer"])
def test_a_launcher_that_is_missing_ends_the_job_as_bad_input(tmp_path, missing):
    place = run_script.stubs(tmp_path)
    (place / missing).unlink()
    site = Site(container="apptainer", mpirun=str(place / "mpirun"), environment={"V_A": "1"})
    script = batch_script(spec(("cingulum",), image="/i.sif"), site, tmp_path, TOKEN)
    path = f"{place}{os.pathsep}{tmp_path / 'tools'}"
    (tmp_path / "tools").mkdir()
    for tool in ("bash", "env", "hostname", "true"):
        (tmp_path / "tools" / tool).symlink_to(shutil.which(tool) or "")
    (tmp_path / "tools" / "python3").symlink_to(Path(sys.executable).resolve())
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, PATH=path)
    assert (noted.code, noted.arguments) == (2, [])
    assert f"{missing}: there is no such program" in noted.stderr


def test_an_image_needs_a_site_that_runs_it():
    with fails_with(JobError):
        batch_script(spec(image="/i.sif"), Site(), FOLDER, TOKEN)
    without = batch_script(spec(), Site(container="apptainer"), FOLDER, TOKEN)
    assert "apptainer" not in without


def test_a_program_that_looks_like_an_option_is_refused():
    with fails_with(JobError):
        batch_script(spec(("--help",)), Site(), FOLDER, TOKEN)


def test_the_folder_to_run_in_is_absolute():
    with fails_with(JobError):
        batch_script(dataclasses.replace(spec(), folder="runs"), Site(), FOLDER, TOKEN)


def test_a_template_cannot_print_a_text_without_quotes(monkeypatch):
    environment = _template("job.sh.j2").environment
    with pytest.raises(TypeError, match="without `quote`"):
        environment.from_string("{{ text }}").render(text="a b")
    assert environment.from_string("{{ text | quote }}").render(text="a b") == "'a b'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("My study: fold 3/5", "My_study_fold_3_5"),
        ("--help", "help"),
        ("脳", "_"),
        ("", "job"),
        ("x" * 100, "x" * 64),
    ],
)
def test_names_are_shown_in_plain_letters(text, shown):
    assert plain_name(text) == shown


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("$TMPDIR", '"${TMPDIR:?}"'),
        ("/scratch/${USER}/a b", """/scratch/"${USER:?}"'/a b'"""),
        ("$(id)", "'$(id)'"),
        ("$1", "'$1'"),
        ("", "''"),
    ],
)
def test_only_plain_variables_are_expanded(text, word):
    assert script.expanding(text) == word


def test_the_scratch_folder_may_name_the_job(tmp_path):
    place = run_script.stubs(tmp_path)
    script = batch_script(spec(("program",)), Site(scratch="/scratch/$SLURM_JOB_ID/x y"), tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path)
    assert noted.environment["CINGULUM_SCRATCH"] == "/scratch/4711/x y"


REALLY = {"BASH_FUNC_eval%%": ""}
SOURCED = "grep -q tried /dev/null\ntrue\n"


def with_site(tmp_path: Path, **keys: str) -> run_script.Noted:
    """What a job does whose site has these lines, which are really run."""
    place = run_script.stubs(tmp_path)
    (tmp_path / "tries.sh").write_text(SOURCED)
    (tmp_path / "fails.sh").write_text("true\nfalse\n")
    script = batch_script(spec(("program", "x")), Site(**keys), tmp_path, TOKEN)
    return run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, **REALLY)


@pytest.mark.parametrize("key", ["before_modules", "setup"])
@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("true\nfalse; touch WRONG", "exit code 1: false"),
        ("source /nowhere/activate", "exit code 1: source /nowhere/activate"),
        ("if true; then\n  ls /nowhere 2>/dev/null\nfi\ntouch WRONG", "exit code 2: ls /nowhere"),
        ("source $NOTES/fails.sh", "exit code 1: source $NOTES/fails.sh"),
        ("V=$(false)\ntouch WRONG", "exit code 1: V=$(false)"),
        ("set -e\n(exit 4)\ntouch WRONG", "exit code 4: ( exit 4 )"),
        ("set -u\n: $nothing\ntouch WRONG", "nothing: unbound variable"),
        ("exit 3", "exit code 3: "),
        ("if 'never closed", "unexpected EOF"),
    ],
)
def test_a_line_of_the_site_that_fails_ends_the_job_as_bad_input_with_its_text(tmp_path, key, lines, told):
    noted = with_site(tmp_path, **{key: lines})
    assert (noted.code, noted.arguments) == (2, []), noted.stderr
    assert told in noted.stderr
    assert noted.stderr.count(f"A line of '{key}' in the site's profile failed on ") == 1
    assert json.loads((tmp_path / "state.json").read_text())["tasks"][0]["state"] == "FAILED"
    assert not (tmp_path / "WRONG").exists()


@pytest.mark.parametrize(
    "lines",
    [
        "[ -e /nowhere ] && export A=1\ntrue",
        "grep -q x /dev/null || true",
        "if grep -q x /dev/null; then exit 1; fi",
        "source $NOTES/tries.sh",
        "f() { false; true; }\nf",
        "set -E\nf() { false; true; }\nf",
        "",
    ],
)
def test_what_a_line_of_the_site_only_tries_does_not_end_the_job(tmp_path, lines):
    noted = with_site(tmp_path, setup=lines)
    assert (noted.code, noted.arguments[-2:]) == (0, ["program", "x"]), noted.stderr


def test_the_sites_lines_come_before_and_after_its_modules(tmp_path):
    place = run_script.stubs(tmp_path)
    site = Site(before_modules="module purge\nmodule use /a", modules=("b/1",), setup="module list")
    script = batch_script(spec(("program",)), site, tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, **REALLY)
    assert noted.modules == ["purge", "use", "/a", "load", "b/1", "list"]
    assert (noted.code, noted.arguments[-1]) == (0, "program")


def test_options_of_srun_reach_srun_and_nothing_else(tmp_path):
    place = run_script.stubs(tmp_path)
    options = ("--cpu-bind=map_cpu:0,1", "--network=single_node_vni,job_vni")
    site = SlurmSite(launcher="srun", srun_options=options)
    script = batch_script(spec(("program",)), site, tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path)
    srun = noted.arguments[: noted.arguments.index("program")]
    assert srun[1:4] == ["--mpi=pmix", *options]
    assert "--kill-on-bad-exit=1" in srun
    assert not any(option in line for line in script.splitlines() if "#SBATCH" in line for option in options)


def test_a_module_that_is_missing_ends_the_job_as_bad_input(tmp_path):
    place = run_script.stubs(tmp_path)
    script = batch_script(spec(("program",)), Site(modules=("openmpi/9",)), tmp_path, TOKEN)
    noted = run_script.run(script, place, tmp_path, **{"BASH_FUNC_module%%": "() { return 1; }"})
    assert (noted.code, noted.arguments) == (2, [])
    assert "Module openmpi/9 of the site's profile cannot be loaded" in noted.stderr


def test_a_program_that_is_missing_ends_the_job_as_bad_input(tmp_path):
    place = run_script.stubs(tmp_path)
    script = batch_script(spec(("/nowhere/cingulum",)), Site(), tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path)
    assert (noted.code, noted.arguments) == (2, [])
    assert "/nowhere/cingulum: there is no such program" in noted.stderr


def test_lines_of_the_site_are_run_as_they_stand(tmp_path):
    place = run_script.stubs(tmp_path)
    setup = "if true; then\n  export V_A='two  words' # and a comment\nfi\nexport V_B=\"$HOME\""
    script = batch_script(spec(("program",)), Site(setup=setup), tmp_path, TOKEN)
    noted = run_script.run(script.replace("'/data/my study'", "/"), place, tmp_path, **REALLY)
    assert (noted.environment["V_A"], noted.environment["V_B"]) == ("two  words", str(tmp_path))


def test_only_an_mpirun_beside_a_program_of_a_whole_path_is_taken(tmp_path):
    """One that happens to lie in the folder to run in is not ours."""
    place = run_script.stubs(tmp_path)
    (tmp_path / "mpirun").write_text("#!/bin/sh\ntouch WRONG\n")
    (tmp_path / "mpirun").chmod(0o755)
    for program, taken in (("program", place), (str(place / "program"), place)):
        script = batch_script(spec((program,)), Site(), tmp_path, TOKEN)
        noted = run_script.run(script.replace("'/data/my study'", str(tmp_path)), place, tmp_path)
        assert noted.arguments[0] == str(taken / "mpirun")
    assert not (tmp_path / "WRONG").exists()


@pytest.mark.parametrize(
    ("key", "option", "said"),
    [
        ("options", "--output=x", "--output is set by the script itself"),
        ("options", "--outp=x", "--outp (--output) is set by the script itself"),
        ("options", "--no-requeue", "--no-requeue is set by the script itself"),
        ("options", "--partition=gpu", "--partition is the key `partition`"),
        ("options", "--acc=me", "--acc (--account) is the key `account`"),
        ("options", "--ntasks-per-gpu=1", "--ntasks-per-gpu conflicts with the nodes, ranks, cores and GPUs"),
        ("options", "--cpus-per-gpu=4", "--cpus-per-gpu conflicts with"),
        ("options", "--mem-per-cpu=4G", "--mem-per-cpu conflicts with the key `memory`"),
        ("options", "--time-min=5", "--time-min conflicts with the key `minutes`"),
        ("srun_options", "--mpi=pmi2", "--mpi is set by the script itself"),
        ("srun_options", "--label", "--label would change how ranks are started"),
        ("srun_options", "--gres=none", "--gres conflicts with"),
        ("srun_options", "--partition=x", "--partition belongs to the job"),
    ],
)
def test_options_of_a_site_that_would_compete_with_the_scripts_are_refused(key, option, said):
    with pytest.raises(JobError) as caught:
        lines(spec(), SlurmSite(launcher="srun", **{key: (option,)}))
    assert caught.value.message.startswith(f"Site 'here': {key}: {said}")


def test_so_are_those_of_another_kind_of_job():
    with pytest.raises(JobError) as caught:
        lines(spec(kind="train"), Site(kinds={"import": Kind(options=("--time=3",))}))
    assert caught.value.message == "Site 'here': kinds.import.options: --time is set by the script itself."


def test_options_that_compete_with_nothing_are_taken():
    """Also those that begin as a refused one does."""
    options = (
        "--exclusive",
        "--constraint=a100",
        "--gres=lscratch:1",
        "--gpu-bind=closest",
        "--mem-bind=local",
    )
    more = ("--gres-flags=enforce-binding", "--threads-per-core=1", "--hint=nomultithread", "--network=x")
    found = lines(spec(), Site(options=options + more))
    assert [line for line in found if line.removeprefix("#SBATCH ") in options + more] == [
        f"#SBATCH {option}" for option in options + more
    ]
