"""Whether a run may start in its folder, and the lease under which it does."""

from __future__ import annotations

import contextlib
import os

from trainer import atomic
from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.leases import claims, lease_taking
from trainer.leases.lease import Lease
from trainer.progress import Reporter
from trainer.ranks.watchdog import Watchdog
from trainer.run_folder import record, resuming
from trainer.run_folder.record import RunFolder


def take_lease(
    folder: RunFolder,
    config: RunConfig,
    resume: bool,
    leaving: contextlib.ExitStack,
    reporter: Reporter,
    watchdog: Watchdog,
) -> Lease:
    """Take the lease on the run folder, until `leaving` ends; what cannot be trained is refused before."""
    check_folder(folder, config, resume)
    lease = lease_taking.take(
        folder.path,
        claims.myself(os.environ),
        say=reporter.note,
        beat=watchdog.beat,
        patience_s=min(claims.SILENT_S, config.guards.timeout_s / 2),
    )
    leaving.enter_context(lease)
    leaving.enter_context(atomic.through(lease))
    check_folder(folder, config, resume, leased=True)  # now that nobody else changes it
    return lease


def check_folder(folder: RunFolder, config: RunConfig, resume: bool, *, leased: bool = False) -> None:
    """Make sure that we neither overwrite a run nor go on with another one's state.

    Args:
        folder: of the run.
        config: as given now.
        resume: whether it may be there.
        leased: whether we hold its lease already, so that nobody else does.
    """
    try:
        is_there = folder.path.exists()
        above = next(path for path in folder.path.absolute().parents if path.exists())
    except OSError as error:  # a name that is too long for the file system
        raise RunError(
            f"{error.filename}: {error.strerror}.", cure="Give other names: name=, runs=", path=error.filename
        ) from None
    if not is_there:
        if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
            raise RunError(
                f"{folder.path}: cannot be made, as {above} is no folder that you may write.",
                cure="Name another folder for the run folders: runs=...",
                path=folder.path,
            )
        return
    if folder.is_new:
        return
    if not resume:
        other = None if leased else claims.holder(folder.path)
        if other is not None:
            raise lease_taking.being_written(str(folder.path), other)
        raise RunError(
            f"{folder.path}: is there already.",
            cure="Add --resume to go on with it, or give the run another name: name=...",
            path=folder.path,
        )
    resuming.check_resumable(record.load_config(RunFolder.open(folder.path)), config)
    resuming.check_not_lost(folder, config)
