"""An Apptainer image built from our unmodified definition file by an ordinary user, and that user.

The user is made for the tests and is gone after them: root's Apptainer is another program in many ways, and
clusters have none. The base is made from this host's Debian sources and handed over as `docker save` would.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker_daemon
import image_cache

from jobs.local import processes

# Of our code, what is compiled while the image is built, beside its source, and by nothing else.
COMPILED = "trainer/ranks/exchange_op.cc"


def missing() -> str | None:
    """Why no image can be built and run here; None: it can."""
    if os.getuid() != 0:
        return "to make a user for them, the tests need root"
    if program() is None:
        return "apptainer is not installed (docker/test-tools/install-apptainer.sh)"
    if why := docker_daemon.missing_for_base():
        return why
    return None


def program() -> str | None:
    """Path of the Apptainer to test with."""
    return shutil.which(os.environ.get("CINGULUM_APPTAINER", "apptainer"))


@dataclass(frozen=True)
class User:
    """A user of this host, with a home, and a folder in /tmp for the image and for what tests make."""

    name: str
    uid: int
    home: Path
    folder: Path

    @property
    def image(self) -> Path:
        """Where `build` puts the image: a sandbox, since not every CI can mount a .sif file."""
        return self.folder / "image"

    @property
    def python(self) -> str:
        """The image's environment, seen from outside: a Python with cingulum that is not root's."""
        return str(self.image / "opt" / "cingulum" / "bin" / "python")

    @property
    def mpirun(self) -> str:
        """The mpirun of the same environment, as a program of the host."""
        return str(self.image / "opt" / "cingulum" / "bin" / "mpirun")

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Run a program as this user, in its folder, with little of root's environment."""
        path = Path(program() or "").parent
        own = {
            "PATH": f"{path}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "CINGULUM_APPTAINER": str(program()),
            "APPTAINER_TMPDIR": str(self.folder),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        settings: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        return subprocess.Popen(
            argv,
            cwd=self.folder,
            env={**own, **(environment or {})},
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            preexec_fn=processes.die_with_parent(),
            **settings,
        )

    def run(
        self, *argv: str, environment: Mapping[str, str] | None = None, timeout: float = 120, code: int = 0
    ) -> str:
        """What such a program prints; AssertionError where it ends otherwise than with `code`."""
        process = self.start(argv, environment)
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.terminate()
            said, _ = process.communicate(timeout=30)
            raise AssertionError(f"{argv} did not end in {timeout:g} s:\n{said[-5000:]}") from None
        assert process.returncode == code, f"{argv}: exit code {process.returncode}\n{said[-5000:]}"
        return said

    def owns(self, folder: Path) -> None:
        """Give it a folder and all that is in it."""
        for path in (folder, *folder.rglob("*")):
            os.chown(path, self.uid, self.uid, follow_symlinks=False)


@contextmanager
def user(kind: str = "user") -> Iterator[User]:
    """A new user, with ids to build images with; nothing of it is left after the context."""
    name = f"cingulum-{kind}-{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="cingulum-apptainer-"))
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", name], check=True, timeout=60)
    try:
        entry = pwd.getpwnam(name)
        made = User(name, entry.pw_uid, Path(entry.pw_dir), folder)
        made.owns(folder)
        yield made
    finally:
        # A test that was interrupted has left programs, which hold user and folder.
        deadline = time.monotonic() + 10
        while subprocess.run(["pkill", "-KILL", "-U", name]).returncode == 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        # What fakeroot made belongs to other ids; we are root.
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(["userdel", "--remove", name], check=True, timeout=60, stderr=subprocess.DEVNULL)


def build(someone: User) -> None:
    """Give the user an image with the code of this checkout.

    All else in it is kept by what it was made of: the definition file, the locks, Horovod's wheel, the base.
    Where there is none yet, it is built.
    """
    context = docker_daemon.make_context(someone.folder / "checkout")

    def make(folder: Path) -> None:
        build_anew(someone, context, "--notest")  # the first of the tests runs the image's own
        subprocess.run(["cp", "--archive", str(someone.image), str(folder)], check=True, timeout=600)

    given = ("docker", "requirements.lock", "setup.cfg", "setup.py", "pyproject.toml", COMPILED)
    programs = subprocess.run(
        [str(program()), "--version"], capture_output=True, text=True, check=True
    ).stdout
    base = docker_daemon.base_archive().name
    made_of = image_cache.key(programs, base, sys.version, *(context / name for name in given))
    ready = image_cache.kept("apptainer", made_of, make)
    if not someone.image.exists():
        subprocess.run(["cp", "--archive", str(ready), str(someone.image)], check=True, timeout=600)
        _put_code(someone, context)
    shutil.rmtree(context)


def _put_code(someone: User, context: Path) -> None:
    """The packages of this checkout take the place of those that an earlier one had."""
    (packages,) = someone.image.glob("opt/cingulum/lib/python3*/site-packages")
    fresh = someone.folder / "fresh"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(fresh), str(context)], check=True, timeout=300)
    for path in (packages / COMPILED).parent.glob("exchange_op-*.so"):
        shutil.move(path, (fresh / COMPILED).parent)
    for name in ("cingulum", "trainer", "jobs"):
        shutil.rmtree(packages / name)
        (fresh / name).rename(packages / name)
    shutil.rmtree(fresh)
    someone.owns(someone.image)


def build_anew(someone: User, context: Path, *options: str) -> None:
    """Build the image from the unmodified definition file (minutes), with options of `apptainer build`."""
    base = _as_docker_saves(docker_daemon.base_archive(), someone.folder / "base.tar")
    someone.owns(someone.folder)
    someone.run(
        *("env", "-C", str(context), str(program()), "build", "--sandbox", *options),
        *("--build-arg", "BOOTSTRAP=docker-archive"),
        *("--build-arg", f"BUILD_BASE={base}", "--build-arg", f"BASE={base}"),
        *(str(someone.image), "docker/apptainer.def"),
        timeout=1700,
    )
    base.unlink()


def _as_docker_saves(layer: Path, archive: Path) -> Path:
    """An archive as of `docker save`, with one layer (github.com/moby/docker-image-spec)."""
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": ["base:latest"], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        tar.add(layer, "layer.tar")
        for name, content in (("config.json", config), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return archive
