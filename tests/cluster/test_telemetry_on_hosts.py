"""What an emulated host tells of its interface is what its kernel counted."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAYLOAD = 5_000_000

# On the receiver: take everything, then say how much.
SINK = """
import socket, sys
server = socket.create_server(("", 0))
print(server.getsockname()[1], flush=True)
connection, _ = server.accept()
while connection.recv(1 << 16): pass
"""

# On the sender: what our telemetry and `ip` say of the same five megabytes.
SENDER = """
import json, socket, subprocess, sys, time
from trainer.telemetry.host_usage import HostUsage, by_host

def kernel():
    said = json.loads(subprocess.run(
        ["ip", "-s", "-j", "link", "show", "eth0"], check=True, capture_output=True).stdout)
    return {"sent": said[0]["stats64"]["tx"]["bytes"], "received": said[0]["stats64"]["rx"]["bytes"]}

usage = HostUsage(socket.gethostname(), is_first=True)
outer = kernel()
usage.begin()
inner = kernel()
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    connection.sendall(bytes(int(sys.argv[3])))
time.sleep(0.5)
inner_end = kernel()
reading = usage.end()
outer_end = kernel()
usage.close()
(host,) = by_host(1, 1, [reading])
print(json.dumps({
    "host": host.host, "told": host.interfaces["eth0"],
    "least": {k: inner_end[k] - inner[k] for k in inner}, "most": {k: outer_end[k] - outer[k] for k in outer},
}))
"""


def test_bytes_of_a_host_are_those_that_its_kernel_counted(cluster, tmp_path):
    environment = {"PYTHONPATH": str(ROOT)}
    port = tmp_path / "port"
    sink = tmp_path / "sink.py"
    sink.write_text(SINK)
    started = cluster.exec("n2", ["sh", "-c", f"{sys.executable} {sink} > {port} 2>/dev/null &"], timeout=20)
    assert started.returncode == 0, started.stderr
    waited = cluster.exec("n2", ["sh", "-c", f"until [ -s {port} ]; do sleep 0.05; done"], timeout=20)
    assert waited.returncode == 0
    words = [sys.executable, "-c", SENDER, "n2", port.read_text().strip(), str(PAYLOAD)]
    ran = cluster.exec("n1", words, environment=environment, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["host"] == "n1"
    for way in ("sent", "received"):
        assert found["least"][way] <= found["told"][way] <= found["most"][way]
    # Headers of TCP, IP and Ethernet: 66 bytes for each 1448 and less.
    assert PAYLOAD < found["told"]["sent"] < 1.06 * PAYLOAD
