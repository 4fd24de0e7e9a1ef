"""What waits on another host than the batch script's lets the job do without that one, where it is down."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import supervised_folder

# Of a job that was requeued by Slurm when its host was lost, and of what it is told.
SCONTROL = """#!/bin/sh
echo "$@" >> "$0.told"
[ "$1" = update ] && exit 0
excluded=; grep -q ExcNodeList "$0.told" && excluded=n1
echo "JobId=7 JobState=PENDING Restarts=1 ExcNodeList=$excluded "
"""
SINFO = "#!/bin/sh\nprintf 'n1 idle\\nn2 idle\\nn3 idle\\n' | sed 's/{down} idle/{down} down*/'\n"


@pytest.mark.parametrize("down", ["n1", "n2"])
def test_the_host_of_the_batch_script_is_left_out_where_it_is_down(tmp_path: Path, down: str) -> None:
    supervised_folder.fill(tmp_path / "job")
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for name, text in (("scontrol", SCONTROL), ("sinfo", SINFO.format(down=down))):
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    given = ["--label=7", f"--folder={tmp_path / 'job'}", "--requeues=3", "--least-nodes=2"]
    given += ["--ranks-per-node=2", "--witness=n1", "--hosts=n[1-3]", "--nodes=3", "--cores=1"]
    command = [sys.executable, "-I", "-B", str(tmp_path / "job" / "supervisor"), *given]
    log = tmp_path / "job" / "out.log"
    with subprocess.Popen(command, env={"PATH": f"{stubs}:/usr/bin:/bin"}) as process:
        deadline = time.monotonic() + 60
        while not log.exists() and time.monotonic() < deadline:  # it holds its signals before it opens this
            time.sleep(0.01)
        process.terminate()
        assert process.wait(60) == 0
    told = stubs / "scontrol.told"
    assert told.exists() is (down == "n1")
    if down == "n1":
        assert "update JobId=7 ExcNodeList=n1 NumNodes=2 NumTasks=4 NumCPUs=4\n" in told.read_text()
        assert "continues with 2 hosts, without n1" in log.read_text()
