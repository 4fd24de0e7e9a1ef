"""One tree of errors. Each message says what is wrong, where, and how to fix it; each class has a code, and
its errors name the file, the key and the rank that they are about, for programs. docs/reference/errors.md is
made from this file.

CingulumError                 exit code 1: something failed while we worked
├── InputError                exit code 2: what we were given cannot be used
│   ├── ConfigError           a run configuration: unknown key, wrong type, impossible value
│   ├── ImageError            one image file: unreadable, empty, not three-dimensional, ...
│   ├── CohortError           a set of images: no labels, duplicate subjects, nothing found
│   │   └── LeakError         two splits share a subject or an image
│   ├── ShardError            a shard set: not one, half written, of a newer format
│   │   └── DamagedShardError a file of it is missing, cut short, or not what was written
│   ├── ScratchError          a host's local scratch: not ours, full, missing
│   ├── ModelError            a network: unknown name, input of another size
│   ├── RunError              a run folder: not one, nothing to resume, made by another configuration
│   ├── LaunchError           ranks that were started so that they cannot see each other
│   └── JobError              a job specification, a site profile or a job id that cannot be used
├── TrainingError             the numbers went wrong
│   ├── NotFiniteError        loss or weights became NaN or infinite
│   └── DivergenceError       ranks no longer hold the same weights
├── FoldError                 the exit code of the training that failed within a cross-validation
├── LauncherError             what starts jobs could not: Slurm, ssh, docker or apptainer said no
├── StoreError                the store of jobs could not be read or written
│   └── DamagedStoreError     its file is no whole database any more
├── WorldError                ranks could not work together: time-out, a rank lost, no MPI
├── Fenced                    exit code 76: another start writes this run folder
└── Stopped                   exit code 75: asked to stop, state saved, run again with --resume
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from trainer import byte_sizes


class CingulumError(Exception):
    """Base of all our errors: something failed while we worked.

    Args:
        message: what is wrong and where, in one or two sentences.
        cure: what to do about it, as a sentence or a command; shown on a line of its own.
        path: the file or folder that is wrong.
        key: the key of a configuration that is wrong, with dots.
        rank: that failed.
    """

    exit_code = 1
    code = "FAILED"

    def __init_subclass__(cls, *, code: str = "", **rest: object) -> None:
        super().__init_subclass__(**rest)
        cls.code = code or cls.code

    def __init__(
        self,
        message: str,
        *,
        cure: str | None = None,
        path: object = None,
        key: str | None = None,
        rank: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cure = cure
        self.path = path
        self.key = key
        self.rank = rank

    @property
    def objects(self) -> dict[str, str | int]:
        """Return what the error is about, as far as it is known: `path`, `key`, `rank`."""
        path = None if self.path is None else str(self.path)
        found = {"path": path, "key": self.key, "rank": self.rank}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        return f"{self.message}\n  {self.cure}" if self.cure else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Worker processes send errors home; all but the message is keyword-only, so say how to rebuild.
        return (rebuilt, (type(self), self.message, self.cure, self.objects))


def typed(word: object) -> str:
    """Return a word of a command that a message shows, quoted for a shell where it needs it."""
    return shlex.quote(str(word))


# mpirun prints last, and calls every exit code but 0 an abort.
_OF_MPIRUN = "If mpirun reports an aborted job now, it means this stop (exit code 75): nothing is lost."


def as_text(error: CingulumError) -> str:
    """Format the end of a command: a stop is information, all else an error."""
    if not isinstance(error, Stopped):
        return f"error: {error}{_looked_for(error)}"
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return str(error)
    return str(Stopped(error.message, cure="\n  ".join(filter(None, (_OF_MPIRUN, error.cure)))))


def _looked_for(error: CingulumError) -> str:
    """Where a relative path was looked for, if it is not there: the folder is often the mistake."""
    if error.path is None or "there is no such" not in error.message:
        return ""
    path = Path(str(error.path))
    return "" if path.is_absolute() or os.path.lexists(path) else f"\n  Looked for: {path.absolute()}"


# Errors of the file system that another path fixes.
_UNUSABLE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


# A full disk, a quota that is used up, a file larger than this process may write (`ulimit -f`).
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class DiskFull(OSError):
    """There is no space for a file.

    Args:
        error: what the system said.
        path: of the file.
        needed: bytes that it takes, as far as it is known.
    """

    def __init__(self, error: OSError, path: Path, needed: int | None = None) -> None:
        super().__init__(error.errno, error.strerror or str(error), str(path))
        self.needed = needed


def of_files(error: OSError) -> CingulumError:
    """Convert an error of the file system: an InputError where another path fixes it, such as a file where a
    folder is wanted, and no InputError for a full disk.
    """
    if error.errno in NO_SPACE:
        return CingulumError(
            f"{error.filename or 'a file'}: {no_space(error)}.",
            cure="Free space there, then run the same command again (cingulum train: with --resume).",
            path=error.filename,
        )
    message = f"{error.filename or 'a file'}: {error.strerror or error}."
    if isinstance(error, _UNUSABLE):
        cure = "Give another path, or one that you may read and write."
        return InputError(message, cure=cure, path=error.filename)
    return CingulumError(message, path=error.filename)


def no_space(error: OSError, needed: int | None = None) -> str:
    """Describe why a file cannot grow, with the bytes that are needed, where they are known, and those that
    are free.

    Args:
        error: with one of `NO_SPACE`, and the name of the file.
        needed: bytes, where `error` does not tell them.
    """
    needed = getattr(error, "needed", None) or needed
    requirement = None if needed is None else f"{byte_sizes.as_text(needed)} are needed"
    free = free_bytes(error)
    if free is None:
        return "; ".join(filter(None, (error.strerror or str(error), requirement)))
    left = f"{byte_sizes.as_text(free)} are free"
    return f"no space is left on its disk: {', '.join(filter(None, (requirement, left)))}"


def free_bytes(error: OSError) -> int | None:
    """Return the bytes free where a file could not be written; None where space is not the cause."""
    if error.errno != errno.ENOSPC or not error.filename:
        return None
    place = Path(os.fsdecode(error.filename)).absolute()
    there = next(folder for folder in (place, *place.parents) if folder.is_dir())
    return shutil.disk_usage(there).free


def rebuilt(
    kind: type[CingulumError], message: str, cure: str | None, objects: Mapping[str, object]
) -> CingulumError:
    """Rebuild an error that came from another process."""
    error = kind(message, cure=cure)
    vars(error).update(objects)
    return error


class InputError(CingulumError, code="INPUT_UNUSABLE"):
    """The input cannot be used; nothing was changed."""

    exit_code = 2


class ConfigError(InputError, code="CONFIG_INVALID"):
    """A run configuration with an unknown key, a wrong type or an impossible value."""


class ImageError(InputError, code="IMAGE_UNUSABLE"):
    """One image file that cannot be used."""


class CohortError(InputError, code="COHORT_UNUSABLE"):
    """A set of images that cannot be used as a whole."""


class LeakError(CohortError, code="SPLITS_LEAK"):
    """Two splits share a subject or an image, so that the test is invalid."""


class ShardError(InputError, code="SHARDS_UNUSABLE"):
    """A folder that is not a whole, undamaged shard set of a known format."""


class DamagedShardError(ShardError, code="SHARD_DAMAGED"):
    """A file of a shard set that is missing, cut short, or changed since it was written."""


class ScratchError(InputError, code="SCRATCH_UNUSABLE"):
    """A host's local scratch that cannot be used: missing, open to others, or too full."""


class ModelError(InputError, code="NETWORK_UNUSABLE"):
    """A network that is unknown or does not fit the data."""


class RunError(InputError, code="RUN_UNUSABLE"):
    """A run folder that cannot be used as asked."""


class JobError(InputError, code="JOB_UNUSABLE"):
    """A job specification, a site profile or a job id that cannot be used."""


class LaunchError(InputError, code="RANKS_NOT_JOINED"):
    """Ranks that were started in a way in which they cannot see each other: each would train alone."""


class TrainingError(CingulumError, code="TRAINING_FAILED"):
    """The numbers went wrong during training."""


class NotFiniteError(TrainingError, code="NOT_FINITE"):
    """The loss or a weight became NaN or infinite."""


class DivergenceError(TrainingError, code="RANKS_DIVERGED"):
    """Ranks no longer hold the same weights."""


class FoldError(CingulumError, code="FOLD_FAILED"):
    """The training of one fold failed.

    Args:
        message: which fold, and what it said.
        exit_code: of its training.
        cure: what to do about it.
    """

    def __init__(self, message: str, *, exit_code: int = 1, cure: str | None = None) -> None:
        super().__init__(message, cure=cure)
        self.exit_code = exit_code


class LauncherError(CingulumError, code="LAUNCHER_FAILED"):
    """A launcher failed: Slurm, ssh, docker or apptainer refused, or did not answer in time."""


class StoreError(CingulumError, code="STORE_FAILED"):
    """The store of jobs could not be read or written: the database does not answer, is full, or is newer."""


class DamagedStoreError(StoreError, code="STORE_DAMAGED"):
    """The file of the store of jobs is damaged."""


class WorldError(CingulumError, code="WORLD_FAILED"):
    """Ranks could not work together."""


FENCED = 76


class Fenced(CingulumError, code="FENCED"):
    """Another start has taken the run folder over: neither a failure nor a reason to start again."""

    exit_code = FENCED


class Stopped(CingulumError, code="STOPPED"):
    """Asked to stop: the state is saved and the run can be resumed (exit code 75, EX_TEMPFAIL)."""

    exit_code = 75
