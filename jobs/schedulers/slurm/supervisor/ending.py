"""End a start of a job: record what is known, ask Slurm, decide, and request what follows from Slurm.

Slurm may leave a start few seconds, and its controller may take longer than that to answer: so whatever is
known is in a file before Slurm is asked, for the next start, should this one not live to act on the answer.
"""

import signal
import time
from typing import Any, List, Optional, Sequence

from jobs.schedulers.slurm.supervisor import rank_command
from jobs.schedulers.slurm.supervisor.job_start import JobRecord, JobStart, word_of_slurm
from jobs.schedulers.slurm.supervisor.shrinking import Shrinking
from jobs.schedulers.slurm.supervisor.slurm_calls import Question, SlurmCalls
from jobs.supervisor import blame, decisions, launching
from jobs.supervisor.blame import Blame
from jobs.supervisor.progress import TaskProgress
from jobs.supervisor.record import Record, left_by_ranks, say

# A controller that is being restarted answers later.
TRIES, PAUSE_S = 10, 15.0
_LOOK_S = 0.2
# They say how a start ended, whatever Slurm did to it.
_NO_FAILURES = (decisions.DONE, decisions.UNUSABLE, decisions.SAVED, decisions.FENCED)
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
        start: JobStart,
        slurm: SlurmCalls,
        record: Record,
        shrinking: Shrinking,
        progress: TaskProgress,
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
        self._is_orphan = False
        self._code = None  # type: Optional[int]
        self._questions = []  # type: List[Question]  # down hosts and facts, of a start that Slurm ends

    @property
    def began(self) -> str:
        """When Slurm began the start that it told of last, by its own clock; "": unknown."""
        return self._slurm.began

    @property
    def look_s(self) -> Optional[float]:
        """Seconds after which to `look` again; None: there is nothing to look for."""
        return _LOOK_S if self._questions else None

    def terminated(self) -> None:
        """Record that Slurm ends this start, and ask why, beside what the ranks still do."""
        self._told_to_end()
        if not self._questions:
            self._ask_why()

    def look(self) -> None:
        """Act on what Slurm has answered to `terminated`, once it has."""
        if self._questions and all(question.is_over for question in self._questions):
            down, facts = [question.answer() for question in self._questions]
            self._questions = []
            self._ended_by_slurm(down, facts)

    def end(self, code: int, text: str) -> None:
        """Do what follows from the end of the ranks."""
        self._code = code
        self._settle_end(code, text)
        self._finish_looking()
        facts = self.facts(TRIES)
        if facts is None:
            # Whoever comes next takes it up; to do more might meddle with a start that is not ours.
            say("ended with exit code %d; Slurm does not answer, so nothing more is done" % code)
            if code in _NO_FAILURES:
                self._record.release()
            if code != decisions.DONE:
                say("to start it by hand: scontrol requeue " + self._slurm.label)
            return
        verdict = decisions.judge(code, word_of_slurm(self.asked, preempted=facts.preempted))
        is_failure = verdict.kind in ("failed", "late")
        if not self._start.owns(facts) or (is_failure and facts.state != "RUNNING"):
            # Its TERM may come to us later than to the ranks.
            if self.asked != "TERM":
                self._ask_why()
                self._finish_looking()
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
            facts = self._answer(self._slurm.ask_facts())
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
            if left and launching.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self._told_to_end()
        say(
            "%s; Slurm does not start it again. Do it by hand: scontrol requeue %s" % (why, self._slurm.label)
        )

    def _ended_by_slurm(self, down: Optional[List[str]], facts: Optional[JobRecord]) -> None:
        """Record which hosts were lost, or that the time was over; other ends by Slurm are not failures."""
        if facts is None or down is None or self._noted:
            return
        if self._start.host in down or not self._start.may_change_next(facts):
            self.orphaned(facts)  # the next start notes what became of this one, or has done so
        elif down:
            self._noted = True
            self._record.note_failure(None, ",".join(down), _DOWN)
            self._record.mark_noted()
            self._shrinking.do_without(down)
        elif facts.reason == "TimeLimit" and not facts.preempted:
            self._noted = True
            if self._code not in (decisions.DONE, decisions.SAVED):
                self._record.settle("had not saved when its time was over", is_failure=True)
            if self._slurm.requeue():
                say("its time is over; to be started again")
        else:
            self._record.release()

    def _told_to_end(self) -> None:
        """Record that Slurm ends this start: whatever the reason, its host and this program are there."""
        self.asked = "TERM"
        self._settle("Slurm ended it")

    def _settle(self, why: str) -> None:
        """Record that this start is no failure, as far as is known."""
        if not self._noted and not self._is_orphan and self._record.is_open:
            self._record.settle(why, is_failure=False)

    def _settle_end(self, code: int, text: str) -> None:
        """Record what the exit code and the ranks themselves tell of this start."""
        if self._is_orphan or not self._record.is_open:
            return
        if code in (decisions.DONE, decisions.SAVED):
            self._record.settle("it ended with exit code %d" % code, is_failure=False)
        elif code in _NO_FAILURES or self.asked == "TERM":
            self._settle("it ended with exit code %d" % code)
        elif not self._noted:
            whom = self._read(code, text)
            why = decisions.judge(code, word_of_slurm(self.asked, preempted=False)).why or whom.why
            self._record.settle(why, is_failure=True, code=code, where=whom.where)

    def _ask_why(self) -> None:
        """Ask both questions at once, since there may be time for one answer only."""
        if not self._noted:
            self._questions = [self._slurm.ask_down_hosts(), self._slurm.ask_facts()]

    def _finish_looking(self) -> None:
        for question in self._questions:
            self._answer(question)
        self.look()

    def _answer(self, question: Question) -> Any:
        """Return the answer; what Slurm does to this start meanwhile is recorded at once."""
        while not question.is_over:
            if launching.next_signal(_LOOK_S, among=(signal.SIGTERM, signal.SIGCHLD)) == "TERM":
                self._told_to_end()
        return question.answer()

    def facts(self, tries: int) -> Optional[JobRecord]:
        """Return Slurm's record; None: it did not answer so often, or for as long as the
        pauses between take.
        """
        until = time.monotonic() + tries * PAUSE_S
        for left in reversed(range(tries)):
            facts = self._answer(self._slurm.ask_facts())  # type: Optional[JobRecord]
            if facts is not None or time.monotonic() > until:
                return facts
            if left and launching.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self._told_to_end()
        return None

    def _blame(self, code: int, text: str) -> Blame:
        """Return the cause of a failure, with the host under Slurm's name."""
        questions = [self._slurm.ask_down_hosts(), self._slurm.ask_host_names()]
        down, names = [self._answer(question) for question in questions]
        if down:
            return Blame(_DOWN, host=",".join(down), lost=True)
        return self._read(code, text, names or [])

    def _read(self, code: int, text: str, hosts: Sequence[str] = ()) -> Blame:
        left = left_by_ranks(self._record.of_ranks)
        return blame.read(text, code, hosts=hosts, left=left, wording=rank_command.SRUN)

    def give_up(self, code: int) -> None:
        """Stop after the failures that were allowed."""
        label = self._slurm.label
        times = self._record.count_failures()
        say("failed %d times: not started again. To try once more: scontrol requeue %s" % (times, label))
        self.note("FAILED", code)

    def note(self, state: str, code: int) -> None:
        """Write down how the task ended."""
        self._record.note_ending(state, code, [], self._start.restarts)
        names = self._answer(self._slurm.ask_host_names())
        if names:
            self._record.note_ending(state, code, names, self._start.restarts)

    def orphaned(self, facts: JobRecord) -> None:
        """Report that the job is at another start, for which this one may do nothing: that start counts what
        Slurm saw of this one, which it gave up.
        """
        self._is_orphan = True
        self._record.retract()
        say(
            "start %d is over, reports Slurm: the job is at start %d (%s)%s. Nothing more is done here."
            % (
                self._start.restarts + 1,
                facts.restarts + 1,
                facts.state,
                ", on " + facts.batch_host if facts.batch_host else "",
            )
        )
