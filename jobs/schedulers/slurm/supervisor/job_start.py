"""What Slurm tells of a job, and what a start of it may do by that: pure functions."""

from typing import NamedTuple

from jobs.supervisor.decisions import Word


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
