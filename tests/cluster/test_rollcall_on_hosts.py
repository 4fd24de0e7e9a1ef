"""Who no longer answers, asked over real links: a cut one, and a process that was stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOSTS = ("n1", "n1", "n2", "n3")
# Four Pythons start on two busy cores.
START_S = 90


def test_ranks_behind_a_cut_link_and_stopped_ones_are_named(cluster, tmp_path):
    program = str(Path(__file__).with_name("rank_of_rollcall.py"))
    ranks: list[subprocess.Popen[str]] = []
    try:
        for number, host in enumerate(HOSTS):
            words = [sys.executable, program, str(tmp_path), str(number), ",".join(HOSTS)]
            line = cluster.argv(host, words, environment={"PYTHONPATH": str(ROOT)})
            ranks.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        deadline = time.monotonic() + START_S
        while not all((tmp_path / f"ready-{number}").exists() for number in range(len(HOSTS))):
            assert time.monotonic() < deadline, f"waited for ranks: {[rank.poll() for rank in ranks]}"
            time.sleep(0.05)

        def missing() -> list[str]:
            (tmp_path / "ask").touch()
            return json.loads(ranks[0].stdout.readline())

        assert missing() == []
        cluster.link("n3", False)
        assert missing() == ["rank 3 @ n3"]
        cluster.exec("n1", ["pkill", "-STOP", "-f", f"rank_of_rollcall.py {tmp_path} 1 "])
        cluster.exec("n2", ["pkill", "-KILL", "-f", f"rank_of_rollcall.py {tmp_path} 2 "])
        # The process of rank 2 has ended: how, its launcher knows.
        assert missing() == ["rank 1 @ n1", "rank 3 @ n3"]
        cluster.link("n3", True)
        cluster.exec("n1", ["pkill", "-CONT", "-f", f"rank_of_rollcall.py {tmp_path} 1 "])
        assert missing() == []
    finally:
        (tmp_path / "end").touch()
        for rank in ranks:
            rank.send_signal(signal.SIGCONT)
            try:
                rank.wait(20)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            rank.stdout.close()
