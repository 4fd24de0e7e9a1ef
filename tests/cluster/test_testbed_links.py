"""Links, quotas and faults of emulated hosts are what was asked for, as measured from within."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.testbed import Testbed
from trainer.errors import JobError, LauncherError

# 12.5 MB through TCP: a second at 100 Mbit/s. Prints Mbit/s as the receiver sees them.
RECEIVE = """
import socket, time
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    link.settimeout(20)
    first, total = None, 0
    while part := link.recv(1 << 16):
        first = first or time.monotonic()
        total += len(part)
    print(total * 8e-6 / (time.monotonic() - first))
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5001), timeout=20) as link:
    link.sendall(bytes(12_500_000))
"""
# Answers 30 datagrams, or times as many round trips and prints their median in milliseconds.
ECHO = """
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
    link.bind(("", 5002))
    link.settimeout(20)
    print("ready", flush=True)
    for _ in range(30):
        text, where = link.recvfrom(100)
        link.sendto(text, where)
"""
PING = """
import socket, statistics, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
    link.settimeout(20)
    times = []
    for _ in range(30):
        started = time.monotonic()
        link.sendto(b"x", (sys.argv[1], 5002))
        link.recv(100)
        times.append(time.monotonic() - started)
print(1000 * statistics.median(times))
"""
# Answers each message of 32 kB; times some of them, each after a pause; prints the median in milliseconds.
ANSWER = """
import socket
with socket.create_server(("", 5004)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    link.settimeout(20)
    for _ in range(10):
        left = 32_000
        while left:
            left -= len(link.recv(left))
        link.sendall(b"x")
"""
ONE_MESSAGE = """
import socket, statistics, sys, time
with socket.create_connection((sys.argv[1], 5004), timeout=20) as link:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    times = []
    for _ in range(10):
        time.sleep(0.02)
        started = time.monotonic()
        link.sendall(bytes(32_000))
        link.recv(1)
        times.append(time.monotonic() - started)
print(1000 * statistics.median(times))
"""
# Holds a connection open for ever; says in 2 s what came through it.
HOLD = """
import socket
with socket.create_server(("", 5003)) as server:
    print("ready", flush=True)
    server.accept()[0].recv(1)
"""
HEAR = """
import socket, sys
with socket.create_connection((sys.argv[1], 5003), timeout=20) as link:
    print("connected", flush=True)
    sys.stdin.readline()
    link.settimeout(2)
    try:
        print("heard", link.recv(1))
    except TimeoutError:
        print("silence")
"""
BUSY = """
import time
until = time.monotonic() + 2
while time.monotonic() < until:
    pass
print(time.process_time())
"""
# Holds a connection open until the other side has been asked what rules its sending.
ASKED = """
import socket
with socket.create_server(("", 5004)) as server:
    print("ready", flush=True)
    link, _ = server.accept()
    print(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
    link.recv(1)
"""
ASKING = """
import socket, sys
with socket.create_connection((sys.argv[1], 5004), timeout=20) as link:
    print(link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode())
"""


# A checkout may lie below /tmp, which hosts have for themselves.
PYTHON = [Path(sys.prefix), Path(sys.base_prefix)]


@pytest.fixture(scope="module")
def pair(cluster_machine):
    """Two hosts without Slurm, of a tenth of a core each."""
    testbed = Testbed.up(
        2, slurm=False, cpus_per_host=0.1, name=f"links-{os.getpid()}", tied=True, shared=PYTHON
    )
    yield testbed
    testbed.down()


def between(testbed: Testbed, serve: str, use: str, server: str, client: str) -> tuple[str, str]:
    """Run one program in each of two hosts; what they print."""
    line = testbed.argv(server, [sys.executable, "-c", serve], cwd="/")
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            used = testbed.exec(client, [sys.executable, "-c", use, server], cwd="/")
            assert used.returncode == 0, used.stderr
            told, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    return told, used.stdout


def megabits(testbed: Testbed, sender: str, receiver: str) -> float:
    return float(between(testbed, RECEIVE, SEND, receiver, sender)[0])


def round_trip_ms(testbed: Testbed, one: str, other: str) -> float:
    return float(between(testbed, ECHO, PING, other, one)[1])


@pytest.mark.parametrize(("sender", "receiver"), [("n1", "n2"), ("n2", "n1")])
def test_a_shaped_link_carries_its_rate_in_both_directions(cluster, sender, receiver):
    # Of 1514 bytes on the wire 1448 are payload: 95.6 of 100 Mbit/s.
    cluster.shape("n1", "100mbit")
    assert 90 < megabits(cluster, sender, receiver) < 98
    cluster.shape("n1", None)
    assert megabits(cluster, sender, receiver) > 200


def test_a_message_after_a_pause_takes_its_bytes_time_too(cluster):
    # 32,000 bytes are 2.68 ms at 100 Mbit/s with their headers; a link that saves up takes none for them.
    cluster.shape("n1", "100mbit")
    assert 2.2 < float(between(cluster, ANSWER, ONE_MESSAGE, "n2", "n1")[1]) < 4.5
    cluster.shape("n1", None)
    assert float(between(cluster, ANSWER, ONE_MESSAGE, "n2", "n1")[1]) < 2


def test_connections_share_a_link_by_linux_own_rule_whatever_the_machine_takes(cluster):
    served, asked = between(cluster, ASKED, ASKING, "n2", "n1")
    assert (served.split(), asked.split()) == (["cubic"], ["cubic"])


def test_a_delay_is_added_to_each_round_trip_and_taken_away_again(cluster):
    before = round_trip_ms(cluster, "n1", "n2")
    cluster.set_delay("n1", "20ms")
    assert 20 < round_trip_ms(cluster, "n1", "n2") - before < 26
    cluster.set_delay("n2", "10ms")
    assert 30 < round_trip_ms(cluster, "n1", "n2") - before < 38
    cluster.set_delay("n1", "0s")
    cluster.set_delay("n2", None)
    assert round_trip_ms(cluster, "n1", "n2") < before + 10


def test_a_host_gets_its_share_of_the_cpu_and_no_more(pair):
    # Two seconds at a tenth of a core; without the quota a busy machine still gives more than half a second.
    done = pair.exec("n1", [sys.executable, "-c", BUSY], cwd="/")
    assert 0.02 < float(done.stdout) < 0.35
    assert "links-" in pair.exec("n1", ["ssh", "n2", "cat /proc/self/cgroup"]).stdout


def test_jobs_of_slurm_run_within_the_quota(cluster_machine, tmp_path):
    testbed = Testbed.up(1, cpus_per_host=0.5, name=f"quota-{os.getpid()}", tied=True, shared=PYTHON)
    try:
        groups = testbed.exec("ctl", ["srun", "cat", "/proc/self/cgroup"], cwd="/").stdout
        assert f"/cingulum-testbed-quota-{os.getpid()}/n1" in groups
    finally:
        testbed.down()


def test_a_cut_link_carries_nothing_until_it_is_mended(cluster):
    reach = ["ssh", "-o", "ConnectTimeout=2", "n2", "hostname"]
    cluster.link("n2", False)
    assert cluster.exec("n1", reach).returncode == 255
    assert cluster.exec("n2", ["hostname"]).stdout == "n2\n"  # the host itself runs on
    assert not state(cluster, "n2")["link"]
    cluster.link("n2", True)
    assert cluster.exec("n1", reach).stdout == "n2\n"


def state(testbed: Testbed, host: str) -> dict[str, object]:
    return next(one for one in testbed.status()["host_states"] if one["host"] == host)


def wait_for_state(testbed: Testbed, host: str, *wanted: str) -> None:
    until = time.monotonic() + 60
    while (found := state(testbed, host)["slurm"]) not in wanted:
        assert time.monotonic() < until, f"{host} is {found}, never {wanted}"
        time.sleep(0.2)


def test_a_host_without_power_is_gone_until_it_is_booted(cluster):
    cluster.exec("n3", ["touch", "/run/before"])
    cluster.power_off("n3")
    assert not state(cluster, "n3")["up"]
    with pytest.raises(LauncherError, match="n3 is powered off"):
        cluster.exec("n3", ["hostname"])
    wait_for_state(cluster, "n3", "down", "down*", "idle*")
    cluster.boot("n3")
    wait_for_state(cluster, "n3", "idle")
    assert cluster.exec("ctl", ["srun", "-w", "n3", "hostname"]).stdout == "n3\n"
    assert "before" not in cluster.exec("n3", ["ls", "/run"]).stdout


def test_a_host_that_loses_its_power_says_no_goodbye(pair):
    holding = pair.argv("n2", [sys.executable, "-c", HOLD], cwd="/")
    hearing = pair.argv("n1", [sys.executable, "-c", HEAR, "n2"], cwd="/")
    pipe = subprocess.PIPE
    with subprocess.Popen(holding, stdout=pipe, text=True) as holder:
        assert holder.stdout.readline() == "ready\n"
        with subprocess.Popen(hearing, stdin=pipe, stdout=pipe, text=True) as hearer:
            assert hearer.stdout.readline() == "connected\n"
            pair.power_off("n2")
            told, _ = hearer.communicate("now\n", timeout=30)
    pair.settle()
    assert told == "silence\n"


def test_a_killed_slurmd_is_missed_and_comes_back(cluster):
    cluster.kill_slurmd("n2")
    with pytest.raises(LauncherError, match="slurmd does not run on n2"):
        cluster.kill_slurmd("n2")
    wait_for_state(cluster, "n2", "down", "down*", "idle*")
    cluster.start_slurmd("n2")
    wait_for_state(cluster, "n2", "idle")


def test_a_queued_job_outlives_its_controller(cluster):
    asked = ["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true"]
    number = cluster.exec("ctl", asked).stdout.strip()
    cluster.restart_controller()
    assert number in cluster.exec("ctl", ["squeue", "-h", "-o", "%A"]).stdout.split()


def test_settling_ends_jobs_and_mends_what_was_broken(cluster):
    cluster.exec("ctl", ["sbatch", "-N2", "--output=/dev/null", "--wrap", "srun -n2 -N2 sleep 600"])
    cluster.power_off("n1")
    cluster.link("n2", False)
    cluster.kill_slurmd("n3")
    cluster.shape("n3", "1mbit")
    cluster.settle()
    assert megabits(cluster, "n3", "n1") > 100
    assert cluster.exec("ctl", ["squeue", "-h"]).stdout == ""
    assert {one["slurm"] for one in cluster.status()["host_states"]} == {None, "idle"}


@pytest.mark.parametrize("host", ["n4", "n0", "ctl2", "../n1", "", "-n1"])
def test_a_host_that_is_not_there_is_told(cluster, host):
    with pytest.raises(JobError, match="no host"):
        cluster.exec(host, ["hostname"])


def test_a_command_that_takes_too_long_is_killed_in_its_host(cluster):
    with pytest.raises(LauncherError, match=r"did not end within 0.5 s"):
        cluster.exec("n1", ["sleep", "54321"], timeout=0.5)
    until = time.monotonic() + 10
    while "54321" in cluster.exec("n1", ["ps", "ax"]).stdout:
        assert time.monotonic() < until, "it runs on"
