"""`cingulum testbed`: emulated hosts with a real Slurm cluster, to try a job before queueing for hours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from jobs.testbed import Testbed

testbed = typer.Typer(
    help="Emulate a cluster of hosts with Slurm on this machine (Linux, root), and break it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str | None,
    typer.Option(
        help="Which testbed, where several are up.",
        show_default="the only one",
        envvar="CINGULUM_TESTBED_NAME",
    ),
]
Host = Annotated[str, typer.Argument(help="n1, n2, ..., or ctl.")]


@testbed.command()
def up(
    hosts: Annotated[int, typer.Option(help="Number of hosts n1, n2, ... besides the controller's.")] = 4,
    bandwidth: Annotated[
        str | None, typer.Option(help="Rate of each host's link, each way, such as 1gbit or 200mbit.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="Delay of each packet that leaves a host, such as 0.2ms.")
    ] = None,
    cpus_per_host: Annotated[
        float | None, typer.Option(help="Cores whose time each host gets at most, such as 0.5.")
    ] = None,
    cpus: Annotated[int, typer.Option(help="CPUs that Slurm believes each host to have.")] = 2,
    gpus: Annotated[int, typer.Option(help="GPUs that Slurm believes each host to have.")] = 0,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="Run slurmdbd and MariaDB too, for sacct.")
    ] = False,
    slurm: Annotated[bool, typer.Option("--slurm/--no-slurm", help="Whether to run Slurm at all.")] = True,
    shared: Annotated[
        list[Path] | None,
        typer.Option(help="A folder in /tmp that all hosts see (they see all else); may be repeated."),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="Several testbeds can be up under different names.", envvar="CINGULUM_TESTBED_NAME"
        ),
    ] = "testbed",
) -> int:
    """Bring a testbed up: hosts, network, ssh between them, and Slurm; return when all nodes are idle.

    \b
    Example:
      cingulum testbed up --hosts 4 --bandwidth 1gbit --delay 0.2ms
    """
    import signal
    import sys
    import time

    from jobs.testbed import Testbed, layout

    # A signal takes down what was made, as Ctrl-C does.
    for asked in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(asked, lambda number, _: sys.exit(128 + number))
    started = time.monotonic()
    # The working folder and the Python environment may lie in /tmp, which hosts do not share.
    seen = [
        path for path in (Path.cwd(), Path(sys.prefix), Path(sys.base_prefix)) if path not in layout.PRIVATE
    ]
    testbed = Testbed.up(
        hosts,
        cpus=cpus,
        gpus=gpus,
        bandwidth=bandwidth,
        delay=delay,
        slurm=slurm,
        accounting=accounting,
        shared=[*seen, *(shared or [])],
        name=name,
        cpus_per_host=cpus_per_host,
    )
    typer.echo(f"{name}: {hosts} hosts are up after {time.monotonic() - started:.1f} s")
    _tell(testbed)
    return 0


@testbed.command()
def status(
    name: Name = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all testbeds as JSON.")] = False,
) -> int:
    """Show the testbeds of this machine: each host, its link, and its state in Slurm.

    \b
    Example:
      cingulum testbed status --json
    """
    import json

    from jobs.testbed import Testbed, layout
    from trainer.errors import LauncherError

    shown = []
    for bed_name in layout.names() if name is None else [name]:
        try:
            bed = Testbed.open(bed_name)
        except LauncherError as error:
            if name is not None:
                raise
            shown.append({"name": bed_name, "trouble": error.message})
            if not as_json:
                typer.echo(f"{bed_name}: {error}")
            continue
        shown.append(bed.status())
        if not as_json:
            typer.echo(f"{bed_name}: {bed.folder}")
            _tell(bed)
    if as_json:
        typer.echo(json.dumps(shown, indent=1))
    elif not shown:
        typer.echo("no testbed is up")
    return 0


@testbed.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    host: Host,
    command: Annotated[list[str], typer.Argument(help="Program and arguments, after --.")],
    name: Name = None,
    user: Annotated[str, typer.Option(help="User: root, or tester, who has no privileges.")] = "root",
) -> int:
    """Run a command in a host; its streams and its exit code are passed on. Options come before HOST.

    \b
    Example:
      cingulum testbed exec n1 -- srun -N2 hostname
    """
    import os
    import signal
    import sys

    from trainer.errors import JobError

    if command[0] == "--":
        command = command[1:]
    if not command:
        raise JobError("No command was given.", cure=f"cingulum testbed exec {host} -- hostname")
    line = _open(name).argv(host, command, None if user == "root" else user)
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores closed pipes; other programs expect them
    os.execvp(line[0], line)  # noqa: S606 (a list of arguments, no shell)


@testbed.command()
def shape(
    host: Host,
    bandwidth: Annotated[str | None, typer.Option(help="Such as 200mbit; none: no limit.")] = None,
    delay: Annotated[str | None, typer.Option(help="Such as 0.2ms; none: no delay.")] = None,
    name: Name = None,
) -> int:
    """Change the bandwidth or the delay of a host's link.

    \b
    Example:
      cingulum testbed shape n2 --bandwidth 100mbit
    """
    from trainer.errors import JobError

    if bandwidth is None and delay is None:
        raise JobError("No change was given.", cure="Give --bandwidth, --delay, or both.")
    bed = _open(name)
    if bandwidth is not None:
        bed.shape(host, None if bandwidth == "none" else bandwidth)
    if delay is not None:
        bed.set_delay(host, None if delay == "none" else delay)
    return 0


@testbed.command()
def link(host: Host, state: Annotated[str, typer.Argument(help="up or down.")], name: Name = None) -> int:
    """Cut a host's link, or restore it; the host runs on.

    \b
    Example:
      cingulum testbed link n2 down
    """
    from trainer.errors import JobError

    if state not in ("up", "down"):
        raise JobError(f"A link cannot be {state!r}.", cure="Say up or down.")
    _open(name).link(host, state == "up")
    return 0


@testbed.command()
def kill(
    host: Host,
    slurmd: Annotated[bool, typer.Option("--slurmd", help="Only its slurmd.")] = False,
    name: Name = None,
) -> int:
    """Power a host off, or kill its slurmd.

    \b
    Example:
      cingulum testbed kill n3
    """
    bed = _open(name)
    if slurmd:
        bed.kill_slurmd(host)
    else:
        bed.power_off(host)
    return 0


@testbed.command()
def boot(host: Host, name: Name = None) -> int:
    """Start a host that is powered off, or the Slurm daemons that do not run on it.

    \b
    Example:
      cingulum testbed boot n3
    """
    bed = _open(name)
    if bed.is_up(host):
        bed.start_daemons(host)
    else:
        bed.boot(host)
    return 0


@testbed.command()
def down(
    name: Name = None,
    everything: Annotated[bool, typer.Option("--all", help="All testbeds of this machine.")] = False,
) -> int:
    """Take a testbed down, whatever state it is in, and remove everything.

    \b
    Example:
      cingulum testbed down
    """
    from jobs.testbed import layout, making

    for bed_name in layout.names() if everything else [_chosen(name)]:
        if bed_name is None or not making.take_down(bed_name):
            typer.echo("there is no testbed to take down")
        else:
            typer.echo(f"{bed_name}: taken down")
    return 0


def _chosen(name: str | None) -> str | None:
    """Return the name that was given, or that of the only testbed; None: there is none."""
    from jobs.testbed import layout
    from trainer.errors import JobError

    if name is not None:
        return name
    names = layout.names()
    if len(names) > 1:
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        raise JobError(
            f"Several testbeds are up: {', '.join(names[:2])}{more}.",
            cure=f"Say which: --name {names[0]}. `cingulum testbed status` lists them.",
        )
    return names[0] if names else None


def _open(name: str | None) -> Testbed:
    from jobs.testbed import Testbed

    return Testbed.open(_chosen(name) or "testbed")


def _tell(found: Testbed) -> None:
    for host in found.status()["host_states"]:
        power = "up" if host["up"] else "off"
        cable = "link up" if host["link"] else "link down"
        typer.echo(f"  {host['host']:5s} {host['address']:12s} {power:4s} {cable:10s} {host['slurm'] or '-'}")
