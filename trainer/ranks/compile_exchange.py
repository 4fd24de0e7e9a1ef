"""Compile the operation that moves tensors between ranks: `python -m trainer.ranks.compile_exchange`.

It needs a C++ compiler and the MPI that mpi4py and Horovod use. Without it, runs whose network is divided
over ranks take the slower way through Python (`exchange.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

_SOURCE = Path(__file__).with_name("exchange_op.cc")


def main() -> int:
    """Compile it beside its source; returns the exit code, and writes to standard error what is wrong."""
    from trainer.quiet import import_tensorflow

    tf = import_tensorflow()
    from trainer.ranks.exchange import file

    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    wrapper = shutil.which("mpicxx", path=places)
    if wrapper is None:
        sys.stderr.write("error: mpicxx was not found.\n  Load this cluster's MPI module, then try again.\n")
        return 2
    environment = {**os.environ, "OPAL_PREFIX": os.environ.get("OPAL_PREFIX", sys.prefix)}
    beside = file().with_suffix(f".{os.getpid()}")
    flags = ["-O2", "-shared", "-fPIC", "-w", *tf.sysconfig.get_compile_flags()]
    line = [wrapper, *flags, str(_SOURCE), "-o", str(beside), *tf.sysconfig.get_link_flags()]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[:10])
        sys.stderr.write(f"error: {_SOURCE.name} could not be compiled.\n{said}\n")
        beside.unlink(missing_ok=True)
        return 1
    beside.replace(file())
    return 0


if __name__ == "__main__":
    sys.exit(main())
