"""Take the lease on a run folder: wait for its owner, claim the next number, fence off all earlier starts.

As in trainer/leases/lease.py, `os.` calls on names as text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from trainer.errors import Fenced, RunError
from trainer.leases import claims, lease_files
from trainer.leases.claims import Owner
from trainer.leases.lease import Lease
from trainer.transient import TransientErrors

# A start of the same job before this one has so long to end by itself.
EARLIER_S = 20.0
_LOOK_S = 0.2


def take(
    folder: Path,
    claimant: Owner,
    *,
    after: Lease | None = None,
    say: Callable[[str], None] = lambda text: None,
    beat: Callable[[str], None] = lambda text: None,
    patience_s: float = claims.SILENT_S,
) -> Lease:
    """Take the lease on a run folder, which is made where it is missing. Nothing may be read before.

    Args:
        folder: of the run.
        claimant: this process, as `claims.myself` returns it.
        after: the lease that this process holds for its start before; it ends when the new one begins, so
            that no other start comes between.
        say: shows people which process is waited for.
        beat: is called while we wait.
        patience_s: seconds without a heartbeat after which an owner that cannot be seen counts as dead.

    Raises:
        RunError: a process that lives writes this run, or a claim is damaged.
        Fenced: a later start of this very job writes it.
        OSError: the folder cannot be written.
    """
    place = os.fspath(folder)

    def wait_for(other: Owner) -> None:
        if after is None or other != after.owner:
            _wait_for(place, other, claimant, say, beat, patience_s)

    for left in (4, 3, 2, 1, 0):
        made: list[str] = []
        try:
            lease_files.make(place, made)
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{place}/{claims.WRITERS}")
            owner = _claim(place, claimant, wait_for)
        except OSError as error:
            if error.errno in lease_files.GONE and left:
                continue  # a start that had put nothing has removed the folder under our hands
            lease_files.unmake(place, made)
            raise
        except BaseException:
            lease_files.unmake(place, made)
            raise
        lease = Lease(place, owner, made)
        try:
            if _fence_off_earlier(lease):
                lease.beat()
                if after is not None:
                    after.release()
                return lease
        except BaseException:
            lease.release()
            raise
        lease.release()
    raise RunError(
        f"{place}: keeps being removed.",
        cure="Check for other processes that start a run of this name.",
        path=place,
    )


def _claim(folder: str, claimant: Owner, wait_for: Callable[[Owner], None]) -> Owner:
    """Claim the next number, as soon as the owner of the last one may be passed over.

    Raises:
        FileNotFoundError: the folder is gone.
    """
    while True:
        before = claims.last(folder)
        if before is not None and claims.has_staging(folder, before):
            wait_for(before)
        token = secrets.token_hex(8)
        staging, aside = claims.staging_of(folder, token), f"{folder}/{claims.WRITERS}/.{token}"
        os.mkdir(staging)
        owner = dataclasses.replace(
            claimant, start=before.start + 1 if before else 1, token=token, inode=os.stat(staging).st_ino
        )
        claimed = False
        try:
            lease_files.write(aside, json.dumps(dataclasses.asdict(owner)).encode() + b"\n")
            claimed = lease_files.link(aside, claims.path_of(folder, owner.start))
        finally:
            with lease_files.or_gone():
                os.unlink(aside)
            if not claimed:
                with lease_files.or_gone():
                    os.rmdir(staging)
        if claimed:
            return owner


def _wait_for(
    folder: str,
    other: Owner,
    claimant: Owner,
    say: Callable[[str], None],
    beat: Callable[[str], None],
    patience_s: float,
) -> None:
    """Return when the owner has ended, is dead, or is an earlier start of our job that had time to end."""
    if other.is_gone():
        return
    if claimant.precedes(other):
        raise Fenced(
            f"{folder}: another process writes this run: {other}.",
            cure="The other process is a later start of the same job. This start changes nothing.",
            path=folder,
        )
    alive = other.is_gone() is False
    ours = other.precedes(claimant)
    if not alive or ours:
        say(f"{folder}: waiting for {other}, which writes this run, to end or to stop responding")
    began = time.monotonic()
    unread = TransientErrors(f"{claims.staging_of(folder, other.token)}: could not be read", say=say)
    beats: set[bytes | None] = set()
    with unread.survived():
        beats.add(claims.beat_of(folder, other))
    while True:
        with unread.survived():
            if not claims.has_staging(folder, other):
                return
            beats.add(claims.beat_of(folder, other))
        if other.is_gone():
            return
        alive = alive or len(beats) > 1
        if alive and not ours:
            raise being_written(folder, other)
        waited = time.monotonic() - began
        if waited > (min(EARLIER_S, patience_s) if ours else patience_s):
            if unread.in_a_row:
                claims.beat_of(folder, other)  # to be unable to read is no silence: raises what keeps us
            return
        beat(f"waiting for {other} to end")
        time.sleep(_LOOK_S)


def being_written(folder: str, other: Owner) -> RunError:
    """Return the error for a run that another process is writing."""
    return RunError(
        f"{folder}: another process writes this run: {other}.",
        cure="The run is being trained: wait for it, or stop it first. A new run needs another "
        "name: name=...",
        path=folder,
    )


def _fence_off_earlier(lease: Lease) -> bool:
    """Fence off all earlier starts; False where one that had put nothing took our claim away too."""
    folder, start = lease.folder, lease.start
    writers = f"{folder}/{claims.WRITERS}"
    try:
        names = os.listdir(writers)
    except FileNotFoundError:
        return False
    ready = [int(name[:-6]) for name in names if name.endswith(".reads")]
    for number in range(max((n for n in ready if n < start), default=1), start):
        earlier = claims.read(folder, number)
        if earlier is None:
            return False
        lease_files.fence_off(folder, earlier)
    # Only now: as long as an earlier start is not fenced off, it may still take the claims away.
    if claims.read(folder, start) != lease.owner:
        return False
    marker = lease.place_for(Path("reads"))
    with lease.guarded():
        lease_files.write(os.fspath(marker), b"")
    lease.put(marker, Path(f"{writers}/{start:08d}.reads"))
    return True
