"""One testbed: bring it up, use it, break it, take it down."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.testbed import layout, links, making, namespaces, programs, slurm_daemons
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

    __test__ = False  # for pytest: not a class of tests

    @classmethod
    def up(
        cls,
        hosts: int = 4,
        *,
        shared: Path | Sequence[Path] | None = None,
        folder: Path | None = None,
        tied: bool = False,
        **options: Any,
    ) -> Testbed:
        """Make hosts, network and daemons; return when all nodes are idle. Remove everything on failure.

        Args:
            hosts: number of hosts besides the controller's.
            shared: folders that hosts must see although they lie in /tmp, /dev/shm or /run.
            folder: where to put its files; must not exist. Default: below layout.BASE.
            tied: its processes end when the calling one ends, even by kill -9.
            options: further settings: `name`, `cpus`, `gpus`, ..., as `Settings` has them.

        Raises:
            JobError: a value that cannot be.
            LauncherError: this machine cannot do it, or something did not come up in time.
        """
        kept = [shared] if isinstance(shared, Path) else list(shared or [])
        hidden = {str(path.resolve()) for path in kept if making.hidden(path.resolve())}
        settings = Settings(hosts=hosts, kept=tuple(sorted(hidden)), **options)
        for path in kept:
            if not path.is_dir():
                raise JobError(f"{path} is not a folder, and cannot be shared.")
            if path.resolve() in layout.PRIVATE:
                raise JobError(
                    f"{path} cannot be shared: each host needs its own.", cure="Share a folder in it."
                )
        namespaces.check_outside()
        delayed = settings.delay is not None
        programs.check(slurm=settings.slurm, accounting=settings.accounting, delay=delayed)
        made = making.claim(settings.name, folder)
        try:
            making.make(settings, made, tied=tied)
        except BaseException:  # also Ctrl-C
            making.take_down(settings.name)
            raise
        return cls(settings, made)

    @classmethod
    def open(cls, name: str = "testbed") -> Testbed:
        """Open the running testbed of this name.

        Raises:
            JobError: there is none.
            LauncherError: it was only half made, or we are in a host ourselves.
        """
        namespaces.check_outside()
        return cls(*layout.load(name))

    def down(self) -> None:
        """Take it down and remove everything. Repeating it is harmless."""
        making.take_down(self.settings.name)

    @property
    def hosts(self) -> tuple[str, ...]:
        """n1, n2, ...: those that jobs run on."""
        return self.settings.host_names

    @property
    def user(self) -> str:
        """A user without privileges, who exists in the hosts only; its home is in `folder`/home."""
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
        """Return the command line that runs a command in a host, for those who start processes themselves.

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
        quota = namespaces.quota_of(self.folder, host)
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
        stdin: str | None = None,
        cwd: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host, and wait for it.

        Args:
            host, argv, user, cwd, environment: as in `argv`.
            timeout: in seconds; then it is killed.
            stdin: its standard input.

        Returns:
            Exit code (-n: killed by signal n) and both streams.

        Raises:
            JobError: there is no such host.
            LauncherError: it is powered off, or the command took too long.
        """
        line = self.argv(host, argv, user, cwd=cwd, environment=environment)
        try:
            return subprocess.run(
                line,
                input=stdin or "",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = (error.stderr or b"").decode(errors="replace")[-500:]
            raise LauncherError(f"{host}: {argv[0]} did not end within {timeout:g} s. {said}") from error

    def is_up(self, host: str) -> bool:
        """Return whether a host has power."""
        return namespaces.pid(self.folder, self._known(host)) is not None

    def shape(self, host: str, rate: str | None) -> None:
        """Limit a host's link to a rate ("200mbit"), each way; None: no limit."""
        links.shape(self.folder, self._known(host), rate)

    def set_delay(self, host: str, added: str | None) -> None:
        """Delay each packet that leaves a host by so much ("0.2ms"); None: not at all."""
        links.set_delay(self.folder, self._known(host), added)

    def link(self, host: str, up: bool) -> None:
        """Cut a host's link, or restore it. The host runs on, and receives and sends nothing."""
        links.set_link(self.folder, self._known(host), up=up)

    def power_off(self, host: str) -> None:
        """Power a host off: cut its link first, so that peers receive no FIN, then kill all its processes."""
        number = namespaces.need(self.folder, self._known(host))
        links.unplug(self.folder, host)
        namespaces.end(number)

    def boot(self, host: str) -> None:
        """Start a host that was powered off, with its daemons; its link is as first requested."""
        if self.is_up(host):
            raise LauncherError(f"{host} is up already.")
        making.start_hosts(self.settings, self.folder, [host])
        self.start_daemons(host)

    def start_daemons(self, host: str) -> None:
        """Start what of Slurm belongs on a host and does not run there: its slurmd, or the controller's."""
        if not self.settings.slurm:
            return
        if self._known(host) == CONTROLLER:
            slurm_daemons.start_controller_host(self.settings, self.folder)
        else:
            slurm_daemons.start_slurmd(self.folder, host)

    def kill_slurmd(self, host: str) -> None:
        """Kill a host's slurmd as a crash would; processes of its jobs stay."""
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
        """Restore its first state: no job, all hosts up, links as requested, every node idle.

        Raises:
            LauncherError: it did not come to that state within `seconds` seconds.
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
        for host in self.settings.all_names:
            self.start_daemons(host)
        slurm_daemons.cancel_all(self.folder)
        programs.wait_for(
            lambda: slurm_daemons.is_idle(self.folder, self.hosts),
            "an empty queue and idle nodes",
            seconds,
            every=0.1,
        )

    def status(self) -> dict[str, Any]:
        """Return settings, and of every host its address, whether it and its link are up, and Slurm's view of
        it.
        """
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
    """Return our folder, if the host has it too (and it is not another user's business), else the user's
    home.
    """
    here = Path.cwd()
    return here if user in (None, "root") and (root / here.relative_to("/")).is_dir() else home
