"""One testbed: bring it up, use it, break it, take it down."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.testbed import delay, layout, links, making, namespaces, programs, quotas, slurm_daemons, teardown
from jobs.testbed.layout import CONTROLLER, USER, Settings
from trainer.errors import JobError, LauncherError


@dataclass(frozen=True)
class Testbed:
    """Emulated hosts n1..nN and the controller's host ctl, up until `down` is called.

    All hosts see the machine's files, except for /tmp, /dev/shm and /run, of which each has its own.

    Attributes:
        settings: what was asked for.
        folder: where its files lie: configuration (etc/), logs (log/), the home of `tester` (home/).
    """

    settings: Settings
    folder: Path

    __test__ = False  # for pytest: this is no class of tests

    @classmethod
    def up(
        cls,
        hosts: int = 4,
        cpus: int = 2,
        gpus: int = 0,
        bandwidth: str | None = None,
        delay: str | None = None,
        slurm: bool = True,
        accounting: bool = False,
        shared: Path | Sequence[Path] | None = None,
        folder: Path | None = None,
        *,
        name: str = "testbed",
        cpus_per_host: float | None = None,
        memory_mb: int = 4000,
        tied: bool = False,
    ) -> Testbed:
        """Make hosts, network and daemons; return when all nodes are idle. Whatever fails, nothing stays.

        Args:
            hosts: number of hosts besides the controller's.
            cpus: that Slurm believes each host to have.
            gpus: that Slurm believes each host to have.
            bandwidth: of each host's link, each way: "1gbit"; None: not limited.
            delay: of each packet that leaves a host: "0.2ms"; None: none is added.
            slurm: whether to start Slurm.
            accounting: whether to start slurmdbd and MariaDB too (2.5 s more), for sacct.
            shared: folders that hosts must see although they lie in /tmp, /dev/shm or /run.
            folder: where to put its files; must not exist. Default: below layout.BASE.
            name: several testbeds can be up under different names.
            cpus_per_host: cores whose time each host gets at most.
            memory_mb: that Slurm believes each host to have.
            tied: its processes end when the calling one ends, even by kill -9.

        Raises:
            JobError: a value that cannot be.
            LauncherError: this machine cannot do it, or something did not come up in time.
        """
        kept = [shared] if isinstance(shared, Path) else list(shared or [])
        settings = Settings(
            name=name,
            hosts=hosts,
            cpus=cpus,
            memory_mb=memory_mb,
            gpus=gpus,
            cpus_per_host=cpus_per_host,
            bandwidth=bandwidth,
            delay=delay,
            slurm=slurm,
            accounting=accounting,
            kept=tuple(sorted({str(path.resolve()) for path in kept if making.hidden(path.resolve())})),
        )
        for path in kept:
            if not path.is_dir():
                raise JobError(f"{path} is no folder, and cannot be shared.")
            if path.resolve() in layout.PRIVATE:
                raise JobError(
                    f"{path} cannot be shared: each host needs its own.", cure="Share a folder in it."
                )
        programs.check(slurm=slurm, accounting=accounting, delay=delay is not None)
        namespaces.check_outside()
        made = making.claim(name, folder)
        try:
            making.make(settings, made, tied=tied)
        except BaseException:  # also Ctrl-C
            teardown.take_down(name)
            raise
        return cls(settings, made)

    @classmethod
    def open(cls, name: str = "testbed") -> Testbed:
        """The testbed of this name that is up already.

        Raises:
            JobError: there is none.
            LauncherError: it was only half made, or we are in a host ourselves.
        """
        namespaces.check_outside()
        return cls(*layout.load(name))

    def down(self) -> None:
        """Take it down; nothing of it stays. Doing it again does no harm."""
        teardown.take_down(self.settings.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """n1, n2, ...: those that jobs run on."""
        return self.settings.host_names

    @property
    def user(self) -> str:
        """A user without rights, who exists in the hosts only; its home is in `folder`/home."""
        return USER

    def argv(
        self,
        host: str,
        command: Sequence[str],
        user: str | None = None,
        *,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> list[str]:
        """The command line that runs a command in a host, for those who start processes themselves.

        Args:
            host: ctl, n1, n2, ...
            command: program and arguments.
            user: who runs it; default: root.
            cwd: folder that it starts in, as the host sees it; default: where we are, else the user's home.
            environment: what is added to ours.

        Raises:
            JobError: there is no such host.
            LauncherError: it is powered off.
        """
        number = namespaces.need(self.folder, self._known(host))
        line = [*namespaces.enter(number), "setpriv", "--pdeathsig", "KILL"]
        variables = {**slurm_daemons.environment(self.folder), namespaces.MARK: str(self.folder)}
        home = Path("/")
        if user is not None:
            line += ["--reuid", user, "--regid", user, "--init-groups"]
            home = self._home(user)
            variables |= {"HOME": str(home), "USER": user, "LOGNAME": user}
        folder = Path(cwd) if cwd is not None else _here_or(home, namespaces.inner(number, "/"), user)
        variables.update(environment or {})
        line += ["env", f"--chdir={folder}", *namespaces.environment(variables), *command]
        quota = quotas.of_host(self.folder, host)
        if quota is None:
            return line
        # A process that enters namespaces stays in the cgroup it came from.
        return ["sh", "-c", 'echo 0 >"$0" && exec "$@"', str(quota), *line]

    def exec(
        self,
        host: str,
        argv: Sequence[str],
        user: str | None = None,
        *,
        timeout: float = 60,
        given: str | None = None,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host, and wait for it.

        Args:
            host, argv, user, cwd, environment: as in `argv`.
            timeout: in seconds; then it is killed.
            given: its standard input.

        Returns:
            Exit code (-n: killed by signal n) and both streams.

        Raises:
            JobError: there is no such host.
            LauncherError: it is powered off, or the command took too long.
        """
        line = self.argv(host, argv, user, cwd=cwd, environment=environment)
        try:
            return subprocess.run(
                line, input=given or "", capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")[-500:]
            raise LauncherError(f"{host}: {argv[0]} did not end within {timeout:g} s. {said}") from error

    def is_up(self, host: str) -> bool:
        """Whether a host has power."""
        return namespaces.pid(self.folder, self._known(host)) is not None

    def shape(self, host: str, rate: str | None) -> None:
        """Limit a host's link to a rate ("200mbit"), each way; None: no limit."""
        links.shape(self.folder, self._known(host), rate)

    def set_delay(self, host: str, added: str | None) -> None:
        """Delay each packet that leaves a host by so much ("0.2ms"); None: not at all."""
        delay.set_delay(self.folder, self._known(host), added)

    def link(self, host: str, up: bool) -> None:
        """Cut a host's link, or mend it. The host runs on, and hears and says nothing."""
        links.set_link(self.folder, self._known(host), up=up)

    def power_off(self, host: str) -> None:
        """Take a host's power: its link first, so that nobody gets a farewell, then all its processes."""
        number = namespaces.need(self.folder, self._known(host))
        links.unplug(self.folder, host)
        namespaces.end(number)

    def boot(self, host: str) -> None:
        """Start a host that was powered off, with its daemons; its link is as it was asked for at first."""
        if self.is_up(host):
            raise LauncherError(f"{host} is up already.")
        making.start_hosts(self.settings, self.folder, [host])
        if self.settings.slurm and host != CONTROLLER:
            slurm_daemons.start_slurmd(self.folder, host)

    def kill_slurmd(self, host: str) -> None:
        """Kill a host's slurmd as a crash would; what its jobs run stays."""
        slurm_daemons.kill_slurmd(self.folder, self._known(host))

    def start_slurmd(self, host: str) -> None:
        """Start a host's slurmd, unless it runs."""
        slurm_daemons.start_slurmd(self.folder, self._known(host))

    def kill_controller(self) -> None:
        """Kill slurmctld as a crash would; it forgets jobs that are a few seconds old."""
        slurm_daemons.kill_controller(self.folder)

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        slurm_daemons.start_controller(self.folder)

    def restart_controller(self) -> None:
        """End slurmctld as its administrator would, start it again, and wait until it answers."""
        slurm_daemons.stop_controller(self.folder)
        self.start_controller()

    def settle(self, seconds: float = making.IDLE_SECONDS) -> None:
        """Bring it back to how it was at first: no job, all hosts up, links as asked for, every node idle.

        Raises:
            LauncherError: it would not, within so many seconds.
        """
        for host in self.settings.all_names:
            if not self.is_up(host):
                self.boot(host)
        cut = [host for host, up in links.ports(self.folder).items() if not up]
        for host in cut:
            self.link(host, True)
        for host in self.hosts:
            self.shape(host, self.settings.bandwidth)
            self.set_delay(host, self.settings.delay)
        if not self.settings.slurm:
            return
        if not slurm_daemons.runs(self.folder, CONTROLLER, "slurmctld"):
            self.start_controller()
        for host in self.hosts:
            slurm_daemons.start_slurmd(self.folder, host)
        jobs = slurm_daemons.client(self.folder, ["squeue", "-h", "-o", "%A"]).split()
        if jobs:
            slurm_daemons.client(self.folder, ["scancel", "--full", *jobs])
        until = time.monotonic() + seconds

        def settled() -> bool:
            states = slurm_daemons.node_states(self.folder)
            for host, state in states.items():
                if state.startswith(("down", "drained")):
                    # Refused where the host has come back by itself just now; it is asked again if not.
                    with contextlib.suppress(LauncherError):
                        slurm_daemons.client(
                            self.folder, ["scontrol", "update", f"NodeName={host}", "State=RESUME"]
                        )
            left = slurm_daemons.client(self.folder, ["squeue", "-h", "-o", "%A"]).split()
            return not left and dict.fromkeys(self.hosts, "idle").items() <= states.items()

        programs.wait_for(settled, "an empty queue and idle nodes", until - time.monotonic(), every=0.1)

    def status(self) -> dict[str, Any]:
        """Settings, and of every host its address, whether it and its link are up, and Slurm's view of it."""
        states = slurm_daemons.node_states(self.folder) if self.settings.slurm else {}
        ports = links.ports(self.folder) if namespaces.pid(self.folder, namespaces.SWITCH) else {}
        hosts = [
            {
                "host": host,
                "address": layout.address(host),
                "up": self.is_up(host),
                "link": ports.get(host, False),
                "slurm": states.get(host),
            }
            for host in self.settings.all_names
        ]
        return {**dataclasses.asdict(self.settings), "folder": str(self.folder), "host_states": hosts}

    def _known(self, host: str) -> str:
        if host not in self.settings.all_names:
            raise JobError(
                f"There is no host {host!r} in this testbed.", cure=f"Use ctl, n1 ... n{self.settings.hosts}."
            )
        return host

    def _home(self, user: str) -> Path:
        for line in (self.folder / "etc" / "passwd").read_text().splitlines():
            entry = line.split(":")
            if entry[0] == user:
                return Path(entry[5])
        raise JobError(f"There is no user {user!r} in the testbed.", cure=f"Use root or {USER}.")


def _here_or(home: Path, root: Path, user: str | None) -> Path:
    """Our folder, if the host has it too (and it is not another user's business), else the user's home."""
    here = Path.cwd()
    return here if user in (None, "root") and (root / here.relative_to("/")).is_dir() else home
