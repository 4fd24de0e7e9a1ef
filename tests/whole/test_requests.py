"""What a service asks of jobs, without a command line."""

from pathlib import Path

from wording import fails_with

from cingulum.cli import submission_check
from jobs.requests import known, submitting
from jobs.store.store import Store
from trainer.errors import JobError

REQUEST = submitting.SubmissionRequest(config=Path("mine.yaml"), launcher="slurm", then="report")


def test_a_request_is_previewed_and_submitted_without_a_word_on_the_screen(slurm, capsys):
    prepared = submitting.prepare(REQUEST, submission_check)
    plan = submitting.preview(prepared)
    assert [job.spec.kind for job in plan.jobs] == ["train", "report"] and slurm.started == []
    warnings: list[str] = []
    made = submitting.submit(prepared, Store(), submission_check, warnings.append, who="me")
    assert [job.label for job in made] == ["4711", "4712"] and slurm.started[1][1] == ("4711",)
    job, task = known.current(Store(), "4712", warn=warnings.append)
    assert (job.spec.kind, task, warnings) == ("report", None, [])
    assert capsys.readouterr() == ("", "")


def test_what_only_the_caller_can_look_at_is_asked_before_anything_is_written(slurm, tmp_path):
    class Refuses:
        folder = staticmethod(submission_check.folder)
        crossval = staticmethod(submission_check.crossval)
        plan = staticmethod(submission_check.plan)

        def unwritten(self, chain):
            raise JobError("somebody trains there")

    prepared = submitting.prepare(REQUEST, Refuses())
    before = sorted((tmp_path / "runs").rglob("*"))
    with fails_with(JobError):
        submitting.submit(prepared, Store(), Refuses(), print, who="me")
    assert slurm.started == [] and sorted((tmp_path / "runs").rglob("*")) == before
