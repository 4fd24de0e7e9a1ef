"""The testbed itself: hosts that are apart, a Slurm that runs on them, and ssh between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from jobs.local import mpirun
from jobs.testbed import Testbed


def out(done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_job_runs_on_every_host_and_each_says_its_own_name(cluster: Testbed):
    assert set(out(cluster.exec("ctl", ["srun", "-N3", "hostname"])).split()) == {"n1", "n2", "n3"}


def test_hosts_have_their_own_tmp_and_shared_memory_and_nothing_of_the_machines(cluster: Testbed):
    for place in ("/tmp", "/dev/shm", "/run"):  # noqa: S108
        out(cluster.exec("n1", ["touch", f"{place}/of-n1"]))
        assert "of-n1" in out(cluster.exec("n1", ["ls", place]))
        assert "of-n1" not in out(cluster.exec("n2", ["ls", place]))


def test_hosts_have_an_etc_of_their_own_that_no_change_on_the_machine_pulls_away(cluster: Testbed):
    mounts = out(cluster.exec("n1", ["cut", "-d ", "-f5", "/proc/self/mountinfo"])).split()
    # A single file that is mounted comes off when the file below it is replaced, as useradd does.
    assert [place for place in mounts if place.startswith("/etc")] == ["/etc"]
    assert out(cluster.exec("n1", ["id", "-un", cluster.user])) == cluster.user
    assert cluster.user not in Path("/etc/passwd").read_text()
    machines = {path.read_bytes() for path in Path("/etc/ssh").glob("ssh_host_*_key")}
    assert not machines & {path.read_bytes() for path in (cluster.folder / "etc").rglob("*_key")}


def test_hosts_see_the_folders_they_share(cluster: Testbed, tmp_path):
    out(cluster.exec("n1", ["sh", "-c", "echo hello > from-n1"], cwd=tmp_path))
    assert (tmp_path / "from-n1").read_text() == "hello\n"
    assert out(cluster.exec("n2", ["cat", f"{tmp_path}/from-n1"])) == "hello"


def test_a_command_in_a_host_keeps_its_streams_and_its_exit_code(cluster: Testbed):
    done = cluster.exec("n2", ["sh", "-c", "cat; echo wrong >&2; exit 7"], stdin="told\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "told\n", "wrong\n")
    assert cluster.exec("n2", ["sh", "-c", "kill -9 $$"]).returncode == -9


def test_root_and_the_user_without_rights_reach_other_hosts_by_ssh(cluster: Testbed):
    assert out(cluster.exec("n1", ["ssh", "n2", "hostname; id -un"])).split() == ["n2", "root"]
    as_user = cluster.exec("n1", ["ssh", "n3", "hostname; id -un"], user=cluster.user)
    assert out(as_user).split() == ["n3", cluster.user]
    roots_key = cluster.folder.joinpath("etc", "ssh", "keys", "root", "id")
    assert roots_key.is_file()
    assert not cluster.exec("n1", ["cat", str(roots_key)], cluster.user).stdout


def test_a_command_by_ssh_runs_nothing_of_roots_own(cluster: Testbed):
    # bash would read ~/.bashrc first, and wait for what a host that lost its power has locked there.
    assert out(cluster.exec("ctl", ["ssh", "n1", "echo ${BASH_VERSION:-no bash}"])) == "no bash"


def test_mpirun_starts_ranks_on_other_hosts_by_ssh(cluster: Testbed):
    line, environment = mpirun.command(3, ["hostname"], hosts={"n1": 1, "n2": 1, "n3": 1})
    done = cluster.exec("n1", line, environment=environment)
    assert sorted(out(done).split()) == ["n1", "n2", "n3"]


def test_the_command_passes_on_streams_exit_code_and_closed_pipes(cluster: Testbed):
    name = cluster.settings.name
    line = [sys.executable, "-m", "cingulum", "testbed", "exec", "--name", name, "n2", "--"]
    asked = [*line, "sh", "-c", 'cat; hostname >&2; echo "$1"; exit 9', "sh", "--a 'b' $(c)"]
    done = subprocess.run(asked, input="told\n", capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (9, "told\n--a 'b' $(c)\n", "n2\n")
    done = subprocess.run([*line, "sh", "-c", "kill -9 $$"], capture_output=True, timeout=60)
    assert done.returncode == -9
    with subprocess.Popen([*line, "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as endless:
        assert endless.stdout.readline() == b"y\n"
        endless.stdout.close()
        assert endless.wait(timeout=60) == -13
        assert endless.stderr.read() == b""


def test_a_testbed_that_was_made_under_a_closed_umask_runs_jobs_of_its_user(cluster_machine):
    before = os.umask(0o077)
    try:
        made = Testbed.up(1, name=f"umask-{os.getpid()}", tied=True)
    finally:
        os.umask(before)
    try:
        home = made.folder / "home" / made.user
        asked = ["sbatch", "--wait", f"--output={home}/out", "--wrap", "id -un"]
        out(made.exec("n1", asked, user=made.user))
        assert (home / "out").read_text() == f"{made.user}\n"
    finally:
        made.down()


def test_status_tells_of_every_host_as_json(cluster: Testbed):
    line = [sys.executable, "-m", "cingulum", "testbed", "status", "--name", cluster.settings.name, "--json"]
    (told,) = json.loads(subprocess.run(line, capture_output=True, timeout=60, check=True).stdout)
    assert told["name"] == cluster.settings.name
    assert told["host_states"][1] == {
        "host": "n1",
        "address": "10.99.0.11",
        "up": True,
        "link": True,
        "slurm": "idle",
    }


def submit_and_wait_for_sacct(made: Testbed, does: str, wanted: str) -> str:
    asked = ["sbatch", "--wait", "--parsable", "--output=/dev/null", "--wrap", does]
    number = made.exec("ctl", asked).stdout.strip()
    ask = ["sacct", "-nPX", "-j", number, "-o", "State,ExitCode"]
    until = time.monotonic() + 30
    while (told := made.exec("ctl", ask).stdout) != wanted:
        assert time.monotonic() < until, told
        time.sleep(0.2)
    return number


def test_accounting_tells_of_ended_jobs(cluster_with_accounting: Testbed):
    submit_and_wait_for_sacct(cluster_with_accounting, "exit 3", "FAILED|3:0\n")
    database = cluster_with_accounting.folder / "db"
    assert database.stat().st_mode & 0o077 == 0  # it has no password


def test_the_controllers_host_comes_back_with_slurmctld_and_the_accounting(cluster_with_accounting: Testbed):
    made = cluster_with_accounting
    before = submit_and_wait_for_sacct(made, "true", "COMPLETED|0:0\n")
    made.power_off("ctl")
    made.boot("ctl")
    made.settle()
    # How the young job ended, slurmctld may have forgotten; the database knows that there was one.
    assert out(made.exec("ctl", ["sacct", "-nPX", "-j", before, "-o", "JobID"])) == before
    submit_and_wait_for_sacct(made, "true", "COMPLETED|0:0\n")
