"""Starts of a run on a file system in memory, which change at every call: the real code of the lease.

A call looks its names up and then acts on the folders that it found, and another start may run in between:
so does NFS, whose client holds handles, and so does a process that is paused inside the kernel. A call on a
folder that was removed meanwhile fails with ESTALE. A rename or a link may be repeated, as NFS does when an
answer was lost: then the answer to the second one counts. A start may be killed at any call.

`Execution` runs one interleaving. `search` runs all with at most so many changes from one start to another.
Time is each start's own, and passes only where it sleeps: whoever waits sees the others stand still.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from trainer.errors import CingulumError
from trainer.leases import claims, lease, lease_files, lease_taking
from trainer.leases.claims import Owner

RUN = "/runs/run"
_CREATE = os.O_CREAT
_WAIT_S = 20.0


# How often all claims had been taken away before, and the name of the claim.
Claim = tuple[int, str]


class Killed(BaseException):
    """The process of a start was killed: nothing that it does afterwards has an effect."""


@dataclass
class Node:
    """A folder (entries) or a file (content)."""

    inode: int
    entries: dict[str, Node] | None = None
    content: bytes = b""
    is_removed: bool = False


@dataclass(frozen=True)
class Interleaving:
    """What makes one interleaving.

    Attributes:
        changes: point -> the start that runs from there on.
        kill: the point at which the start that runs is killed.
        repeat: the point whose link or rename is repeated.
    """

    changes: tuple[tuple[int, int], ...] = ()
    kill: int | None = None
    repeat: int | None = None


@dataclass
class Execution:
    """One interleaving of starts; `run` it, then look.

    Attributes:
        stories: what each start does.
        interleaving: where it changes.
        points: at each: the start that ran, what it was about to do, and whether it is a link or a rename.
        living: at each point, the starts that had not ended.
        reads: start -> its claim, and when it read the run's state.
        puts: (when, start) of each file that got its name outside of `.writers`.
    """

    stories: list[Callable[[Execution, int], None]]
    interleaving: Interleaving
    points: list[tuple[int, str, bool]] = field(default_factory=list)
    living: list[tuple[int, ...]] = field(default_factory=list)
    reads: dict[int, tuple[Claim, int]] = field(default_factory=dict)
    puts: list[tuple[int, int]] = field(default_factory=list)
    outcomes: dict[int, str] = field(default_factory=dict)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changes = dict(self.interleaving.changes)
        self._inodes = 0
        self.root = self._folder()
        self.root.entries = {"runs": self._folder()}
        self._turns = [threading.Semaphore(0) for _ in self.stories]
        self._all_ended = threading.Semaphore(0)
        self._alive = set(range(len(self.stories)))
        self.dead: set[int] = set()
        self._files: dict[int, tuple[Node, int]] = {}
        self._clocks = [0.0] * len(self.stories)
        self._tokens = [0] * len(self.stories)
        self._staging: dict[int, int] = {}  # inode of a staging folder -> its start
        self._now = 0
        self._claims: dict[int, Claim] = {}
        self._generation = 0

    # The scheduler.

    def run(self) -> Execution:
        """Run all starts to their ends; the first one begins."""
        threads = [threading.Thread(target=self._live, args=(who,), daemon=True) for who in self._alive]
        for thread in threads:
            thread.start()
        self._hand_to(0)
        if not self._all_ended.acquire(timeout=_WAIT_S):
            raise AssertionError(f"a start does not end under {self.interleaving}: {self.points[-5:]}")
        if self.errors:
            raise AssertionError(f"{self.interleaving}: {self.errors[0]!r}") from self.errors[0]
        return self

    def _live(self, who: int) -> None:
        self._turns[who].acquire()
        try:
            self.stories[who](self, who)
            self.outcomes[who] = "done"
        except Killed:
            self.outcomes[who] = "killed"
        except CingulumError as error:
            self.outcomes[who] = type(error).__name__
        except BaseException as error:
            self.outcomes[who] = repr(error)
            self.errors.append(error)
        self._alive.discard(who)
        self.dead.add(who)
        if self._alive:
            self._hand_to(min(self._alive))
        else:
            self._all_ended.release()

    def _hand_to(self, who: int) -> None:
        self.current = who
        self._turns[who].release()

    def point(self, what: str, *, is_repeatable: bool = False) -> int:
        """A start is about to do something: here another may go on, or it may be killed."""
        who = self.current
        if who in self.dead:
            raise Killed
        number = len(self.points)
        self.points.append((who, what, is_repeatable))
        self.living.append(tuple(sorted(self._alive)))
        if self.interleaving.kill == number:
            self.dead.add(who)
            raise Killed
        other = self._changes.get(number, who)
        if other != who and other in self._alive:
            self._hand_to(other)
            self._turns[who].acquire()
        return number

    # The file system.

    def _folder(self) -> Node:
        self._inodes += 1
        return Node(self._inodes, entries={})

    def _find(self, path: str) -> Node:
        node = self.root
        for name in filter(None, path.split("/")):
            if node.entries is None:
                raise _error(errno.ENOTDIR, path)
            if name not in node.entries:
                raise _error(errno.ENOENT, path)
            node = node.entries[name]
        return node

    def _above(self, path: str) -> tuple[Node, str]:
        parent, _, name = path.rpartition("/")
        node = self._find(parent)
        if node.entries is None:
            raise _error(errno.ENOTDIR, path)
        return node, name

    def _entries(self, folder: Node, path: str) -> dict[str, Node]:
        if folder.is_removed:
            raise _error(errno.ESTALE, path)
        assert folder.entries is not None
        return folder.entries

    def _looked_up(
        self, call: str, *paths: str, repeatable: bool = False
    ) -> tuple[list[tuple[Node, str]], int]:
        self.point(f"{call} {' '.join(paths)}")
        found = [self._above(path) for path in paths]
        return found, self.point(f"... {call} {' '.join(paths)}", is_repeatable=repeatable)

    def mkdir(self, path: str, mode: int = 0) -> None:
        ((parent, name),), _ = self._looked_up("mkdir", path)
        entries = self._entries(parent, path)
        if name in entries:
            raise _error(errno.EEXIST, path)
        entries[name] = self._folder()
        if name.startswith(".writing-"):
            self._staging[entries[name].inode] = self.current

    def rmdir(self, path: str) -> None:
        ((parent, name),), _ = self._looked_up("rmdir", path)
        entries = self._entries(parent, path)
        if name not in entries:
            raise _error(errno.ENOENT, path)
        if entries[name].entries:
            raise _error(errno.ENOTEMPTY, path)
        entries.pop(name).is_removed = True

    def unlink(self, path: str) -> None:
        ((parent, name),), _ = self._looked_up("unlink", path)
        if self._entries(parent, path).pop(name, None) is None:
            raise _error(errno.ENOENT, path)

    def link(self, source: str, target: str) -> None:
        found, number = self._looked_up("link", source, target, repeatable=True)
        for _ in range(2 if self.interleaving.repeat == number else 1):
            (above, name), (beside, new) = found
            node = self._entries(above, source).get(name)
            if node is None:
                raise _error(errno.ENOENT, source)
            if new in self._entries(beside, target):
                raise _error(errno.EEXIST, target)
            self._entries(beside, target)[new] = node
            self._claims[self.current] = self._generation, new
            if self.interleaving.repeat == number:
                self.point("... repeated")

    def rename(self, source: str, target: str) -> None:
        found, number = self._looked_up("rename", source, target, repeatable=True)
        for _ in range(2 if self.interleaving.repeat == number else 1):
            (above, name), (beside, new) = found
            node, there = self._entries(above, source).get(name), self._entries(beside, target).get(new)
            if node is None:
                raise _error(errno.ENOENT, source)
            if there is not None and there.entries:
                raise _error(errno.ENOTEMPTY, target)
            if there is not None and node.entries is not None:
                there.is_removed = True
            self._entries(beside, target)[new] = self._entries(above, source).pop(name)
            if name == claims.WRITERS:
                self._generation += 1
            if above.inode in self._staging and "/.writers/" not in target:
                self._now += 1
                self.puts.append((self._now, self._staging[above.inode]))
            if self.interleaving.repeat == number:
                self.point("... repeated")

    def listdir(self, path: str) -> list[str]:
        self.point(f"listdir {path}")
        return sorted(self._entries(self._find(path), path))

    def stat(self, path: str) -> SimpleNamespace:
        self.point(f"stat {path}")
        node = self._find(path)
        return SimpleNamespace(
            st_ino=node.inode, st_mode=stat.S_IFREG if node.entries is None else stat.S_IFDIR
        )

    lstat = stat

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        if flags & _CREATE:
            ((parent, name),), _ = self._looked_up("create", path)
            entries = self._entries(parent, path)
            if name not in entries:
                self._inodes += 1
                entries[name] = Node(self._inodes)
            node = entries[name]
        else:
            self.point(f"open {path}")
            node = self._find(path)
        self._files[len(self._files)] = node, 0
        return len(self._files) - 1

    def read(self, file: int, size: int) -> bytes:
        return self._files[file][0].content

    def write(self, file: int, content: bytes) -> int:
        if self.current in self.dead:
            raise Killed
        self._files[file][0].content = content
        return len(content)

    def close(self, file: int) -> None: ...

    def fsync(self, file: int) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    # What a start knows of itself and of others.

    def sleep(self, seconds: float) -> None:
        self._clocks[self.current] += 1000.0

    def monotonic(self) -> float:
        return self._clocks[self.current]

    def token_hex(self, size: int) -> str:
        self._tokens[self.current] += 1
        return f"{self.current}{'abcdefgh'[self._tokens[self.current] - 1]}"

    def began(self, pid: int) -> int | None:
        return None if pid in self.dead else 1

    def read_state(self) -> None:
        """The start that runs reads what the run has written so far."""
        self.point("read the state")
        self._now += 1
        self.reads[self.current] = self._claims[self.current], self._now

    def two_writers(self) -> str | None:
        """A file that a start put after a later one had read, or one of the same claim; None without any."""
        for when, who in self.puts:
            for other, (claim, read) in self.reads.items():
                if other != who and read < when and claim >= self.reads[who][0]:
                    return f"start {who} put a file at {when}, after start {other} had read at {read}"
        return None


def training(files: int, *, job: str, boot: str) -> Callable[[Execution, int], None]:
    """A start that takes the lease, reads, puts so many files and ends.

    Args:
        files: that it puts.
        job: which all starts belong to, one restart after the other; empty: to none.
        boot: of its kernel, 'boot' where others see its process; empty: nobody does.
    """

    def story(world: Execution, who: int) -> None:
        mine = Owner(0, "", 0, job, who, f"n{who}", boot, "pid", who, 1, "")
        with lease_taking.take(Path(RUN), mine) as held:
            world.read_state()
            for number in range(files):
                place = held.place_for(Path("state"))
                with held.guarded():
                    world.close(world.open(os.fspath(place), _CREATE))
                held.put(place, Path(f"{RUN}/state-{number}"))

    return story


def execute(stories: list[Callable[[Execution, int], None]], interleaving: Interleaving) -> Execution:
    """Run one interleaving of the real code."""
    world = Execution(stories, interleaving)
    clock = SimpleNamespace(sleep=world.sleep, monotonic=world.monotonic)

    def beat_once(self: lease.Lease) -> None:
        file = f"{self.staging}/{claims.HEARTBEAT}"
        with self.guarded():
            world.close(world.open(file, _CREATE))

    with (
        mock.patch.multiple(lease, os=world),
        mock.patch.multiple(lease_taking, os=world, time=clock, secrets=world),
        mock.patch.multiple(lease_files, os=world, time=clock),
        mock.patch.multiple(
            claims, os=world, time=clock, _boot=lambda: "boot", _namespace=lambda: "pid", _began=world.began
        ),
        mock.patch.object(lease.Lease, "beat", beat_once),
    ):
        return world.run()


def search(
    stories: list[Callable[[Execution, int], None]], changes: int, first: Interleaving | None = None
) -> Iterator[Execution]:
    """All interleavings with at most so many changes after those of `first`, each once."""
    world = execute(stories, first or Interleaving())
    yield world
    if changes == 0:
        return
    interleaving = world.interleaving
    begin = max((point for point, _ in interleaving.changes), default=-1) + 1
    for number in range(begin, len(world.points)):
        for other in world.living[number]:
            if other != world.points[number][0]:
                changed = (*interleaving.changes, (number, other))
                further = replace(interleaving, changes=changed)
                yield from search(stories, changes - 1, further)


def with_kills(stories: list[Callable[[Execution, int], None]], changes: int) -> Iterator[Execution]:
    """All interleavings with at most so many changes, with a start killed at each of their points."""
    for world in search(stories, changes):
        for number in range(len(world.points)):
            yield execute(stories, Interleaving(world.interleaving.changes, kill=number))


def with_repeats(stories: list[Callable[[Execution, int], None]], changes: int) -> Iterator[Execution]:
    """All interleavings in which one link or rename is repeated, with at most so many changes."""
    plain = execute(stories, Interleaving())
    for number, (_, _, is_repeatable) in enumerate(plain.points):
        if is_repeatable:
            yield from search(stories, changes, Interleaving(repeat=number))


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
