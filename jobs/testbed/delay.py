"""Delay packets, by a small program of our own that is compiled on first use.

The kernel's own way (netem) is missing from many kernels that run virtual machines. `nfqdelay.c` holds each
packet that leaves a host for the time asked, and then lets it go.
"""

from __future__ import annotations

from pathlib import Path

from jobs.testbed import namespaces, programs
from jobs.testbed.layout import microseconds
from trainer.errors import LauncherError

_SOURCE = Path(__file__).with_name("nfqdelay.c")
_PROGRAM = "nfqdelay"
_QUEUE = "1"
# The way into the queue and out again takes time by itself: on a quiet machine 160 asked became 200.
_OWN_MICROSECONDS = 40
_SECONDS = 5.0  # to be at work
_DAEMON = 'log=$1; shift; setsid "$@" </dev/null >"$log" 2>&1 &'


def compiled(folder: Path) -> Path:
    """Return path of the program within the testbed's folder."""
    program = folder / _PROGRAM
    if not program.exists():
        temporary = folder / "nfqdelay.new"
        programs.run(
            ["gcc", "-O2", "-o", str(temporary), str(_SOURCE)],
            "compiling the packet delay",
            environment={namespaces.MARK: str(folder)},
        )
        temporary.replace(program)
    return program


def set_delay(folder: Path, host: str, delay: str | None) -> None:
    """Delay each packet that leaves a host by this time ("0.2ms"), replacing any delay; None: not at all."""
    number = namespaces.need(folder, host)
    inside = namespaces.enter(number)
    table = ["iptables", "-w", "10", "-t", "mangle"]
    # Packets that find no program at their queue pass at once.
    for old in namespaces.running(number, _PROGRAM):
        programs.run([*inside, "kill", "-9", str(old)], f"ending the delay of {host}")
    programs.wait_for(lambda: not namespaces.running(number, _PROGRAM), f"the end of the delay of {host}", 5)
    held = microseconds(delay) if delay is not None else 0.0
    if (folder / _PROGRAM).exists():
        programs.run([*inside, *table, "-F", "POSTROUTING"], f"ending the delay of {host}")
    if held == 0:
        return
    held = max(0.0, held - _OWN_MICROSECONDS)
    program = compiled(folder)
    log = f"{folder}/log/delay.{host}.log"
    programs.run(
        [*inside, "sh", "-c", _DAEMON, "sh", log, str(program), _QUEUE, str(held)],
        f"starting the delay of {host}",
        environment={namespaces.MARK: str(folder)},
    )
    # Not only started: the rule lets packets pass while no process holds the queue.
    try:
        programs.wait_for(lambda: _is_held(number), f"the delay of {host}", _SECONDS)
    except LauncherError as error:
        raise LauncherError(
            f"{error.message} It said: {Path(log).read_text().strip() or 'nothing'}"
        ) from error
    rule = ["-A", "POSTROUTING", "-o", "eth0", "-j", "NFQUEUE", "--queue-num", _QUEUE, "--queue-bypass"]
    programs.run([*inside, *table, *rule], f"delaying what {host} sends")


def _is_held(number: int) -> bool:
    """Return whether a program holds our queue in the network of this process; a line of the kernel's for
    each.
    """
    try:
        queues = Path(f"/proc/{number}/net/netfilter/nfnetlink_queue").read_text().splitlines()
    except OSError:
        return False
    return any(line.split()[0] == _QUEUE for line in queues)
