"""The testbed itself: hosts that are apart, a Slurm that runs on them, and ssh between them."""

from __future__ import annotations

from jobs.launchers import mpirun
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


def test_hosts_see_the_folders_they_share(cluster: Testbed, tmp_path):
    out(cluster.exec("n1", ["sh", "-c", "echo hello > from-n1"], cwd=tmp_path))
    assert (tmp_path / "from-n1").read_text() == "hello\n"
    assert out(cluster.exec("n2", ["cat", f"{tmp_path}/from-n1"])) == "hello"


def test_a_command_in_a_host_keeps_its_streams_and_its_exit_code(cluster: Testbed):
    done = cluster.exec("n2", ["sh", "-c", "cat; echo wrong >&2; exit 7"], given="told\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, "told\n", "wrong\n")
    assert cluster.exec("n2", ["sh", "-c", "kill -9 $$"]).returncode == -9


def test_root_and_the_user_without_rights_reach_other_hosts_by_ssh(cluster: Testbed):
    assert out(cluster.exec("n1", ["ssh", "n2", "hostname; id -un"])).split() == ["n2", "root"]
    as_user = cluster.exec("n1", ["ssh", "n3", "hostname; id -un"], user=cluster.user)
    assert out(as_user).split() == ["n3", cluster.user]
    assert not cluster.exec("n1", ["cat", f"{cluster.folder}/etc/ssh/keys/root/id"], cluster.user).stdout


def test_mpirun_starts_ranks_on_other_hosts_by_ssh(cluster: Testbed):
    line, environment = mpirun.command(3, ["hostname"], hosts={"n1": 1, "n2": 1, "n3": 1})
    done = cluster.exec("n1", line, environment=environment)
    assert sorted(out(done).split()) == ["n1", "n2", "n3"]
