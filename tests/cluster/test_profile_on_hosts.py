"""A profile knows the links between emulated hosts as they were shaped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jobs.local import mpirun

PROGRAM = Path(__file__).parents[1] / "parallel" / "programs" / "measured_links.py"
ON_LINKS = {
    "PYTHONPATH": str(Path(__file__).parents[2]),
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_oob_tcp_if_include": "eth0",
}


# Other tests keep the cores busy, which lengthens messages: a moment without them is waited for.
TRIES = 6


def test_a_link_is_measured_as_it_was_shaped(cluster):
    hosts = cluster.hosts[:2]
    for host in hosts:
        cluster.shape(host, "100mbit")
    # Before other tests, which keep the cores busy beside it.
    measure = ["nice", "-n", "-15", sys.executable, str(PROGRAM)]
    line, added = mpirun.command(2, measure, hosts=dict.fromkeys(hosts, 1))
    sent = ["-x", "PYTHONPATH", *line[1:]]
    found = []
    for _ in range(TRIES):
        done = cluster.exec("n1", [line[0], *sent], environment={**added, **ON_LINKS}, timeout=100)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
        if is_as_shaped(*found[-1]):
            break
    for host in hosts:
        cluster.shape(host, None)
    assert is_as_shaped(*found[-1]), found


def is_as_shaped(latency_s: float, rate: float) -> bool:
    # Headers leave 0.956 of it, and what acknowledges the other way takes some more.
    return 0.85 * 12.5e6 < rate < 0.96 * 12.5e6 and latency_s < 1e-3
