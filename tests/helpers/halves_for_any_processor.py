"""The compiled cast as processors have it that cannot convert float16 by one instruction."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

from trainer.data.shards import halves

SOURCES = Path(halves.__file__).parent


def compiled(program: Path, *flags: str) -> None:
    """Compile the cast into a program or a library; a failure shows what the compiler said."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "a C compiler is needed to build Cingulum, and to test it"
    sources = [SOURCES / "halves.c", SOURCES / "blosc_halves.c"]
    subprocess.run([compiler, *flags, "-o", program, *sources], check=True)


@functools.cache
def library() -> ctypes.CDLL:
    """Made once per process."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "halves.so"
        compiled(made, "-O3", "-shared", "-fPIC", "-DWITHOUT_INSTRUCTION")
        return halves.opened(made)
