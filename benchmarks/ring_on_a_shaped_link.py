#!/usr/bin/env python3
"""How much of a shaped link an all-reduce of large tensors gets, with each algorithm, between emulated hosts.

    sudo .venv/bin/python benchmarks/ring_on_a_shaped_link.py --hosts 4 --mbit 200 --json

The hosts are namespaces of this machine, one rank on each (`cingulum testbed`): packets, bytes and waiting
are real, but all share this machine's cores. The kernel cuts what TCP sends into frames only when it is
shaped (segmentation offload), and the shaping charges for each frame's headers. Needs root.

A rank of a ring sends and receives 2(n-1)/n bytes for each byte of the tensor. Their rate, over the rate that
the link is shaped to, is the share; headers of frames leave 1448/1514 = 0.956 of it at most. For the other
algorithms the same number is called so, and says how many times slower they are. In the same run: the limit,
plain TCP streams round the ring (`streams`), and the all-reduces of PyTorch (`gloo`: `make bench-peers`)
and TensorFlow (`multiworker`), see allreduce_peers.py.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cingulum.bench.processes import Process, Running
from cingulum.bench.scaling import launching
from jobs.testbed import Testbed
from jobs.testbed.layout import address
from trainer.bench import hardware
from trainer.errors import CingulumError
from trainer.ranks import launch

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))

from benchmarks.peers import starting  # noqa: E402  (it is in no package that is installed)

PEERS = ("streams", "gloo", "multiworker")


def measure(
    cluster: Testbed, hosts: tuple[str, ...], wanted: dict[str, Any], environment: Mapping[str, str]
) -> Any:
    """Run this file as one rank on each host; returns what rank 0 prints."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    program = ["env", *settings, sys.executable, str(HERE), "--on-rank", json.dumps(wanted)]
    done = subprocess.run(
        launching.on_testbed(cluster, dict.fromkeys(hosts, 1), program),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(HERE.parents[1])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_peer(cluster: Testbed, hosts: tuple[str, ...], kind: str, wanted: dict[str, Any]) -> Any:
    """Run a peer's rank on each host; returns the seconds of each rank, by size."""
    python = str(starting.ENVIRONMENT / "bin" / "python") if kind == "gloo" else sys.executable
    told = {**wanted, "kind": kind, "interface": launching.LINK}
    told["addresses"] = [address(host) for host in hosts]
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    ranks = []
    for rank, host in enumerate(hosts):
        line = [python, str(HERE.with_name("allreduce_peers.py")), json.dumps({**told, "rank": rank})]
        argv = cluster.argv(host, line, cwd=HERE.parents[1], environment=settings)
        ranks.append(Process(kind, f"rank {rank} @ {host}", argv))
    with Running(ranks) as running:
        said = running.hear(ranks, 600, "done")
    return slowest([json.loads(said[rank]) for rank in ranks])


def slowest(everyones: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Seconds of the slowest rank, for each size and repeat."""
    return {
        mib: [max(of_ranks) for of_ranks in zip(*(one[mib] for one in everyones), strict=True)]
        for mib in everyones[0]
    }


def on_rank(wanted: dict[str, Any]) -> None:
    """Time all-reduces of each size, as a compiled step does them; rank 0 prints seconds by size."""
    if wanted["nice"]:
        # Linux weighs sessions against each other first (autogroups), and processes within them.
        Path("/proc/self/autogroup").write_text(str(wanted["nice"]))
        os.nice(wanted["nice"])
    import tensorflow as tf

    from trainer.ranks import horovod_world, starting
    from trainer.strategies import reduction

    world = starting.init(threads=1)
    seconds: dict[str, list[float]] = {}
    for mib in wanted["mib"]:
        reduce = reduction.make(
            world, f"of_{mib}", kind="buckets", bucket_mb=mib, wire="none", gather=wanted["gather"]
        )
        step = tf.function(lambda tensor, reduce=reduce: reduce([tensor])[0], autograph=False)
        tensor = tf.ones([int(mib * 2**18)], tf.float32)
        step(tensor)
        for _ in range(wanted["repeats"]):
            world.barrier()
            started = time.perf_counter()
            step(tensor)
            seconds.setdefault(str(mib), []).append(time.perf_counter() - started)
    found = {"seconds": slowest(world.allgather_object(seconds)), "mpi": horovod_world.mpi_settings()}
    if world.is_main:
        print(json.dumps(found), flush=True)
    world.shutdown()


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """Each algorithm on the same hosts."""
    rate = args.mbit * 1e6 / 8
    found: dict[str, Any] = {}
    cluster = Testbed.up(args.hosts, slurm=False, bandwidth=f"{args.mbit}mbit", name=args.name, tied=True)
    try:
        wanted = {"mib": [float(mib) for mib in args.mib.split(",")], "repeats": args.repeats}
        for algorithm in (*args.algorithms, *args.peers):
            print(algorithm, file=sys.stderr, flush=True)
            if algorithm in PEERS:
                if algorithm == "gloo" and (lacking := starting.missing("ddp")):
                    print(f"gloo: {lacking}", file=sys.stderr)
                    continue
                times = measure_peer(cluster, cluster.hosts, algorithm, wanted)
            else:
                ours = {**wanted, "nice": args.nice, "gather": algorithm == "gather"}
                settings = {**launch.ALGORITHMS[algorithm], **dict(one.split("=", 1) for one in args.set)}
                times = measure(cluster, cluster.hosts, ours, settings)["seconds"]
            for mib, seconds in times.items():
                payload = 2 * (args.hosts - 1) / args.hosts * float(mib) * 2**20
                shares = sorted(payload / (second * rate) for second in seconds)
                found.setdefault(algorithm, {})[mib] = {
                    "seconds": statistics.median(seconds),
                    "share": statistics.median(shares),
                    "share_min": shares[0],
                    "share_max": shares[-1],
                }
    finally:
        cluster.down()
    return {
        "hosts": args.hosts,
        "link_mbit": args.mbit,
        "repeats": args.repeats,
        "nice": args.nice,
        "algorithms": found,
        "machine": hardware.here(),
    }


def some_of(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """What reads names, separated by commas, and takes only those that are known."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(filter(None, text.split(",")))
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: take some of {', '.join(known)}")
        return found

    return names


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="What share of a shaped link all-reduces get.")
    parser.add_argument("--hosts", type=int, default=4, help="emulated hosts (default: 4)")
    parser.add_argument("--mbit", type=int, default=200, help="rate of each link, each way (default: 200)")
    parser.add_argument("--mib", default="16,32,64", help="sizes of tensors, in MiB (default: 16,32,64)")
    parser.add_argument("--repeats", type=int, default=3, help="all-reduces of each size (default: 3)")
    parser.add_argument(
        "--algorithms",
        type=some_of(tuple(launch.ALGORITHMS)),
        default="ring",
        help=f"some of {','.join(launch.ALGORITHMS)} (default: ring)",
    )
    parser.add_argument(
        "--peers",
        type=some_of(PEERS),
        default=",".join(PEERS),
        help=f"some of {','.join(PEERS)}, or '' (default: all)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="for the ranks")
    parser.add_argument(
        "--nice", type=int, default=0, help="priority of the ranks; -20 where others use the machine"
    )
    parser.add_argument("--name", default="ringlink", help="of the testbed")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--on-rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.on_rank:
        on_rank(json.loads(args.on_rank))
        return 0
    try:
        found = compare(args)
    except CingulumError as error:
        raise SystemExit(f"error: {error}") from None
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for algorithm, sizes in found["algorithms"].items():
        for mib, one in sizes.items():
            print(
                f"{algorithm:<20}{float(mib):6.1f} MiB {one['seconds']:8.3f} s   share {one['share']:.3f}"
                f"  ({one['share_min']:.3f} to {one['share_max']:.3f})"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
