"""Supervise one start: start the ranks, forward signals, and act on their end.

docs/explanation/preemption.md tells it in words; tests/cluster try each path.
"""

import argparse
import os
import signal
import socket
from pathlib import Path
from typing import Optional, Sequence

from jobs.schedulers.slurm.supervisor import rank_command
from jobs.schedulers.slurm.supervisor.ending import Ending
from jobs.schedulers.slurm.supervisor.job_start import JobStart
from jobs.schedulers.slurm.supervisor.rank_command import RankCommand, RankLauncher
from jobs.schedulers.slurm.supervisor.shrinking import Shrinking
from jobs.schedulers.slurm.supervisor.slurm_calls import SlurmCalls
from jobs.supervisor import blame, decisions, launching
from jobs.supervisor.mpirun_command import Refused
from jobs.supervisor.progress import TaskProgress
from jobs.supervisor.record import Record, say, told

# Ranks tell each other of a loss; hosts tell Slurm. Before a start nobody should wait long.
_TRIES_BEFORE = 2
# srun ends the ranks that are left as soon as one has ended with 75; all of them had saved by then.
_SAVED_BY_SRUN = r"^srun: error: .*: Exited with exit code 75$"


class Supervisor:
    """Supervises one start.

    Args:
        start: by Slurm's count.
        hosts: of this start, in Slurm's short form.
        record: files of this start.
        shrinking: how the job does without hosts.
        progress: whether it gets anywhere from start to start.
        requeues: how often a failed task is started again.
        ending: what becomes of the job.
    """

    def __init__(
        self,
        start: JobStart,
        hosts: str,
        record: Record,
        shrinking: Shrinking,
        progress: TaskProgress,
        requeues: int,
        ending: Ending,
    ) -> None:
        self._start = start
        self._hosts = hosts
        self._record = record
        self._shrinking = shrinking
        self._progress = progress
        self._requeues = requeues
        self._ending = ending

    def run(self, launch: RankCommand) -> int:
        """Run the ranks; return the exit code for Slurm."""
        if signal.SIGUSR2 in signal.sigpending():
            self._ending.asked = "USR2"
        code = self._begin()
        if code is not None:
            return code
        if self._ending.asked:
            self._ending.start_again("asked to save before it had begun", [])
            return decisions.SAVED
        log = self._record.log
        log_begins = log.stat().st_size if log.exists() else 0
        environment = dict(launch.environment, CINGULUM_FAILURES=str(self._record.of_ranks))
        self._shrinking.start_witness()
        try:
            process = launching.start(launch.line, environment)
        except OSError as error:
            say("%s: %s" % (launch.line[0], error.strerror))
            self._ending.end(decisions.UNUSABLE, "")
            return decisions.UNUSABLE
        code = self._wait(process)
        text = told(log, log_begins)
        if code > 128 and blame.matches(_SAVED_BY_SRUN, text):
            code = decisions.SAVED
        code = blame.exit_code(text, code)
        self._ending.end(code, text)
        return code

    def refuse(self, why: str = "") -> int:
        """Record that this start is impossible: bad input, which stays bad. `why`: "": it is reported
        already.
        """
        if why:
            say(why)
        facts = self._ending.facts(1)
        if facts is not None and self._start.owns(facts):
            self._ending.note("FAILED", decisions.UNUSABLE)
        return decisions.UNUSABLE

    def _begin(self) -> Optional[int]:
        """Take over what earlier starts have left; return an exit code where this start is not to run."""
        number = self._start.restarts + 1
        facts = self._ending.facts(_TRIES_BEFORE)
        if facts is not None and not self._start.owns(facts):
            self._ending.orphaned(facts)
            return decisions.FENCED
        if facts is not None:
            earlier = self._record.earlier()
            failed = [self._record.take_up(path, facts.preempted_at) for path in earlier]
            if any(failed) and decisions.is_spent(self._record.count_failures(), self._requeues):
                self._ending.give_up(1)
                return 1
            self._record.forget_ending()
        say("start %d on %s" % (number, self._hosts))
        if not self._ending.asked:
            self._record.begin(self._start.host, self._ending.began)
            self._progress.begin()
        return None

    def _wait(self, process: launching.Process) -> int:
        """Forward signals until the ranks have ended; return their exit code."""
        while True:
            status = process.poll()
            if status is not None:
                # Sent to us and to the ranks at once: it may have ended them.
                if signal.SIGTERM in signal.sigpending():
                    self._terminated(process)
                elif signal.SIGUSR2 in signal.sigpending():
                    self._ending.asked = "USR2"
                return launching.exit_code(status)
            signal_name = launching.next_signal(self._ending.look_s)
            self._ending.look()
            if signal_name == "USR2":
                # The end of the time limit is near, or a job of higher priority needs the hosts.
                self._ending.asked = "USR2"
                say("asked to save (USR2)")
                launching.tell_to_save(process)
            elif signal_name == "TERM":
                self._terminated(process)

    def _terminated(self, process: launching.Process) -> None:
        """Handle Slurm's end of this start: scancel, requeue, preemption, the time limit, or a lost host.

        What is left is to save, within KillWait. Slurm starts the job again itself where that is due, but not
        after its time limit: then it is asked to.
        """
        launching.tell_to_save(process)
        self._ending.terminated()
        say("Slurm ends this start (TERM)")


def main(argv: Sequence[str]) -> int:
    """Supervise one start, as the batch script requests; or wait as its witness."""
    parser = argparse.ArgumentParser(prog="supervisor", description=__doc__)
    parser.add_argument("--label", required=True, help="what Slurm calls the task: 4711, or 4711_3")
    parser.add_argument("--folder", required=True, type=Path, help="of the job")
    parser.add_argument("--task", type=int, help="of an array")
    parser.add_argument("--requeues", type=int, required=True, help="starts after failures")
    parser.add_argument("--least-nodes", type=int, help="least number of hosts; without it none is left out")
    parser.add_argument("--ranks-per-node", type=int, required=True)
    parser.add_argument("--launcher", default="", help="mpirun or srun; default: none")
    parser.add_argument("--mpirun", help="of the site")
    parser.add_argument("--mpi", default="", help="plugin of srun")
    parser.add_argument("--srun-option", action="append", default=[], help="may be repeated")
    parser.add_argument("--outlives", action="store_true", help="ranks continue when one dies")
    parser.add_argument("--contained", type=int, default=0, help="words of COMMAND that start a container")
    parser.add_argument("--asked", default="", help="signal received before")
    parser.add_argument("--run", help="folder that the task trains in")
    parser.add_argument("--limited", action="store_true", help="the job has a time limit")
    parser.add_argument("--witness", help="internal: wait on another host than this one, of the script")
    parser.add_argument("--hosts", default=os.environ.get("SLURM_JOB_NODELIST", ""))
    parser.add_argument("--nodes", type=int, default=int(os.environ.get("SLURM_JOB_NUM_NODES") or 1))
    parser.add_argument("--cores", type=int, default=int(os.environ.get("SLURM_CPUS_PER_TASK") or 1))
    parser.add_argument("--refused", action="store_true", help="only record that this start is impossible")
    cut = list(argv).index("--") if "--" in argv else len(argv)
    options, command = list(argv[:cut]), list(argv[cut + 1 :])
    arguments = parser.parse_args(options)

    launching.hold_signals()
    restarts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    here = arguments.witness or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    start = JobStart(restarts, here)
    slurm = SlurmCalls(arguments.label, arguments.hosts)
    record = Record(arguments.folder, arguments.task, restarts + 1)
    shrinking = Shrinking(
        start,
        slurm,
        arguments.least_nodes,
        arguments.nodes,
        arguments.ranks_per_node,
        arguments.cores,
        options,
    )
    if arguments.witness:
        return shrinking.witness(record.log)
    progress = TaskProgress(record.standing, arguments.run, arguments.limited)
    ending = Ending(start, slurm, record, shrinking, progress, arguments.requeues, arguments.asked)
    supervisor = Supervisor(start, arguments.hosts, record, shrinking, progress, arguments.requeues, ending)
    if arguments.refused:
        return supervisor.refuse()
    launcher = RankLauncher(
        arguments.launcher,
        arguments.ranks_per_node,
        arguments.mpirun,
        arguments.mpi,
        arguments.srun_option,
        arguments.outlives,
        arguments.contained,
    )
    try:
        launch = rank_command.prepare(launcher, arguments.nodes, command, os.environ)
    except Refused as error:
        return supervisor.refuse(str(error))
    return supervisor.run(launch)
