"""The processes of a peer: what they are asked, how they are started, and that all of them end."""

import sys
import time

import pytest
from wording import fails_with

from benchmarks.peers import cells, starting
from benchmarks.peers.job import PeerJob, PeerProcess
from cingulum.bench.processes import Process, Running
from jobs.testbed import Testbed
from jobs.testbed.layout import Settings
from trainer.bench.scaling.cells import Cell
from trainer.errors import ConfigError, InputError, WorldError

GOOD = (
    "import sys; print('ready'); print('chatter'); sys.stdin.readline(); print('done {}'); sys.stdin.read()"
)
FAILS = "import sys; print('ready'); sys.stdin.readline(); sys.exit('no memory left')"
HANGS = "import time; time.sleep(60)"
DEAF = "import time; print('ready', flush=True); time.sleep(60)"


def processes(*programs):
    return [
        Process("ddp", f"rank {rank}", (sys.executable, "-uc", program))
        for rank, program in enumerate(programs)
    ]


def ended(running):
    return all(process.poll() is not None for process in running._started.values())


def test_all_are_ready_before_any_goes_on_and_end_when_their_input_closes():
    wanted = processes(GOOD, GOOD)
    with Running(wanted) as running:
        assert set(running.hear(wanted, 20, "ready")) == set(wanted)
        running.say("go")
        assert set(running.hear(wanted, 20, "done").values()) == {" {}\n"}
        assert not ended(running)
    assert ended(running) and all(process.returncode == 0 for process in running._started.values())


def test_one_that_fails_is_named_with_its_last_words_and_the_others_end():
    wanted = processes(GOOD, FAILS)
    with (
        pytest.raises(WorldError, match=r"ddp: rank 1 failed \(exit code \d+\):\nno memory left"),
        Running(wanted) as running,
    ):
        running.hear(wanted, 20, "ready")
        running.say("go")
        # Rank 0 may have been quicker.
        running.hear(wanted, 20, "done")
    assert ended(running)


def test_one_that_is_late_is_named_and_all_end_though_they_do_not_listen():
    wanted = processes(GOOD, DEAF, HANGS)
    began = time.monotonic()
    with (
        fails_with(WorldError),
        Running(wanted) as running,
    ):
        running.hear(wanted, 1, "ready")
    assert ended(running) and time.monotonic() - began < 20


def test_a_program_that_is_not_there_leaves_no_process():
    wanted = [*processes(GOOD), Process("ddp", "rank 1", ("/nowhere/python",))]
    running = Running(wanted)
    with pytest.raises(FileNotFoundError):
        running.__enter__()
    assert len(running._started) == 1 and ended(running)


def test_a_rank_ends_with_its_starter(tmp_path):
    """The starter's end closes the rank's input, whatever the rank is doing then."""
    program = "from benchmarks.peers import work; s = work.Starter(); s.say_ready(); s.wait_for_go()"
    wanted = processes(program)
    with Running(wanted) as running:
        running.hear(wanted, 20, "ready")
        (process,) = running._started.values()
        process.stdin.close()
        assert process.wait(20) == 0


def test_what_is_not_installed_is_told_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert starting.missing("multiworker", tmp_path) is None
    assert starting.missing("ddp", tmp_path) == "not installed: make bench-peers"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    (tmp_path / "lib" / "python3" / "site-packages" / "torch").mkdir(parents=True)
    assert starting.missing("ddp", tmp_path) == "keras not installed: make bench-peers"
    (tmp_path / "lib" / "python3" / "site-packages" / "keras").mkdir()
    assert starting.missing("ddp", tmp_path) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peer": "horovod"}, "Unknown peer 'horovod'"),
        ({"peer": "ddp", "options": {"bucket_mb": 1}}, "ddp has no option 'bucket_mb'"),
        ({"peer": "ddp", "options": {"bucket_cap_mb": "1"}}, "bucket_cap_mb='1' is not a valid float"),
        (
            {"peer": "multiworker", "options": {"starting_threads": True}},
            "starting_threads=True is not a valid int",
        ),
        ({"peer": "multiworker", "options": {"bytes_per_pack": 0}}, "bytes_per_pack=0 is not a valid int"),
        ({"peer": "tf-parameter-server", "servers": 1, "options": {"placement": "up"}}, "placement='up'"),
        ({"peer": "ddp", "servers": 1}, "ddp cannot have 1 servers"),
        ({"peer": "tf-parameter-server"}, "tf-parameter-server cannot have 0 servers"),
        ({"peer": "ddp", "ranks": 0}, "ranks=0 must be 1 or more"),
        ({"peer": "ddp", "optimizer": "lamb"}, "not 'lamb'"),
    ],
)
def test_what_a_peer_cannot_do_is_refused(fields, said):
    with pytest.raises(InputError, match=said):
        PeerJob(**fields)


def test_a_task_survives_its_command_line_and_knows_its_place():
    job = PeerJob("tf-parameter-server", ranks=2, servers=2, options={"placement": "colocated"})
    addresses = tuple(f"n{number}:{7000 + number}" for number in range(5))
    lines = [PeerProcess(job, addresses, index, "eth0").to_json() for index in range(5)]
    processes = [PeerProcess.from_json(line) for line in lines]
    assert [(process.kind, process.number) for process in processes] == [
        ("rank", 0),
        ("rank", 1),
        ("server", 0),
        ("server", 1),
        ("coordinator", 0),
    ]
    assert processes[0].job == job and processes[3].addresses_of("server") == ["n2:7002", "n3:7003"]
    assert processes[4].hosts == ("n0", "n1", "n2", "n3", "n4")


def test_processes_of_a_cell_are_where_the_study_says(tmp_path):
    testbed = Testbed(Settings(hosts=4), tmp_path)
    ranks = Cell("tiny", strategy="peer:ddp", ranks=4, hosts=2)
    assert cells.hosts_of(ranks, testbed) == ["n1", "n1", "n2", "n2"]
    served = Cell("tiny", strategy="peer:tf-parameter-server", ranks=2, hosts=2, servers=2)
    assert cells.hosts_of(served, testbed) == ["n1", "n2", "n3", "n4", "n3"]
    beside = Cell(
        "tiny",
        strategy="peer:tf-parameter-server",
        ranks=2,
        hosts=2,
        servers=2,
        options={"placement": "colocated"},
    )
    assert cells.hosts_of(beside, testbed) == ["n1", "n2", "n1", "n2", "n1"]


def test_a_cell_that_a_peer_cannot_measure_is_a_row_that_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    cell = Cell("tiny", strategy="peer:ddp", ranks=2, hosts=2)
    assert "on this host or on a testbed" in cells.measure(cell, None, print).error
    ours = Cell("tiny", strategy="peer:ddp", ranks=2)
    monkeypatch.setattr(starting, "ENVIRONMENT", tmp_path)
    assert cells.measure(ours, None, print).error == "not installed: make bench-peers"
    odd = Cell("tiny", strategy="peer:ddp", ranks=2, options={"x": 1})
    assert "no option 'x'" in cells.measure(odd, None, print).error
    with fails_with(ConfigError):
        cells.measure(Cell("tiny"), None, print)
