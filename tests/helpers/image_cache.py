"""What tests of containers need minutes to make, kept between runs by what it was made of.

In ``$CINGULUM_CACHE/images`` (default ``~/.cache/cingulum/images``). A machine without it makes everything
anew, and so does a Docker daemon while another one has the layers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Of each kind, what so many checkouts and branches use in turn.
KEPT = 3


def place() -> Path:
    """The folder of all images, made if need be."""
    named = os.environ.get("CINGULUM_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "cingulum"
    folder = base.expanduser() / "images"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def key(*parts: Path | str) -> str:
    """Hash of texts, and of files with all that is in folders."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            digest.update(f"{part}\0".encode())
            continue
        for path in sorted([part, *part.rglob("*")]):
            if path.is_file():
                digest.update(f"{path.relative_to(part)}\0{path.stat().st_size}\0".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def kept(kind: str, made_of: str, make: Callable[[Path], None]) -> Path:
    """A file or folder of this kind, made of just that; where there is none, `make(path)` makes it."""
    final = place() / f"{kind}-{made_of}"
    with (place() / f"{kind}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not final.exists():
            partial = place() / f"{kind}-{made_of}.partial"
            _remove(partial)
            make(partial)
            partial.rename(final)
        os.utime(final)
        newest = sorted(place().glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in newest[KEPT:]:
            _remove(old)
    return final


@contextmanager
def layers(otherwise: Path) -> Iterator[Path]:
    """A folder for a Docker daemon, with the layers of earlier builds; `otherwise`, where another has it.

    Only who leaves it in order, without an exception, leaves it to others.
    """
    folder, whole = place() / "docker", place() / "docker.whole"
    with (place() / "docker.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield otherwise
            return
        if not whole.exists():
            _remove(folder)
        whole.unlink(missing_ok=True)
        yield folder
        whole.touch()


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
