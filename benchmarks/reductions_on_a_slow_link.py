#!/usr/bin/env python3
"""Compare the ways to reduce gradients between two emulated hosts with a shaped link between them.

    sudo .venv/bin/python benchmarks/reductions_on_a_slow_link.py --mbit 200 --json

The hosts are namespaces of this machine (network, host name, shared memory): packets, bytes and waiting
are real, but both share this machine's cores and clock. Needs root, and iproute2 with `tc`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cingulum.bench import step
from trainer.bench.step_worker import StepJob

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NETWORK = "10.77.0.0/24"
NAMESPACES = ("--net", "--uts", "--ipc", "--mount")
# A host's first process: its own name and shared memory, then it waits to be ended.
FIRST = (
    "mount --make-rprivate / && mount -t tmpfs tmpfs /dev/shm && hostname {name} && echo up"
    " && exec sleep infinity"
)


def inside(pid: int) -> list[str]:
    """The start of a command line that runs on the emulated host of this process."""
    return ["nsenter", "--target", str(pid), *NAMESPACES, "--"]


@contextlib.contextmanager
def two_hosts(mbit: int) -> Iterator[list[int]]:
    """Two emulated hosts, joined by a link of so many Mbit/s each way; yields their first processes."""
    with contextlib.ExitStack() as stack:
        pids = []
        for number in range(2):
            first = FIRST.format(name=f"emulated{number}")
            host = subprocess.Popen(
                ["unshare", *NAMESPACES, "sh", "-c", first], stdout=subprocess.PIPE, text=True
            )
            stack.callback(host.wait)
            stack.callback(host.kill)
            if host.stdout is None or host.stdout.readline() != "up\n":
                raise SystemExit("error: an emulated host did not start; this needs root")
            pids.append(host.pid)
        create = f"ip link add eth0 netns {pids[0]} type veth peer name eth0 netns {pids[1]}"
        subprocess.run(shlex.split(create), check=True)
        for pid, address in zip(pids, ADDRESSES, strict=True):
            for line in (
                "ip link set lo up",
                f"ip addr add {address}/24 dev eth0",
                "ip link set eth0 up",
                "tc qdisc add dev eth0 root handle 1: htb default 1",
                f"tc class add dev eth0 parent 1: classid 1:1 htb rate {mbit}mbit burst 16kb",
            ):
                subprocess.run([*inside(pid), *shlex.split(line)], check=True)
        yield pids


def remote_shell(folder: Path, pids: list[int]) -> Path:
    """A program that mpirun takes for ssh: it runs a command on the emulated host with this address."""
    cases = "\n".join(
        f'  {address}) exec {shlex.join(inside(pid))} sh -c "$*" ;;'
        for address, pid in zip(ADDRESSES, pids, strict=True)
    )
    path = folder / "remote-shell"
    path.write_text(f"#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}\nesac\n")
    path.chmod(0o755)
    return path


def compare(mbit: int, job: StepJob, repeats: int) -> dict[str, object]:
    """Run this file again on the first host, where mpirun can reach the second."""
    with two_hosts(mbit) as pids, tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "OMPI_MCA_plm_rsh_agent": str(remote_shell(Path(folder), pids)),
            "OMPI_MCA_btl_tcp_if_include": NETWORK,
            "OMPI_MCA_oob_tcp_if_include": NETWORK,
        }
        wanted = json.dumps({"job": job.__dict__, "repeats": repeats})
        line = [*inside(pids[0]), sys.executable, __file__, "--on-host", wanted]
        ran = subprocess.run(line, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(ran.stdout), "link_mbit": mbit}


def on_host(wanted: str) -> dict[str, object]:
    """What runs on the first host."""
    asked = json.loads(wanted)
    return step.ring(
        StepJob(**asked["job"]),
        ranks=2,
        repeats=asked["repeats"],
        progress=lambda text: print(text, file=sys.stderr, flush=True),
        hosts=dict.fromkeys(ADDRESSES, 1),
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="Ways to reduce gradients over a slow link between emulated hosts."
    )
    parser.add_argument("--mbit", type=int, default=200, help="rate of the link, each way (default: 200)")
    parser.add_argument(
        "--model",
        default="resattnet18",
        help="a network; benchmarks/emulated_accelerator.py:network leaves the cores free, as a GPU does",
    )
    parser.add_argument("--size", type=int, default=96, help="edge of the volumes, in voxels (default: 96)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage (default: 16)")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank (default: 4)")
    parser.add_argument("--steps", type=int, default=8, help="steps per measurement (default: 8)")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of each kind, in turn (default: 3)"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--on-host", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_host:
        print(json.dumps(on_host(args.on_host)))
        return 0
    job = StepJob(model=args.model, size=args.size, width=args.width, batch=args.batch, steps=args.steps)
    found = compare(args.mbit, job, args.repeats)
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, times in found["step_s"].items():  # type: ignore[attr-defined]
        print(f"{name:<32}{times['median']:.3f} s  ({times['median_min']:.3f} to {times['median_max']:.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
