"""One task of an attended job: started, asked to save, ended, judged, and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from jobs.local import attended_files, processes
from jobs.local.attended_files import TaskEntry, Terms
from jobs.local.host_watch import MISSED, HostWatch, silent_among
from jobs.schedulers.base import ENDED
from jobs.supervisor import blame, decisions, progress, record
from jobs.supervisor.blame import Blame
from jobs.supervisor.progress import Standing
from trainer import atomic
from trainer.transient import PASSING

# mpirun ends its ranks within a second or two of SIGTERM; what is left then is killed.
KILL_AFTER_S = 10.0
# A start that ended sooner than this is followed by a longer pause than the one before.
SHORT_S = 10.0
LONGEST_PAUSE_S = 60.0

# What a running task was last told: to save and be started again, to save and end, to end at once; or its
# time is up, or one of its hosts is lost. A stronger word replaces a weaker one.
Word = Literal["again", "time", "lost", "end", "cancel"]
_STRENGTH: tuple[Word, ...] = ("again", "time", "lost", "end", "cancel")


class AttendedTask:
    """Task `number` of the job in `folder`; `entry` is what others may know of it.

    Args:
        folder: of the job.
        agreed: the job's terms.
        number: of the task, from 0.
        entry: its state from an earlier attendant; None: it is new.
        umask: of the command; what we write ourselves is private anyway.
        write: makes what is known of the task outlive this process, before hosts are asked, which may take
            long.
    """

    def __init__(
        self,
        folder: Path,
        agreed: Terms,
        number: int,
        entry: TaskEntry | None,
        umask: int,
        write: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.terms = agreed
        self.number = number
        self.entry = entry or TaskEntry(number)
        self.mark = f"{agreed.token}.{number}"
        self.log = attended_files.log(folder, number, is_array=agreed.is_array)
        self._umask = umask
        self._write = write
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: HostWatch | None = None
        self._word: Word | None = None
        self._terminated = False
        self._began = self._due = 0.0
        self._end_at = self._kill_at = float("inf")
        self._pause_s = agreed.pause_s
        self._log_begins = 0
        if self.entry.state not in ENDED and entry is not None:
            # Its attendant died with it in hand: it starts over, from its checkpoint.
            processes.end_marked(self.mark)
            if self.entry.state == "RUNNING" and self.entry.exit_code is not None:
                self.failed(self.entry.exit_code, Blame(self.entry.reason))
            else:
                self._again("its attendant was killed")

    @property
    def is_running(self) -> bool:
        """Whether its command runs."""
        return self._process is not None

    @property
    def is_due(self) -> bool:
        """Return whether it waits for hosts only."""
        waits = self._process is None and self.entry.state not in ENDED
        return waits and time.monotonic() >= self._due

    @property
    def _of_ranks(self) -> Path:
        """Return the folder where ranks of this start leave the reason of a failure."""
        number = self.number if self.terms.is_array else None
        return record.Record(self.folder, number, self.entry.restarts + 1).of_ranks

    def start(self, hosts: Sequence[str]) -> bool:
        """Start the command on these hosts; return whether it could be started."""
        self._say(f"start {self.entry.restarts + 1}" + (f" on {', '.join(hosts)}" if hosts else ""))
        self._word, self._terminated = None, False
        self._end_at = self._kill_at = float("inf")
        warning = self._progress(progress.begun)
        environment = {
            **os.environ,
            **self.terms.environment,
            processes.MARK: self.mark,
            attended_files.RESTARTS: str(self.entry.restarts),
            attended_files.FAILURES: str(self._of_ranks),
        }
        try:
            self._of_ranks.mkdir(parents=True, exist_ok=True)
            if self.terms.hosts:
                lines = [f"{host} slots={self.terms.slots}\n" for host in hosts]
                atomic.write_text(attended_files.hostfile(self.folder, self.number), "".join(lines))
            with self.log.open("ab") as log:
                self._log_begins = log.tell()
                self._process = subprocess.Popen(
                    self.terms.commands[self.number],
                    cwd=self.terms.folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=self._umask,
                    preexec_fn=processes.die_with_parent(),
                )
        except OSError as error:
            if error.errno in PASSING:
                self.failed(None, Blame(f"cannot be started: {error}"))
                return False
            self._note_failure(None, Blame(f"cannot be started: {error}"))
            self._ended("FAILED", None, f"cannot be started: {error}")
            return False
        self._began = time.monotonic()
        if self.terms.probe and self.terms.check_s > 0:
            every_s, answer_s = self.terms.check_s, self.terms.probe_s
            self._watch = HostWatch(self.terms.probe, hosts, every_s=every_s, answer_s=answer_s)
        if self.terms.minutes is not None:
            # A limit shorter than the grace must leave time to get somewhere.
            limit_s = 60 * self.terms.minutes
            self._end_at = self._began + max(limit_s / 2, limit_s - self.terms.grace_s)
        entry = self.entry
        entry.pid, entry.process = self._process.pid, processes.identity(self._process.pid)
        entry.state, entry.reason, entry.exit_code = "RUNNING", warning, None
        entry.hosts, entry.started, entry.ended = tuple(hosts) or (socket.gethostname(),), time.time(), None
        return True

    def save(self, word: Word) -> None:
        """Ask for a checkpoint (SIGUSR2); end the task after the grace period, saved or not."""
        if self._process is None:
            if word == "end":
                self.give_up("PREEMPTED", "its attendant was asked to end")
            return
        if self._word is not None and _STRENGTH.index(self._word) >= _STRENGTH.index(word):
            return
        if self._word is None:
            self._tell(signal.SIGUSR2)
            self._kill_at = time.monotonic() + self.terms.grace_s
        self._word = word

    def cancel(self) -> None:
        """End it at once; leave it unchanged if it has ended."""
        if self._process is None:
            self.give_up("CANCELLED", "by request")
        elif self._word != "cancel":
            self._word, self._kill_at = "cancel", time.monotonic()

    def requeue(self) -> None:
        """Save and start it again; also restart a task that has ended."""
        if self._process is not None:
            self.save("again")
            return
        self.entry.failures, self.entry.lost_hosts, self.entry.idle = 0, (), 0
        if self.entry.state in ENDED:
            self.entry.exit_code = None
            self._again("requeued")

    def give_up(self, state: str, reason: str) -> None:
        """End a task that does not run."""
        if self._process is None and self.entry.state not in ENDED:
            self._ended(state, self.entry.exit_code, reason)

    def look(self) -> None:
        """Check whether the command has ended or its time is up."""
        if self._process is None:
            return
        # Not yet reaped, so that its number is nobody else's while the rest of it is ended.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            processes.end_marked(self.mark)  # what it has left running on this host
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            code = self._process.wait()
            self._process = None
            self._judge(
                blame.exit_code(record.told(self.log, self._log_begins), 128 - code if code < 0 else code)
            )
            return
        now = time.monotonic()
        if self._word is None and self._watch is not None and (lost := self._watch.silent()):
            self._say(f"{', '.join(lost)}: no answer for {MISSED} times")
            self._word, self._kill_at = "lost", now
        if now >= self._end_at:
            self._end_at = float("inf")
            self.save("time")
        if now >= self._kill_at + KILL_AFTER_S:
            processes.end_marked(self.mark)
        elif now >= self._kill_at and not self._terminated:
            self._terminated = True
            self._tell(signal.SIGTERM)
            self._tell(signal.SIGCONT)  # a stopped process would not hear it

    def silent(self, hosts: Sequence[str]) -> list[str]:
        """Return those of these hosts that do not answer in time."""
        if not self.terms.probe:
            return []
        return silent_among(self.terms.probe, hosts, self.terms.probe_s)

    def lose(self, hosts: Sequence[str]) -> None:
        """Skip hosts that do not answer before a start; this is not counted as a failure yet."""
        self._say(f"{', '.join(hosts)}: no answer; passed over")
        self._lost(hosts)

    def _lost(self, hosts: Sequence[str]) -> None:
        self.entry.lost_hosts = tuple(dict.fromkeys([*self.entry.lost_hosts, *hosts]))

    def failed(self, exit_code: int | None, cause: Blame) -> None:
        """Record a failed start (exit code None: for lack of hosts, before it began); start again, or end
        after the last start allowed.
        """
        if exit_code is None:
            self._began = time.monotonic()
        entry = self.entry
        entry.failures += 1
        entry.exit_code = exit_code
        if cause.lost:
            self._lost([host for host in cause.host.replace(",", " ").split() if host in self.terms.hosts])
        self._note_failure(exit_code, cause)
        if entry.failures > self.terms.requeues:
            times = "once" if entry.failures == 1 else f"{entry.failures} times"
            self._ended("NODE_FAIL" if cause.lost else "FAILED", exit_code, f"{cause} (failed {times})")
        else:
            self._again(str(cause))

    def _tell(self, number: signal.Signals) -> None:
        # Popen.send_signal would reap it if it has ended, before the rest of it is ended, and hide that from
        # `look`. Until we reap it, its number is nobody else's.
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _judge(self, code: int) -> None:
        # A host that is lost is a failure of the start; who was only asked to save is started again.
        verdict = decisions.judge(code, None if self._word == "lost" else self._word)
        if verdict.kind == "done":
            self._ended("COMPLETED", code, "")
        elif verdict.kind == "cancelled":
            self._ended("CANCELLED", code, verdict.why)
        elif verdict.kind == "ended":
            self._ended("PREEMPTED", code, f"its attendant was asked to end; {verdict.why}")
        elif verdict.kind == "again":
            self._again_if_it_gets_anywhere(code, verdict.why)
        elif verdict.kind == "late":
            self._ended("TIMEOUT", code, f"did not save within {self.terms.grace_s:g} s of its time limit")
        elif verdict.kind == "fenced":
            self._ended("FAILED", code, verdict.why)
        elif verdict.kind == "unusable":
            cause = self._blame(code, [])
            self._note_failure(code, cause)
            self._ended("FAILED", code, str(cause))
        else:
            self.entry.exit_code, self.entry.reason = code, str(self._blame(code, []))
            self._write()
            self.failed(code, self._blame(code, self.silent(self.entry.hosts)))

    def _blame(self, code: int, silent: Sequence[str]) -> Blame:
        text = record.told(self.log, self._log_begins)
        left = record.left_by_ranks(self._of_ranks)
        return blame.read(text, code, hosts=self.entry.hosts, silent=silent, left=left)

    def _again_if_it_gets_anywhere(self, code: int, why: str) -> None:
        # Who was asked to save for another reason may not have had the time for a step.
        counts = code == decisions.SAVED and self._word in (None, "time")
        warning = self._progress(progress.saved) if counts else ""
        if warning and progress.is_stuck(self._standing):
            self._ended("FAILED", code, warning)
        else:
            self._again(warning or why)

    @property
    def _standing(self) -> Standing:
        return Standing(self.entry.step, self.entry.idle)

    def _progress(self, judge: Callable[[Standing, int | None], Standing]) -> str:
        """Check what a training has saved; warn where it makes no progress from start to start."""
        if not self.terms.runs:
            return ""
        now = judge(self._standing, progress.newest_step(self.terms.runs[self.number]))
        self.entry.step, self.entry.idle = now
        return progress.in_words(now, limited=self.terms.minutes is not None) if now.idle else ""

    def _again(self, reason: str) -> None:
        short = self._began and time.monotonic() - self._began < SHORT_S
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S) if short else self.terms.pause_s
        self._due = time.monotonic() + self._pause_s
        entry = self.entry
        entry.restarts += 1
        entry.state, entry.reason, entry.pid, entry.process = "REQUEUED", reason, None, None
        self._say(f"{reason}; is started again")

    def _ended(self, state: str, code: int | None, reason: str) -> None:
        entry = self.entry
        entry.state, entry.exit_code, entry.reason = state, code, reason
        entry.ended, entry.pid, entry.process = time.time(), None, None
        self._say(f"{state}{': ' if reason else ''}{reason}")

    def _note_failure(self, code: int | None, cause: Blame) -> None:
        fields = (_now(), "" if code is None else str(code), cause.where, cause.why)
        path = attended_files.failures(self.folder, self.number, is_array=self.terms.is_array)
        with contextlib.suppress(OSError), path.open("a") as file:  # a full disk: it is in the state, too
            file.write("\t".join(" ".join(field.split()) for field in fields) + "\n")

    def _say(self, what: str) -> None:
        with contextlib.suppress(OSError), self.log.open("a") as log:
            log.write(f"[attendant {_now()}] {what}\n")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
