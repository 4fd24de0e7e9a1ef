"""Horovod compiles for GPUs here, against NVIDIA's Python packages; nothing of it was run on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.deep


def locked(package: str) -> str:
    """The requirement of a package in the lock of the GPU image."""
    lines = (ROOT / "docker" / "gpu.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


@pytest.mark.timeout(2400)
def test_horovod_is_built_with_nccl_and_finds_it_where_it_is_installed(tmp_path: Path) -> None:
    # An environment of its own, for what NVIDIA's packages bring, that sees ours.
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env" / "lib").glob("python3*/site-packages")
    (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    install = [python, "-m", "pip", "install", "-q", "--no-deps", "--target", site]
    subprocess.run([*install, locked("tensorflow"), locked("nvidia-nccl-cu12")], check=True)
    built = subprocess.run(
        [python, ROOT / "docker" / "horovod" / "build.py", "--gpu", "--cuda", "wheel", "--nccl", "wheel"],
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "CINGULUM_CACHE": str(tmp_path / "cache"),
            "HOROVOD_BUILD_CUDA_CC_LIST": "90",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-4000:]
    wheel = built.stdout.split()[-1]
    subprocess.run([*install, wheel], check=True)
    (library,) = site.glob("horovod/tensorflow/mpi_lib*.so")
    needed = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "[libnccl.so.2]" in needed
    (searched,) = (line for line in needed.splitlines() if "RUNPATH" in line)
    assert "$ORIGIN/../../nvidia/nccl/lib" in searched
    assert "cingulum-horovod-" not in searched
    told = subprocess.run(
        [
            *(python, "-c"),
            "import horovod.tensorflow as hvd; print(hvd.__file__, bool(hvd.nccl_built()), hvd.cuda_built())",
        ],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    assert told.stdout.split()[0].startswith(str(site))
    assert told.stdout.split()[1:] == ["True", "True"]
