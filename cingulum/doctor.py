"""Checks of an installation: what works, what does not, and what to do about it.

Each check is a function that returns a `CheckResult`; none of them raises for a sick installation,
since finding that is their purpose.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from trainer import processor
from trainer.errors import WorldError

State = Literal["ok", "note", "bad"]

PROBE_TIMEOUT_S = 120.0
ROOM_GB = 2.0
# Open MPI starts nothing for root, as in many containers, without both.
ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's list: `bad` must be fixed, `note` is information."""

    name: str
    state: State
    said: str
    cure: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        """Return the finding for `--json`."""
        return asdict(self)


def examine() -> Iterator[CheckResult]:
    """Run every check, the quick ones first; yield findings as they come."""
    quick: tuple[Callable[[], CheckResult], ...] = (
        check_python,
        check_packages,
        check_processor,
        check_compiled_cast,
        check_horovod_wakes,
        check_mpirun,
        check_memory,
        check_disk,
    )
    for check in quick:
        yield check()
    yield check_gpu()
    yield from check_two_ranks()


def check_python() -> CheckResult:
    """Check that TensorFlow supports this Python."""
    here = sys.version_info
    interpreter = f"{here.major}.{here.minor}.{here.micro} ({sys.prefix})"
    if (3, 10) <= here[:2] <= (3, 13):
        return CheckResult("Python", "ok", interpreter)
    return CheckResult(
        "Python",
        "bad",
        interpreter,
        "Make the environment with Python 3.10 to 3.13: make setup PYTHON=python3.11",
    )


def check_packages() -> CheckResult:
    """Check that everything setup.cfg requires is installed, in a version it allows."""
    from packaging.requirements import Requirement

    wrong, shown = [], []
    for line in requires("cingulum") or []:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        release = _version(requirement.name)
        if release is None or not requirement.specifier.contains(release, prereleases=True):
            wrong.append(f"{requirement} ({release or 'missing'})")
    tensorflow = _version("tensorflow") or _version("tensorflow-cpu")
    for name, release in (
        ("tensorflow", tensorflow),
        ("keras", _version("keras")),
        ("horovod", _version("horovod")),
    ):
        if release is None:
            wrong.append(f"{name} (missing)")
        shown.append(f"{name} {release}")
    if wrong:
        return CheckResult(
            "packages", "bad", ", ".join(wrong), "make setup, or: pip install -r requirements.lock"
        )
    return CheckResult("packages", "ok", ", ".join(shown))


def check_processor() -> CheckResult:
    """Check that TensorFlow computes with oneDNN where that is faster."""
    cpu = processor.here()
    switch = f"{processor.ONEDNN}={os.environ.get(processor.ONEDNN)}"
    if cpu.onednn is False and cpu.instructions:
        said = f"{cpu}, by {switch}: 3D convolutions take several times as long"
        return CheckResult("processor", "note", said, f"unset {processor.ONEDNN}, or set it to 1")
    return CheckResult("processor", "ok", str(cpu))


def check_compiled_cast() -> CheckResult:
    """Check for the loader's compiled part, without which it is slower."""
    from trainer.data.shards import halves

    if halves.LIBRARY is not None:
        return CheckResult("compiled cast", "ok", "float16 is read at full speed")
    said = "missing: the loader needs about a fifth more processor time per volume of float16"
    return CheckResult("compiled cast", "note", said, "Install a C compiler, then: pip install -e .")


def check_horovod_wakes() -> CheckResult:
    """Check whether Horovod is the build of docker/horovod/build.py or the release."""
    where = find_spec("horovod")
    places = where.submodule_search_locations if where else None
    libraries = [path for place in places or () for path in Path(place).glob("tensorflow/mpi_lib*.so")]
    if any(b"HOROVOD_IDLE_CYCLE_TIME" in path.read_bytes() for path in libraries):
        return CheckResult("Horovod's thread", "ok", "sleeps until there is something to reduce")
    said = "asks the other ranks every millisecond, which takes a few percent of a core"
    cure = "Install the wheel that docker/horovod/build.py makes: docs/decisions/0003-gradient-reduction.md"
    return CheckResult("Horovod's thread", "note", said, cure)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_mpirun() -> CheckResult:
    """Check for an mpirun on PATH or beside this Python."""
    from jobs.local import mpirun

    try:
        path = mpirun.find()
        ran = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired, WorldError) as error:
        return CheckResult(
            "mpirun", "bad", str(error), "make setup installs Open MPI; on a cluster: module load openmpi"
        )
    if ran.returncode != 0 or not ran.stdout.strip():
        why = (ran.stderr.strip().splitlines() or ["nothing printed"])[-1]
        cure = "Run it by hand; on a cluster: module load openmpi"
        return CheckResult("mpirun", "bad", f"{path} --version: exit code {ran.returncode}, {why}", cure)
    program = f"{ran.stdout.splitlines()[0].strip()} ({path})"
    if os.geteuid() == 0 and not all(os.environ.get(name) == "1" for name in ROOT):
        # We set them for what we start; `mpirun` typed by hand refuses.
        cure = f"export {' '.join(f'{name}=1' for name in ROOT)}"
        return CheckResult(
            "mpirun", "note", f"{program}; as root it starts nothing without these variables", cure
        )
    return CheckResult("mpirun", "ok", program)


def check_memory() -> CheckResult:
    """Check memory and cores of this host."""
    import psutil

    free = psutil.virtual_memory().available / 2**30
    cores = len(os.sched_getaffinity(0))
    room = f"{free:.1f} GiB available, {cores} core{'s' if cores > 1 else ''}"
    if free < ROOM_GB:
        return CheckResult(
            "memory",
            "bad",
            room,
            "A rank needs about 1 GiB before its network: free memory, or ask for more.",
        )
    return CheckResult("memory", "ok", room)


def check_disk() -> CheckResult:
    """Check free space where runs are written, and in /dev/shm, which Open MPI uses."""
    here = shutil.disk_usage(Path.cwd()).free / 2**30
    shm = shutil.disk_usage("/dev/shm").free / 2**20  # noqa: S108
    room = f"{here:.1f} GiB free here, {shm:.0f} MiB in /dev/shm"
    if here < ROOM_GB:
        return CheckResult(
            "disk", "bad", room, "Checkpoints need room: free some, or set `runs` to another disk."
        )
    if shm < 64:
        return CheckResult("disk", "bad", room, "Open MPI needs shared memory; docker run --shm-size=1g")
    return CheckResult("disk", "ok", room)


def check_gpu() -> CheckResult:
    """Check the GPUs of this host, and that Horovod was built to use them (not run on a GPU)."""
    if shutil.which("nvidia-smi") is None:
        return CheckResult("GPU", "note", "none on this host: training runs on the CPU")
    try:
        listed = _listed_gpus()
    except (subprocess.SubprocessError, OSError) as error:
        return CheckResult(
            "GPU",
            "bad",
            f"nvidia-smi fails: {error}",
            "Repair the driver, or start the container with --gpus all / --nv.",
        )
    code = (
        "import json, tensorflow, horovod.tensorflow as h;"
        "print(json.dumps([len(tensorflow.config.list_physical_devices('GPU')), bool(h.nccl_built())]))"
    )
    ran = _python(["-c", code])
    try:
        seen, nccl = json.loads(ran.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return CheckResult(
            "GPU", "bad", f"TensorFlow does not start: {ran.stderr[-300:]}", "pip install -e '.[gpu]'"
        )
    built = "built in" if nccl else "not built in"
    gpus = f"{' / '.join(listed)}; TensorFlow sees {seen}, NCCL {built}"
    if seen and nccl:
        return CheckResult("GPU", "ok", gpus)
    return CheckResult(
        "GPU", "bad", gpus, "pip install -e '.[gpu]', then: python docker/horovod/build.py --gpu"
    )


def _listed_gpus() -> list[str]:
    """Return name, memory, driver and fast precisions of each GPU, as nvidia-smi has them.

    Raises:
        SubprocessError: it fails.
        OSError: it cannot be run.
    """

    def asked(*fields: str) -> list[str]:
        line = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=30, check=True)
        return ran.stdout.strip().splitlines()

    columns = ("name", "memory.total", "driver_version")
    try:
        rows = [row.rpartition(", ") for row in asked(*columns, "compute_cap")]
    except subprocess.CalledProcessError:  # a driver that does not know this field
        return asked(*columns)
    return [f"{row}, {fast_precisions(capability)}" for row, _, capability in rows]


def fast_precisions(capability: str) -> str:
    """Return which precisions a GPU's tensor cores compute, by its compute capability such as '8.0'.

    NVIDIA, CUDA C++ Programming Guide, table of arithmetic by compute capability: float16 from 7.0 on,
    bfloat16 and TF32 from 8.0 on.
    """
    try:
        major = int(capability.partition(".")[0])
    except ValueError:
        return f"compute capability {capability}"
    if major >= 8:
        return "tensor cores for float32 (as TF32), mixed_bfloat16 and mixed_float16"
    if major == 7:
        return "tensor cores for mixed_float16 only"
    return "no tensor cores: float32"


def _python(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
    )


def check_two_ranks() -> Iterator[CheckResult]:
    """Start two ranks for real: an all-reduce, its speed, and the Keras trap (`trainer.doctor_probe`)."""
    from jobs.local import mpirun

    try:
        command, additions = mpirun.command(2, [sys.executable, "-m", "trainer.doctor_probe"])
    except WorldError as error:
        yield CheckResult("two ranks", "bad", error.message, error.cure)
        return
    env = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="2", **additions)
    try:
        ran = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, env=env, check=False
        )
    except subprocess.TimeoutExpired:
        cure = "Is a firewall between the ranks? Try: mpirun --mca btl self,vader -np 2 hostname"
        yield CheckResult("two ranks", "bad", f"no answer in {PROBE_TIMEOUT_S:.0f} s", cure)
        return
    results = [line.removeprefix("probe ") for line in ran.stdout.splitlines() if line.startswith("probe ")]
    if ran.returncode != 0 or not results:
        tail = " | ".join(line.strip() for line in ran.stderr.splitlines() if line.strip())[-500:]
        yield CheckResult(
            "two ranks", "bad", f"exit code {ran.returncode}: {tail}", f"By hand: {' '.join(command)}"
        )
        return
    yield from _judge_probe(json.loads(results[0]))


def _judge_probe(probe: dict[str, Any]) -> Iterator[CheckResult]:
    """Turn what two ranks measured into findings."""
    if probe["sum"] == 3.0:
        took = f"all-reduce of {probe['megabytes']} MB in {1000 * probe['seconds']:.0f} ms"
        yield CheckResult("two ranks", "ok", f"{took}, algorithm: {probe['algorithm']}")
    else:
        cure = "Rebuild Horovod: delete its cached wheel (cingulum's cache folder), then make setup"
        yield CheckResult("two ranks", "bad", f"1 + 2 over two ranks gave {probe['sum']}", cure)
    yield _of_exchange(probe)
    if probe["ours_differs"] == 0.0:
        yield CheckResult("optimizer", "ok", "trainer.DistributedOptimizer keeps two ranks' weights equal")
    else:
        message = f"weights of two ranks differ by {probe['ours_differs']:.3g} after a step"
        cure = "A defect of ours: please report it with the output of cingulum doctor --json"
        yield CheckResult("optimizer", "bad", message, cure)
    if probe["horovods_differs"] > 0:
        message = "Horovod's own optimizer reduces nothing on Keras 3: use trainer.DistributedOptimizer"
    else:
        message = "Horovod's own optimizer reduces here: a newer Horovod than we know"
    yield CheckResult("Keras trap", "note", message)


def _of_exchange(probe: dict[str, Any]) -> CheckResult:
    swap = f"two ranks swap {probe['megabytes']} MB in {1000 * probe['swap_seconds']:.0f} ms"
    if probe["exchange"] == "compiled":
        return CheckResult("exchange", "ok", f"{swap}, by the compiled operation")
    said = f"the operation that moves tensors between ranks {probe['exchange']}"
    cure = "make setup, or: python -m trainer.ranks.compile_exchange"
    return CheckResult(
        "exchange", "note", f"{said}: {swap}, through Python; divided networks train more slowly", cure
    )
