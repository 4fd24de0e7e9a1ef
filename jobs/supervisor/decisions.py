"""Decide what follows a start that has ended: pure functions, for Slurm and for hosts without it alike."""

from typing import NamedTuple, Optional

# Exit codes of ranks, as trainer/errors.py has them: done, bad input, saved, and another start has the run.
DONE, UNUSABLE, SAVED, FENCED = 0, 2, 75, 76

# What a start had been told, the strongest word that it was: nothing (None); to save, as its time is up
# ("time"), to be started again ("again"), or to end ("end"); to end without saving ("cancel").
Word = Optional[str]


class StartVerdict(NamedTuple):
    """Meaning of a start's end.

    Attributes:
        kind: `done`, `unusable` (bad input: never again), `fenced` (another start has the run: neither a
            failure nor a reason to start again), `cancelled`, `ended` (it was told to), `again` (it is no
            failure, and to be started again), `late` (its time was up before it had saved), `failed`.
        why: in words; "": what it has printed tells.
    """

    kind: str
    why: str = ""


def judge(code: int, word: Word) -> StartVerdict:
    """Judge the exit code (128 + n: killed by signal n) of a start that received this order."""
    unsaved = f"ended with exit code {code}"
    if code == DONE:
        return StartVerdict("done")
    if word == "cancel":
        return StartVerdict("cancelled", "by request")
    if code == FENCED:
        return StartVerdict("fenced", "another start writes its run folder")
    if word == "end":
        return StartVerdict("ended", "its state is saved" if code == SAVED else f"it {unsaved}, unsaved")
    if code == SAVED:
        return StartVerdict("again", "saved and stopped")
    if code == UNUSABLE:
        return StartVerdict("unusable")
    if word == "again":
        # Before it could save: it goes on from the checkpoint before, or from the start.
        return StartVerdict("again", f"asked to save, and {unsaved}")
    if word == "time":
        return StartVerdict("late", f"asked to save, and {unsaved}")
    return StartVerdict("failed")


def is_spent(failures: int, requeues: int) -> bool:
    """Return whether more starts have failed than are allowed."""
    return failures > requeues


def word_of_slurm(signal_name: str, *, preempted: bool) -> Word:
    """Return Slurm's order to a start.

    Args:
        signal_name: the last signal that the start got: "USR2", "TERM", or "" for none.
        preempted: whether Slurm says that it preempted this very start.
    """
    if signal_name == "TERM" or preempted:
        return "again"
    return "time" if signal_name else None


class JobRecord(NamedTuple):
    """Slurm's record of a job.

    Attributes:
        state: such as RUNNING; COMPLETING after scancel or a requeue.
        restarts: how often it was started before the start that is, or comes, now.
        batch_host: where its script runs; "": Slurm does not say.
        reason: why it waits, or ended.
        preempted: whether it was preempted since it began.
        excluded: hosts that it must not be given, with commas between.
        preempted_at: when it was preempted last, in whichever start, such as 2026-01-02T00:00:00; "": never.
    """

    state: str
    restarts: int
    batch_host: str = ""
    reason: str = ""
    preempted: bool = False
    excluded: str = ""
    preempted_at: str = ""


class JobStart(NamedTuple):
    """One start of a job: the restart count that Slurm began it with, and the host of its script."""

    restarts: int
    host: str

    def owns(self, facts: JobRecord) -> bool:
        """Return whether Slurm's record is of this start. Another start is an orphan: it
        may change nothing.
        """
        return facts.restarts == self.restarts and facts.batch_host in ("", self.host)

    def may_act(self, facts: JobRecord) -> bool:
        """Return whether Slurm reports it as running: else Slurm has ended it, or it is an orphan."""
        return self.owns(facts) and facts.state == "RUNNING"

    def may_change_next(self, facts: JobRecord) -> bool:
        """Return whether no later start has begun: the job may still be changed, and a failure be noted, for
        it.

        A requeue counts the job up when it was asked for, or when the last process has gone.
        """
        if facts.restarts == self.restarts + 1:
            return facts.state != "RUNNING"
        return self.owns(facts)
