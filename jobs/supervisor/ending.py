"""End a start of a job: ask Slurm, decide, record, and request what follows from Slurm."""

import signal
import time
from typing import List, Optional

from jobs import blame
from jobs.blame import Blame
from jobs.supervisor import decisions, processes
from jobs.supervisor.decisions import Facts, Start
from jobs.supervisor.progress import Progress
from jobs.supervisor.record import Record, left_by_ranks, say
from jobs.supervisor.shrinking import Shrinking
from jobs.supervisor.slurm_calls import Slurm

# A controller that is being restarted answers later.
TRIES, PAUSE_S = 10, 15.0
_DOWN = "down, reports Slurm: powered off, or its link is cut"


class Ending:
    """Ends one start.

    Args:
        start: by Slurm's count.
        slurm: asked about this job.
        record: files of this start.
        shrinking: how the job does without hosts.
        progress: whether it gets anywhere from start to start.
        requeues: how often a failed task is started again.
        asked: the signal that came last; "": none.
    """

    def __init__(
        self,
        start: Start,
        slurm: Slurm,
        record: Record,
        shrinking: Shrinking,
        progress: Progress,
        requeues: int,
        asked: str,
    ) -> None:
        self.asked = asked
        self._start = start
        self._slurm = slurm
        self._record = record
        self._shrinking = shrinking
        self._progress = progress
        self._requeues = requeues
        self._noted = False

    def end(self, code: int, text: str) -> None:
        """Do what follows from the end of the ranks."""
        facts = self.facts(TRIES)
        if facts is None:
            # Whoever comes next takes it up; to do more might meddle with a start that is not ours.
            say("ended with exit code %d; Slurm does not answer, so nothing more is done" % code)
            if code not in (decisions.DONE, decisions.UNUSABLE, decisions.SAVED, decisions.FENCED):
                self._record.leave_if_there(self._start.host, "ended with exit code %d" % code)
            else:
                self._record.release()
            if code != decisions.DONE:
                say("to start it by hand: scontrol requeue " + self._slurm.label)
            return
        verdict = decisions.judge(code, decisions.word_of_slurm(self.asked, preempted=facts.preempted))
        is_failure = verdict.kind in ("failed", "late")
        if not self._start.owns(facts) or (is_failure and facts.state != "RUNNING"):
            # Its TERM may come to us later than to the ranks.
            if self.asked != "TERM":
                self.ended_by_slurm()
            if self._noted and not is_failure and code in (decisions.DONE, decisions.SAVED):
                self._record.release()
            say("ended with exit code %d; Slurm has ended this start itself" % code)
            return
        if not is_failure and (not self._noted or code in (decisions.DONE, decisions.SAVED)):
            self._record.release()
        if verdict.kind == "done":
            self.note("COMPLETED", code)
        elif verdict.kind in ("unusable", "fenced"):
            if verdict.why:
                say(verdict.why)
            self.note("FAILED", code)
        elif verdict.kind == "again":
            # Who was preempted or cancelled may not have had the time for a step.
            counts = code == decisions.SAVED and self.asked != "TERM" and not facts.preempted
            self._again(verdict.why, self._progress.saved() if counts else "")
        else:
            self._failed(code, Blame(verdict.why) if verdict.kind == "late" else self._blame(code, text))

    def _again(self, why: str, warning: str) -> None:
        """Requeue a start that saved, unless the starts make no progress."""
        if warning and self._progress.is_stuck():
            say("%s. Not started again. To try once more: scontrol requeue %s" % (warning, self._slurm.label))
            self._progress.forget()
            self.note("FAILED", decisions.SAVED)
        else:
            self.start_again(warning or why, [])

    def _failed(self, code: int, whom: Blame) -> None:
        """Record a failure, and have Slurm start the job again where allowed."""
        self._record.note_failure(code, whom.where, whom.why)
        self._record.release()
        failures = self._record.count_failures()
        if decisions.is_spent(failures, self._requeues):
            self.give_up(code)
            return
        lost = whom.host.split(",") if whom.lost and whom.host else []
        self.start_again("failure %d of %d that are allowed" % (failures, self._requeues), lost)

    def start_again(self, why: str, lost: List[str]) -> None:
        """Have Slurm start this job again, and then without lost hosts.

        A job that is no longer running was ended by Slurm: cancelled, or to be started again anyway.
        """
        for left in reversed(range(TRIES)):
            facts = self._slurm.facts()
            if facts is not None and not self._start.may_change_next(facts):
                self.orphaned(facts)
                return
            if facts is not None and not self._start.may_act(facts):
                say(why + "; Slurm has ended this start itself")
                return
            if facts is not None and self._slurm.requeue():
                say(why + "; to be started again")
                self._shrinking.do_without(lost)
                return
            if left and processes.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self.asked = "TERM"
        say(
            "%s; Slurm does not start it again. Do it by hand: scontrol requeue %s" % (why, self._slurm.label)
        )

    def ended_by_slurm(self) -> None:
        """Record which hosts were lost, or that the time was over; other ends by Slurm are not failures."""
        down = self._slurm.down_hosts()
        facts = self._slurm.facts()
        if facts is None or down is None or self._noted:
            return
        if self._start.host in down or not self._start.may_change_next(facts):
            self.orphaned(facts)  # the next start notes what became of this one, or has done so
            return
        self._record.release()
        if down:
            self._noted = True
            self._record.note_failure(None, ",".join(down), _DOWN)
            self._record.mark_noted()
            self._shrinking.do_without(down)
        elif facts.reason == "TimeLimit" and not facts.preempted:
            self._noted = True
            self._record.leave("", "had not saved when its time was over")
            if self._slurm.requeue():
                say("its time is over; to be started again")

    def facts(self, tries: int) -> Optional[Facts]:
        """Return Slurm's record; None: it did not answer so often, or for as long as the
        pauses between take.
        """
        until = time.monotonic() + tries * PAUSE_S
        for left in reversed(range(tries)):
            facts = self._slurm.facts()
            if facts is not None or time.monotonic() > until:
                return facts
            if left and processes.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self.asked = "TERM"
        return None

    def _blame(self, code: int, text: str) -> Blame:
        """Return the cause of a failure, with the host under Slurm's name."""
        down = self._slurm.down_hosts()
        if down:
            return Blame(_DOWN, host=",".join(down), lost=True)
        left = left_by_ranks(self._record.of_ranks)
        return blame.read(text, code, hosts=self._slurm.host_names(), left=left)

    def give_up(self, code: int) -> None:
        """Stop after the failures that were allowed."""
        label = self._slurm.label
        times = self._record.count_failures()
        say("failed %d times: not started again. To try once more: scontrol requeue %s" % (times, label))
        self.note("FAILED", code)

    def note(self, state: str, code: int) -> None:
        """Write down how the task ended."""
        self._record.note_ending(state, code, self._slurm.host_names(), self._start.restarts)

    def orphaned(self, facts: Facts) -> None:
        """Report that the job is at another start, for which this one may do nothing."""
        say(
            "start %d is over, reports Slurm: the job is at start %d (%s)%s. Nothing more is done here."
            % (
                self._start.restarts + 1,
                facts.restarts + 1,
                facts.state,
                ", on " + facts.batch_host if facts.batch_host else "",
            )
        )
