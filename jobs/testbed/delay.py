"""Delay of packets, by a small program of our own that is compiled on first use.

The kernel's own way (netem) is missing from many kernels that run virtual machines. `nfqdelay.c` holds each
packet that leaves a host for the time asked, and then lets it go.
"""

from __future__ import annotations

from pathlib import Path

from jobs.testbed import namespaces, programs
from jobs.testbed.layout import microseconds

_SOURCE = Path(__file__).with_name("nfqdelay.c")
_QUEUE = "1"
_DAEMON = 'log=$1; shift; setsid "$@" </dev/null >"$log" 2>&1 &'


def compiled(folder: Path) -> Path:
    """Path of the program within the testbed's folder."""
    program = folder / "nfqdelay"
    if not program.exists():
        temporary = folder / "nfqdelay.new"
        programs.run(["gcc", "-O2", "-o", str(temporary), str(_SOURCE)], "compiling the packet delay")
        temporary.replace(program)
    return program


def set_delay(folder: Path, host: str, delay: str | None) -> None:
    """Delay each packet that leaves a host by so much ("0.2ms"), whatever was set; None: not at all."""
    number = namespaces.need(folder, host)
    inside = namespaces.enter(number)
    table = ["iptables", "-w", "10", "-t", "mangle"]
    # Packets that find no program at their queue pass at once.
    for old in _running(number):
        programs.run([*inside, "kill", "-9", str(old)], f"ending the delay of {host}")
    programs.wait_for(lambda: not _running(number), f"the end of the delay of {host}", 5)
    held = microseconds(delay) if delay is not None else 0.0
    if (folder / "nfqdelay").exists():
        programs.run([*inside, *table, "-F", "POSTROUTING"], f"ending the delay of {host}")
    if held == 0:
        return
    program = compiled(folder)
    log = f"{folder}/log/delay.{host}.log"
    programs.run(
        [*inside, "sh", "-c", _DAEMON, "sh", log, str(program), _QUEUE, str(held)],
        f"starting the delay of {host}",
        environment={namespaces.MARK: str(folder)},
    )
    programs.wait_for(lambda: bool(_running(number)), f"the delay of {host}", 5)
    rule = ["-A", "POSTROUTING", "-o", "eth0", "-j", "NFQUEUE", "--queue-num", _QUEUE, "--queue-bypass"]
    programs.run([*inside, *table, *rule], f"delaying what {host} sends")


def _running(number: int) -> list[int]:
    """Numbers, within the host, of the delay's processes that run there."""
    found = []
    for name in namespaces.inner(number, "/proc").glob("[0-9]*/stat"):
        try:
            stat = name.read_text()
        except OSError:
            continue
        if "(nfqdelay)" in stat and stat.rpartition(")")[2].split()[0] != "Z":
            found.append(int(name.parent.name))
    return found
