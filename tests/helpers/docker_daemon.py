"""A Docker daemon of the tests' own, a base image made without a registry, and images from our Dockerfile.

The daemon has its folder, socket and networks to itself: no bridge, no firewall rules, nothing that another
daemon of this host would notice. The base is what the Dockerfile asks for, made from this host's Debian
sources, plus what this host needs to reach a package index; the Dockerfile itself knows nothing of that.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import image_cache

from jobs.local import processes

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"
CERTIFICATES = Path("/usr/local/share/ca-certificates")
PIP_CONFIGURATION = Path("/etc/pip.conf")
# Debian's client: another one in front of it on PATH may lack what `docker build` needs.
CLIENT = "/usr/bin/docker"
LAYERS_KEPT = "16GB"


def missing() -> str | None:
    """Why no daemon can be started here; None: it can."""
    if os.getuid() != 0:
        return "a Docker daemon needs root"
    for program, package in (("dockerd", "docker.io"), (CLIENT, "docker.io")):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install {package})"
    return missing_for_base()


def missing_for_base() -> str | None:
    """Why no base image can be made here; None: it can."""
    if shutil.which("mmdebstrap") is None:
        return "mmdebstrap is not installed (apt-get install mmdebstrap)"
    if not _debian_sources():
        return "this is no Debian, of which a base image could be made"
    return None


class Daemon:
    """A running daemon; made by `daemon`.

    Args:
        folder: short path of everything that it keeps.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder / 'd.sock'}"

    def client(self, *arguments: str, timeout: float = 120, check: bool = True) -> str:
        """Output of `docker ARGUMENTS`; AssertionError where it fails."""
        done = subprocess.run(
            [CLIENT, *arguments],
            env={**os.environ, "DOCKER_HOST": self.host, "DOCKER_BUILDKIT": "1"},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        shown = f"docker {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0 or not check, shown[-6000:]
        return done.stdout.strip() if done.returncode == 0 else shown

    def containers(self) -> list[str]:
        """Names of all containers, running or not."""
        return self.client("ps", "--all", "--format", "{{.Names}}").split()


@contextmanager
def daemon(folder: Path, *, group: str = "docker") -> Iterator[Daemon]:
    """A daemon whose socket belongs to `group`, until the end of the context.

    Nothing of it is left then but the layers of its images, for the next one (`image_cache`).
    """
    folder.mkdir(mode=0o711, exist_ok=True)
    with image_cache.layers(otherwise=folder / "data") as data, _daemon(folder, data, group) as started:
        yield started
        # Of what earlier checkouts have left, the most recent.
        started.client("image", "prune", "--force")
        started.client("builder", "prune", "--force", f"--keep-storage={LAYERS_KEPT}", timeout=300)


@contextmanager
def _daemon(folder: Path, data: Path, group: str) -> Iterator[Daemon]:
    log = folder / "dockerd.log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [
                *("dockerd", f"--data-root={data}", f"--exec-root={folder / 'exec'}"),
                *(f"--pidfile={folder / 'pid'}", f"--host=unix://{folder / 'd.sock'}", f"--group={group}"),
                *("--storage-driver=overlay2", "--bridge=none", "--iptables=false", "--ip-forward=false"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=processes.die_with_parent(),
        )
    try:
        started = Daemon(folder)
        deadline = time.monotonic() + 60
        while "exit code" in started.client("version", "--format", "{{.Server.Version}}", check=False):
            assert process.poll() is None, f"dockerd ended:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"no dockerd after 60 s:\n{log.read_text()[-3000:]}"
            time.sleep(0.1)
        yield started
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _unmount(folder)
        _unmount(data)
        shutil.rmtree(folder)


def make_base(running: Daemon) -> str:
    """Make the image that the Dockerfile stands on, by the name that it asks for."""
    found = re.search(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE.read_text(), re.M)
    assert found, "the Dockerfile names no BASE_IMAGE"
    running.client("import", str(base_archive()), found[1], timeout=300)
    return found[1]


def base_archive() -> Path:
    """A small Debian that reaches what this host reaches, as files; made anew each month."""
    places = [*_debian_sources(), CERTIFICATES, PIP_CONFIGURATION]
    made_of = image_cache.key(_codename(), time.strftime("%Y-%m"), *places, Path(__file__))
    return image_cache.kept("base", made_of, _make_base_archive)


def _make_base_archive(archive: Path) -> None:
    hooks = []
    if CERTIFICATES.is_dir():
        hooks += [f"--customize-hook=copy-in {CERTIFICATES} {CERTIFICATES.parent}"]
        hooks += ['--customize-hook=chroot "$1" update-ca-certificates']
    if PIP_CONFIGURATION.is_file():
        hooks += [f"--customize-hook=copy-in {PIP_CONFIGURATION} /etc"]
    command = ["mmdebstrap", "--variant=minbase", "--include=ca-certificates"]
    command += ['--aptopt=Acquire::Check-Valid-Until "false"', '--aptopt=APT::Sandbox::User "root"']
    command += ["--format=tar", *hooks, _codename(), str(archive), *map(str, _debian_sources())]
    made = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert made.returncode == 0, made.stderr[-3000:]


def build(running: Daemon, context: Path, tag: str, *options: str) -> None:
    """Build an image from the unmodified Dockerfile."""
    running.client(
        *("build", "--network=host", "--file", str(context / "docker" / "Dockerfile"), "--tag", tag),
        *(*options, str(context)),
        timeout=1500,
    )


def make_context(folder: Path) -> Path:
    """A copy of the checkout with the wheel of Horovod that this machine has, so that none need be compiled.

    The image takes the wheel only if it fits; else it compiles its own (docker/wheels/README.md).
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source = ROOT / name
        if source.is_file() or source.is_symlink():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    wheel = Path(_output([sys.executable, str(ROOT / "docker" / "horovod" / "build.py")]).splitlines()[-1])
    kept = folder / "docker" / "wheels" / wheel.parent.name
    kept.mkdir(parents=True)
    shutil.copy2(wheel, kept)
    return folder


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True).stdout.strip()


def _codename() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.M)
    return found[1] if found else "stable"


def _debian_sources() -> list[Path]:
    places = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
    return [path for path in places if path.is_file() and "debian" in path.read_text()]


def _unmount(folder: Path) -> None:
    """What a daemon that was killed leaves mounted."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines if line.split()[1].startswith(f"{folder}/")]
    for point in sorted(points, reverse=True):
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", point], check=True, timeout=30)
