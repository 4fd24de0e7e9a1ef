"""Looks after one start: starts the ranks, passes signals on, and decides what becomes of the job.

docs/explanation/preemption.md tells it in words; tests/cluster try each path.
"""

import argparse
import os
import signal
import socket
import time
from pathlib import Path
from typing import List, Optional, Sequence

from jobs import blame
from jobs.blame import Blame
from jobs.supervisor import decisions, processes, witness
from jobs.supervisor.decisions import Facts, Start
from jobs.supervisor.progress import Progress
from jobs.supervisor.record import Record, left_by_ranks, say, told
from jobs.supervisor.shrinking import Shrinking
from jobs.supervisor.slurm_calls import Slurm

# A controller that is being restarted answers later.
TRIES, PAUSE_S = 10, 15.0
# Ranks tell each other of a loss; hosts tell Slurm. Before a start nobody should wait long.
TRIES_BEFORE = 2
# srun ends the ranks that are left as soon as one has ended with 75; all of them had saved by then.
_SAVED_BY_SRUN = r"^srun: error: .*: Exited with exit code 75$"
_DOWN = "down, says Slurm: powered off, or its link is cut"


class Supervisor:
    """Looks after one start.

    Args:
        start: by Slurm's count.
        slurm: asked about this job.
        record: files of this start.
        shrinking: how the job does without hosts.
        progress: whether it gets anywhere from start to start.
        requeues: how often a failed task is started again.
        asked: the signal that came before there were ranks to tell; "": none.
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
        self.start = start
        self.slurm = slurm
        self.record = record
        self.shrinking = shrinking
        self.progress = progress
        self.requeues = requeues
        self.asked = asked
        self._process = None  # type: Optional[processes.Process]
        self._noted = False

    def run(self, line: Sequence[str]) -> int:
        """Run the ranks; returns the exit code for Slurm."""
        code = self._begin()
        if code is not None:
            return code
        if self.asked:
            self._start_again("told to save before it had begun", [])
            return decisions.SAVED
        log_begins = self.record.log.stat().st_size if self.record.log.exists() else 0
        environment = dict(os.environ, CINGULUM_FAILURES=str(self.record.of_ranks))
        self.shrinking.start_witness()
        try:
            self._process = processes.start(line, environment)
        except OSError as error:
            say("%s: %s" % (line[0], error.strerror))
            self._end(decisions.UNUSABLE, "")
            return decisions.UNUSABLE
        code = self._wait()
        text = told(self.record.log, log_begins)
        if code > 128 and blame.matches(_SAVED_BY_SRUN, text):
            code = decisions.SAVED
        code = blame.exit_code(text, code)
        self._end(code, text)
        return code

    def refuse(self) -> int:
        """Note that this start cannot be: bad input, which stays bad."""
        facts = self._facts(1)
        if facts is not None and self.start.owns(facts):
            self._note_ending("FAILED", decisions.UNUSABLE)
        return decisions.UNUSABLE

    def _begin(self) -> Optional[int]:
        """Take up what earlier starts have left; an exit code where this one is not to be."""
        number = self.start.restarts + 1
        facts = self._facts(TRIES_BEFORE)
        if facts is not None and not self.start.owns(facts):
            self._orphaned(facts)
            return decisions.FENCED
        if facts is not None:
            earlier = self.record.earlier()
            for path in earlier:
                self.record.take_up(path)
            failures = self.record.count_failures()
            if earlier and decisions.is_spent(failures, self.requeues):
                self._give_up(1)
                return 1
            self.record.forget_ending()
        say("start %d on %s" % (number, self.slurm.hosts))
        if not self.asked:
            self.record.begin(self.start.host)
            self.progress.begin()
        return None

    def _wait(self) -> int:
        """Pass signals on until the ranks have ended; their exit code."""
        process = self._process
        assert process is not None
        while True:
            status = process.poll()
            if status is not None:
                # Sent to us and to the ranks at once: it may have ended them.
                if signal.SIGTERM in signal.sigpending():
                    self._terminated()
                elif signal.SIGUSR2 in signal.sigpending():
                    self.asked = "USR2"
                return processes.exit_code(status)
            found = processes.next_signal()
            if found == "USR2":
                # The end of the time limit is near, or a job of higher priority needs the hosts.
                self.asked = "USR2"
                say("told to save (USR2)")
                processes.tell_to_save(process)
            elif found == "TERM":
                self._terminated()

    def _terminated(self) -> None:
        """Slurm ends this start now: scancel, requeue, preemption, the time limit, or a host was lost.

        What is left is to save, within KillWait. Slurm starts the job again itself where that is due, but not
        after its time limit: then it is asked to.
        """
        self.asked = "TERM"
        say("Slurm ends this start (TERM)")
        processes.tell_to_save(self._process)
        self._ended_by_slurm()

    def _ended_by_slurm(self) -> None:
        """Note which hosts were lost, or that the time was over; what else Slurm ends is no failure."""
        down = self.slurm.down_hosts()
        facts = self.slurm.facts()
        if facts is None or down is None or self._noted:
            return
        if self.start.host in down or not self.start.may_change_next(facts):
            self._orphaned(facts)  # the next start notes what became of this one, or has done so
            return
        self.record.release()
        if down:
            self._noted = True
            self.record.note_failure(None, ",".join(down), _DOWN)
            self.record.mark_noted()
            self.shrinking.do_without(down)
        elif facts.reason == "TimeLimit" and not facts.preempted:
            self._noted = True
            self.record.leave("", "had not saved when its time was over")
            if self.slurm.requeue():
                say("its time is over; to be started again")

    def _end(self, code: int, text: str) -> None:
        """Do what follows from the end of the ranks."""
        facts = self._facts(TRIES)
        if facts is None:
            # Whoever comes next takes it up; to do more might meddle with a start that is not ours.
            say("ended with exit code %d; Slurm does not answer, so that nothing more is done" % code)
            if code not in (decisions.DONE, decisions.UNUSABLE, decisions.SAVED, decisions.FENCED):
                self.record.leave_if_there(self.start.host, "ended with exit code %d" % code)
            else:
                self.record.release()
            if code != decisions.DONE:
                say("to start it by hand: scontrol requeue " + self.slurm.label)
            return
        verdict = decisions.judge(code, decisions.word_of_slurm(self.asked, preempted=facts.preempted))
        is_failure = verdict.kind in ("failed", "late")
        if not self.start.owns(facts) or (is_failure and facts.state != "RUNNING"):
            # Its TERM may come to us later than to the ranks.
            if self.asked != "TERM":
                self._ended_by_slurm()
            if self._noted and not is_failure and code in (decisions.DONE, decisions.SAVED):
                self.record.release()
            say("ended with exit code %d; Slurm has ended this start itself" % code)
            return
        if not is_failure and (not self._noted or code in (decisions.DONE, decisions.SAVED)):
            self.record.release()
        if verdict.kind == "done":
            self._note_ending("COMPLETED", code)
        elif verdict.kind in ("unusable", "fenced"):
            if verdict.why:
                say(verdict.why)
            self._note_ending("FAILED", code)
        elif verdict.kind == "again":
            # Who was preempted or cancelled may not have had the time for a step.
            counts = code == decisions.SAVED and self.asked != "TERM" and not facts.preempted
            self._again(verdict.why, self.progress.saved() if counts else "")
        else:
            self._failed(code, Blame(verdict.why) if verdict.kind == "late" else self._blame(code, text))

    def _again(self, why: str, warning: str) -> None:
        """Have a start that saved followed by another one, unless none comes a step further."""
        if warning and self.progress.is_stuck():
            say("%s. Not started again. To try once more: scontrol requeue %s" % (warning, self.slurm.label))
            self.progress.forget()
            self._note_ending("FAILED", decisions.SAVED)
        else:
            self._start_again(warning or why, [])

    def _failed(self, code: int, whom: Blame) -> None:
        """Note a failure, and have Slurm start the job again where it may."""
        self.record.note_failure(code, whom.where, whom.why)
        self.record.release()
        failures = self.record.count_failures()
        if decisions.is_spent(failures, self.requeues):
            self._give_up(code)
            return
        lost = whom.host.split(",") if whom.lost and whom.host else []
        self._start_again("failure %d of %d that are allowed" % (failures, self.requeues), lost)

    def _start_again(self, why: str, lost: List[str]) -> None:
        """Have Slurm start this job again, and then do without lost hosts.

        A job that is no longer running was ended by Slurm: cancelled, or to be started again anyway.
        """
        for left in reversed(range(TRIES)):
            facts = self.slurm.facts()
            if facts is not None and not self.start.may_change_next(facts):
                self._orphaned(facts)
                return
            if facts is not None and not self.start.may_act(facts):
                say(why + "; Slurm has ended this start itself")
                return
            if facts is not None and self.slurm.requeue():
                say(why + "; to be started again")
                self.shrinking.do_without(lost)
                return
            if left and processes.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self.asked = "TERM"
        say("%s; Slurm does not start it again. Do it by hand: scontrol requeue %s" % (why, self.slurm.label))

    def _facts(self, tries: int) -> Optional[Facts]:
        """What Slurm says; None: it did not answer so often, or for as long as the pauses between take."""
        until = time.monotonic() + tries * PAUSE_S
        for left in reversed(range(tries)):
            facts = self.slurm.facts()
            if facts is not None or time.monotonic() > until:
                return facts
            if left and processes.next_signal(PAUSE_S, among=(signal.SIGTERM,)):
                self.asked = "TERM"
        return None

    def _blame(self, code: int, text: str) -> Blame:
        """Whom a failure is put down to, the host by the name that Slurm has for it."""
        down = self.slurm.down_hosts()
        if down:
            return Blame(_DOWN, host=",".join(down), lost=True)
        left = left_by_ranks(self.record.of_ranks)
        return blame.read(text, code, hosts=self.slurm.host_names(), left=left)

    def _give_up(self, code: int) -> None:
        label = self.slurm.label
        times = self.record.count_failures()
        say("failed %d times: not started again. To try once more: scontrol requeue %s" % (times, label))
        self._note_ending("FAILED", code)

    def _note_ending(self, state: str, code: int) -> None:
        self.record.note_ending(state, code, self.slurm.host_names(), self.start.restarts)

    def _orphaned(self, facts: Facts) -> None:
        say(
            "start %d is over, says Slurm: the job is at start %d (%s)%s. Nothing more is done here."
            % (
                self.start.restarts + 1,
                facts.restarts + 1,
                facts.state,
                ", on " + facts.batch_host if facts.batch_host else "",
            )
        )


def main(argv: Sequence[str]) -> int:
    """Look after one start, as the batch script asks; or wait as its witness."""
    parser = argparse.ArgumentParser(prog="supervisor", description=__doc__)
    parser.add_argument("--label", required=True, help="what Slurm calls the task: 4711, or 4711_3")
    parser.add_argument("--folder", required=True, type=Path, help="of the job")
    parser.add_argument("--task", type=int, help="of an array")
    parser.add_argument("--requeues", type=int, required=True, help="starts after failures")
    parser.add_argument("--least-nodes", type=int, help="hosts that are enough; without it none is left out")
    parser.add_argument("--ranks-per-node", type=int, required=True)
    parser.add_argument("--asked", default="", help="signal that came before")
    parser.add_argument("--run", help="folder that the task trains in")
    parser.add_argument("--limited", action="store_true", help="the job has a time limit")
    parser.add_argument("--witness", help="internal: wait on another host than this one, of the script")
    parser.add_argument("--hosts", default=os.environ.get("SLURM_JOB_NODELIST", ""))
    parser.add_argument("--nodes", type=int, default=int(os.environ.get("SLURM_JOB_NUM_NODES") or 1))
    parser.add_argument("--cores", type=int, default=int(os.environ.get("SLURM_CPUS_PER_TASK") or 1))
    parser.add_argument("--refused", action="store_true", help="only note that this start cannot be")
    cut = list(argv).index("--") if "--" in argv else len(argv)
    options, line = list(argv[:cut]), list(argv[cut + 1 :])
    given = parser.parse_args(options)

    processes.hold_signals()
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    here = given.witness or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    start = Start(restarts, here)
    slurm = Slurm(given.label, given.hosts)
    record = Record(given.folder, given.task, restarts + 1)
    shrinking = Shrinking(
        start, slurm, given.least_nodes, given.nodes, given.ranks_per_node, given.cores, options
    )
    if given.witness:
        return witness.wait(start, slurm, shrinking, record.log)
    progress = Progress(record.standing, given.run, given.limited)
    supervisor = Supervisor(start, slurm, record, shrinking, progress, given.requeues, given.asked)
    return supervisor.refuse() if given.refused else supervisor.run(line)
