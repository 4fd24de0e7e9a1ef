"""What a site gives to each kind of job, against what `submit` was told."""

from __future__ import annotations

from pathlib import Path

import pytest
from site_text import site_of

from jobs.requests import chains
from jobs.requests.submission_options import SubmissionOptions
from jobs.schedulers.slurm.script import batch_script
from jobs.sites import HERE, Site
from jobs.spec import JobSpec, Resources
from trainer.errors import JobError

TOKEN = "0123456789abcdef"  # noqa: S105 - names a submission
PROFILE = """
partition: gpu
account: mine
gpus_per_node: 4
cpus_per_rank: 8
memory: 100G
minutes: 2160
grace_s: 600
options: [--constraint=a100]
kinds:
  import: {partition: cpu, cpus_per_rank: 16, memory: 64G, minutes: 240, options: []}
  evaluate: {gpus_per_node: 1, minutes: 60, grace_s: 30}
  report: {partition: cpu, account: null, minutes: 30, options: [--constraint=old]}
"""


@pytest.fixture
def site() -> Site:
    return site_of(PROFILE)


def chain(site: Site, asked: SubmissionOptions, **changes: object) -> dict[str, JobSpec]:
    wanted = chains.Wanted(
        config="c.yaml",
        run="runs/mine",
        shards="shards",
        first_seed=0,
        program=("cingulum",),
        name="mine",
        job=JobSpec("mine", "train", (("cingulum",),), "/", chains.main(asked, site, "train")),
        sides={kind: chains.side(asked, site, kind) for kind in site.kinds},
        source="images",
        **{"then": ("evaluate", "report"), **changes},  # type: ignore[arg-type]
    )
    return {job.kind: job for job in chains.chain(wanted)}


def sbatch(job: JobSpec, site: Site) -> dict[str, str]:
    """The `#SBATCH` options of its script."""
    script = batch_script(job, site, Path("/home/ada/jobs"), TOKEN)
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH --")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_each_kind_of_job_gets_the_partition_account_time_and_options_of_its_kind(site):
    found = {kind: sbatch(job, site) for kind, job in chain(site, SubmissionOptions()).items()}
    wanted = {
        "import": ("cpu", "mine", "240", None, None),
        "train": ("gpu", "mine", "2160", "4", "a100"),
        "evaluate": ("gpu", "mine", "60", "1", "a100"),
        "report": ("cpu", None, "30", None, "old"),
    }
    keys = ("partition", "account", "time", "gpus-per-node", "constraint")
    assert {kind: tuple(map(options.get, keys)) for kind, options in found.items()} == wanted
    assert [found[kind]["cpus-per-task"] for kind in wanted] == ["16", "8", "8", "8"]
    assert [found[kind]["mem"] for kind in wanted] == ["65536M", "102400M", "102400M", "102400M"]
    assert [found[kind]["signal"] for kind in wanted] == [
        *("B:USR2@600", "B:USR2@600", "B:USR2@30", "B:USR2@450")  # at most a quarter of the limit
    ]


def test_what_was_said_is_for_the_job_itself_and_for_others_only_where_their_kind_is_silent(site):
    asked = SubmissionOptions(nodes=2, gpus_per_node=2, cpus_per_rank=3, memory="2000M", time="36h")
    found = chain(site, asked)
    assert found["train"].resources == Resources(2, None, 2, 2, 3, 2000, 36 * 60)
    assert found["import"].resources == Resources(1, None, 1, 0, 16, 65536, 240)
    assert found["evaluate"].resources == Resources(1, None, 1, 1, 3, 2000, 60)
    assert found["report"].resources == Resources(1, None, 1, 0, 3, 2000, 30)


def test_no_gpus_can_be_asked_for_where_the_site_gives_some(site):
    assert chains.main(SubmissionOptions(gpus_per_node=0), site, "train").gpus_per_node == 0
    assert chains.main(SubmissionOptions(gpus_per_node=0), site, "train").ranks_per_node == 1
    assert (
        chains.main(SubmissionOptions(gpus_per_node=0, ranks_per_node=3), site, "train").ranks_per_node == 3
    )


def test_the_job_that_was_asked_for_is_given_what_its_own_kind_says(site):
    assert chains.main(SubmissionOptions(), site, "evaluate").gpus_per_node == 1
    assert chains.main(SubmissionOptions(gpus_per_node=2), site, "evaluate").gpus_per_node == 2


def test_a_site_without_kinds_gives_what_was_said_to_all():
    found = chain(HERE, SubmissionOptions(ranks_per_node=2, cpus_per_rank=3, time="5"))
    assert chains.main(SubmissionOptions(), HERE, "train") == Resources()
    assert found["import"].resources == Resources(cpus_per_rank=6, minutes=5)
    assert found["evaluate"].resources == Resources(ranks_per_node=2, cpus_per_rank=3, minutes=5)


def test_an_import_starts_as_many_workers_as_its_kind_has_cores(site):
    assert "--workers=16" in chain(site, SubmissionOptions())["import"].tasks[0]


def test_the_report_that_pools_folds_is_a_report(site):
    job = chain(site, SubmissionOptions(), kind="crossval", folds=3, then=("report",))["report"]
    assert sbatch(job, site)["partition"] == "cpu"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kinds: {import: {partiton: cpu}}", "Did you mean 'kinds.import.partition'?"),
        ("kinds: {imprt: {}}", "kinds.imprt: must be 'train', 'crossval', 'import', 'evaluate' or 'report'"),
        ("kinds: {import: {partition: 'a b'}}", "kinds.import.partition: must be letters"),
        ("kinds: {import: {options: [time=3]}}", "kinds.import.options: 'time=3' is not --name"),
        ("kinds: {import: {name: x}}", "unknown key 'kinds.import.name'"),
        ("kinds: {import: 3}", "kinds.import: must be a section"),
        ("kinds: {report: {minutes: 0}}", "kinds.report.minutes: must be at least 1"),
        ("kinds: {report: {grace_s: 70000}}", "kinds.report.grace_s: must be at most 65,535"),
        ("memory: lots", "memory: 'lots' is not a size"),
        ("cpus_per_rank: 0", "cpus_per_rank: must be at least 1"),
        ("gpus_per_node: -1", "gpus_per_node: must be at least 0"),
    ],
)
def test_what_a_kind_cannot_hold_is_refused_with_its_key(text, said):
    with pytest.raises(JobError) as caught:
        site_of(text)
    assert said in caught.value.message
