"""The network of a testbed: one switch (a bridge), one link (a veth pair) to each host, shaped by htb."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from jobs.testbed import namespaces, programs
from jobs.testbed.layout import NETWORK, address, bytes_per_second, check_rate, microseconds
from trainer.errors import LauncherError

_BRIDGE = "br0"
# Linux's own choice, whatever the machine's: docs/decisions/0017-testbed.md.
CONGESTION_CONTROL = "cubic"
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Payload of a packet, and Linux's own limit to how many of them it joins.
_PACKET, _MOST_JOINED = 1448, 65535
# What passes at once after a pause, and what the kernel joins, in seconds of the rate; two packets at least.
_BURST_S, _JOINED_S = 125e-6, 64e-6


def make_switch(folder: Path) -> None:
    """Make the bridge that all links end at."""
    _ip_batch(
        folder,
        "making the switch",
        "link set lo up",
        f"link add {_BRIDGE} type bridge forward_delay 0 stp_state 0",
        f"link set {_BRIDGE} up",
    )


def plug_in(folder: Path, hosts: Iterable[str]) -> None:
    """Give hosts that have just started their link and address."""
    for host in hosts:
        number = namespaces.need(folder, host)
        unplug(folder, host)  # the kernel takes a dead host's link away only after a while
        _ip_batch(
            folder,
            f"making the link of {host}",
            f"link add {host} type veth peer name eth0 netns {number}",
            f"link set {host} master {_BRIDGE} up",
        )
        programs.run(
            ["nsenter", "--target", str(number), "--net", "ip", "-batch", "-"],
            f"giving {host} its address",
            stdin=f"link set lo up\naddr add {address(host)}/24 dev eth0\nlink set eth0 up\n"
            + _congestion_control(host),
        )


def _congestion_control(host: str) -> str:
    """Set a congestion control that shares a link as a cluster's would; do nothing where the kernel cannot.

    By route: a namespace may set only those for all that the machine allows to users without rights.
    """
    if CONGESTION_CONTROL not in _AVAILABLE.read_text().split():
        return ""
    return (
        f"route change {NETWORK}.0/24 dev eth0 proto kernel scope link src {address(host)}"
        f" congctl {CONGESTION_CONTROL}\n"
    )


def unplug(folder: Path, host: str) -> None:
    """Remove a host's link, if it has one: nothing that the host sends arrives any more."""
    if host in ports(folder):
        try:
            _ip_batch(folder, f"unplugging {host}", f"link del {host}")
        except LauncherError:
            # The kernel was quicker, where the host had died.
            if host in ports(folder):
                raise


def set_link(folder: Path, host: str, *, up: bool) -> None:
    """Cut a host's link at the switch, or restore it; the host itself sees its cable lose the signal."""
    namespaces.need(folder, host)
    _ip_batch(folder, f"setting the link of {host}", f"link set {host} {'up' if up else 'down'}")


def ports(folder: Path) -> dict[str, bool]:
    """Return the hosts whose link ends at the switch, and whether it is up."""
    told = programs.run([*_switch(folder), "ip", "-json", "link"], "asking the switch for its links")
    return {
        link["ifname"]: "UP" in link["flags"] for link in json.loads(told) if link.get("master") == _BRIDGE
    }


def shape(folder: Path, host: str, rate: str | None) -> None:
    """Limit a host's link to a rate, each way; None: no limit.

    A real link sends one packet after the other. htb lets pass at once what it has saved up in a pause, and
    then one more of what the kernel hands over, however many packets are joined in it: so both are kept
    small, or messages of up to 64 kB would take no time (docs/decisions/0058-simulator.md).
    tbf needs a burst that lets small messages pass unshaped.
    """
    number = namespaces.need(folder, host)
    host_side = ["nsenter", "--target", str(number), "--net"]
    for inside, device in ((host_side, "eth0"), (_switch(folder), host)):
        subprocess.run(  # there may be none yet
            [*inside, "tc", "qdisc", "del", "dev", device, "root"],
            env={"PATH": programs.PATH},
            capture_output=True,
            timeout=30,
            check=False,
        )
        if rate is not None:
            limit = check_rate(rate)
            programs.run(
                [*inside, "tc", "-batch", "-"],
                f"shaping the link of {host}",
                stdin=f"qdisc add dev {device} root handle 1: htb default 10\n"
                f"class add dev {device} parent 1: classid 1:10 htb rate {limit} ceil {limit} "
                f"burst {_burst(rate)} cburst {_burst(rate)} quantum 60000\n",
            )
        programs.run(
            [*inside, "ip", "link", "set", "dev", device, "gso_max_segs", str(_joined(rate))],
            f"telling the link of {host} how many packets to join",
        )


def _burst(rate: str) -> int:
    """Bytes that pass at once after a pause."""
    return max(2 * _PACKET, round(bytes_per_second(rate) * _BURST_S))


def _joined(rate: str | None) -> int:
    """Packets that are handed over at once."""
    if rate is None:
        return _MOST_JOINED
    return max(2, round(bytes_per_second(rate) * _JOINED_S / _PACKET))


def _switch(folder: Path) -> list[str]:
    return ["nsenter", "--target", str(namespaces.need(folder, namespaces.SWITCH)), "--net"]


def _ip_batch(folder: Path, doing: str, *lines: str) -> None:
    programs.run([*_switch(folder), "ip", "-batch", "-"], doing, stdin="\n".join([*lines, ""]))


# The kernel's own way to delay packets (netem) is missing from many kernels that run virtual machines.
# `nfqdelay.c`, compiled on first use, holds each packet that leaves a host for a time, and then lets it go.
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
