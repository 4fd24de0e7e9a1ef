"""Whom the output of a failed launch names. The texts are what Open MPI 4.1.8 and, those of PRRTE, 5.0.11
wrote on emulated hosts."""

from __future__ import annotations

from jobs.supervisor import blame
from jobs.supervisor.blame import Blame

HOSTS = ("n1", "n2.site.org", "n3")

KILLED = """--------------------------------------------------------------------------
mpirun noticed that process rank 2 with PID 127 on node n3 exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
LOST = """ORTE has lost communication with a remote daemon.

  HNP daemon   : [[16751,0],0] on node ctl
  Remote daemon: [[16751,0],3] on node n2

This is usually due to either a failure of the TCP network
"""
STATUS = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[5340,1],1]
  Exit code:    3
"""
NO_PROGRAM = """mpirun was unable to find the specified executable file, and therefore did
not launch the job.  This error was first reported for process
rank 0; it may have occurred for other processes as well.

NOTE: A common cause for this error is misspelling a mpirun command
      line parameter option (remember that mpirun interprets the first
      unrecognized command line token as the executable).

Node:       n3
Executable: cingulumm
"""
KILLED_5 = """--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 32573 on node n3 exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""
STATUS_5 = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-n1-32582@1,1]
   Exit code:    3
"""
LOST_5 = """--------------------------------------------------------------------------
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-ctl-134@0,0] on node ctl
  Remote daemon: [prterun-ctl-134@0,2] on node n2

This is usually due to either a failure of the TCP network
"""


def test_mpi_5_is_understood_too() -> None:
    assert blame.read(KILLED_5, 137, hosts=HOSTS) == Blame("was killed by signal 9 (SIGKILL)", "rank 1", "n3")
    assert blame.read(STATUS_5, 3) == Blame("ended with exit code 3", "rank 1")
    lost = blame.read(LOST_5, 1, hosts=HOSTS)
    assert (lost.host, lost.lost) == ("n2.site.org", True)
    failed = "prterun was unable to reliably start one or more daemons.\n"
    assert "could not start its daemon" in blame.read(failed, 1).why


def test_a_launch_that_lost_a_host_did_not_end_well_whatever_mpirun_says() -> None:
    """Open MPI 5's ends with 0."""
    assert blame.exit_code(f"epoch 1\n{LOST_5}", 0) == 1
    assert blame.exit_code(LOST_5, 137) == 137
    assert blame.exit_code("he said: PRTE has lost communication with a remote daemon.\n", 0) == 0


def test_a_killed_rank_is_named_with_its_host_and_signal() -> None:
    found = blame.read(KILLED, 137, hosts=HOSTS)
    assert found == Blame("was killed by signal 9 (SIGKILL)", "rank 2", "n3")
    assert str(found) == "rank 2 @ n3: was killed by signal 9 (SIGKILL)"


def test_a_server_is_named_as_one_whoever_says_that_it_ended() -> None:
    roster = "rank 1 as launched is server 0 @ n2\nrank 2 as launched is server 1 @ n3\n"
    found = blame.read(roster + KILLED, 137, hosts=HOSTS)
    assert str(found) == "server 1 @ n3: was killed by signal 9 (SIGKILL)"
    assert blame.read(roster + STATUS, 3).where == "server 0"
    missing = (
        "[server 1 @ n3] error: does not answer rank 0 @ n1: it is stopped, or its host or link is down\n"
    )
    found = blame.read(missing + KILLED, 1, hosts=HOSTS)
    assert (found.where, found.lost) == ("server 1 @ n3", True)


def test_a_rank_that_spoke_is_believed_before_mpirun() -> None:
    said = "[rank 1 @ n1] no progress for 8 s while reading a batch; ending all ranks\n"
    assert blame.read(said + KILLED, 1, hosts=HOSTS).where == "rank 1 @ n1"
    trace = "[rank 0 @ n3] Traceback (most recent call last):\n[rank 0 @ n3] KeyError: 'x'\n"
    assert blame.read(trace + STATUS, 1, hosts=HOSTS) == Blame("KeyError: 'x'", "rank 0", "n3")
    assert blame.read("[rank 0 @ n3] error: no room.\n", 1) == Blame("no room.", "rank 0", "n3")


def test_a_rank_that_answers_nobody_is_taken_for_lost_and_one_that_spoke_is_not() -> None:
    missing = "[rank 2 @ n3] error: does not answer rank 0 @ n1: it is stopped, or its host or link is down\n"
    found = blame.read(missing + "[rank 0 @ n1] no progress for 8 s while computing\n", 1, hosts=HOSTS)
    assert (found.where, found.lost) == ("rank 2 @ n3", True)
    assert not blame.read("[rank 0 @ n3] error: no room.\n", 1, hosts=HOSTS).lost


def test_a_lost_daemon_is_a_lost_host_by_the_name_that_it_was_given() -> None:
    assert blame.read(LOST, 205, hosts=HOSTS) == Blame(
        "the connection to it is lost", host="n2.site.org", lost=True
    )


def test_a_host_that_does_not_answer_explains_all_else() -> None:
    found = blame.read("[rank 0 @ n1] no progress for 8 s\n" + LOST, 1, hosts=HOSTS, silent=["n3"])
    assert found.lost and found.host == "n3" and "does not answer" in found.why


def test_ssh_that_fails_names_the_host() -> None:
    found = blame.read("ssh: connect to host n3 port 22: No route to host\n", 255, hosts=HOSTS)
    assert found.lost and found.host == "n3" and "No route to host" in found.why
    found = blame.read("ssh: Could not resolve hostname n9: Name or service not known\n", 255)
    assert found.host == "n9" and found.lost


def test_a_program_that_uses_ssh_itself_is_no_lost_host() -> None:
    said = "ssh: connect to host git.example.org port 22: Connection timed out\n"
    found = blame.read(f"{said}[rank 0 @ n1] error: no labels\n", 1, hosts=HOSTS)
    assert found == Blame("no labels", "rank 0", "n1")
    lost = "ssh: connect to host n3 port 22: No route to host\n"
    assert blame.read(said + lost, 1, hosts=HOSTS).host == "n3"


def test_other_ends_are_told_as_well_as_they_can_be() -> None:
    assert blame.read(STATUS, 3) == Blame("ended with exit code 3", "rank 1")
    assert blame.read(NO_PROGRAM, 134) == Blame("there is no program cingulumm", host="n3")
    assert blame.read("", 137) == Blame("was killed by signal 9 (SIGKILL)")
    assert blame.read("", 1) == Blame("ended with exit code 1")
    assert blame.read("", 200) == Blame("was killed by signal 72")
