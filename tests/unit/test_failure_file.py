"""What a rank that fails leaves for whoever looks after its job."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from cingulum.cli import app
from jobs.supervisor import blame
from jobs.supervisor.blame import Blame
from jobs.supervisor.record import left_by_ranks
from trainer.ranks import failure_file


def test_the_first_word_of_a_process_stays_and_names_who_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_FAILURES", str(tmp_path))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    failure_file.leave("the disk is full\nMake room.", kind="TrainingError", exit_code=1, name="rank 2 @ n3")
    failure_file.leave("later", kind="WorldError", exit_code=1, name="rank 2 @ n3")
    (record,) = left_by_ranks(tmp_path)
    assert record.pop("time") > 0
    assert record == {
        **{"who": "rank 2", "host": "n3", "exit_code": 1, "kind": "TrainingError", "start": 3},
        "message": "the disk is full\nMake room.",
    }
    assert blame.read("[rank 0 @ n1] error: x", 1, left=[record]) == Blame("the disk is full", "rank 2", "n3")


def test_the_rank_that_spoke_first_is_to_blame_and_half_a_file_is_no_word(tmp_path):
    for name, time, message in [("a", 2.0, "second"), ("b", 1.0, "does not answer rank 0")]:
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"message": message, "time": time, "who": "rank 1"})
        )
    (tmp_path / "c.json").write_text('{"message": "ha')
    found = left_by_ranks(tmp_path)
    assert [record["message"] for record in found] == ["does not answer rank 0", "second"]
    assert blame.read("", 1, left=found).lost


def test_without_a_folder_or_with_one_that_is_gone_nothing_is_left_and_nothing_raised(tmp_path, monkeypatch):
    monkeypatch.delenv("CINGULUM_FAILURES", raising=False)
    failure_file.leave("x", kind="WorldError", exit_code=1)
    monkeypatch.setenv("CINGULUM_FAILURES", str(tmp_path / "gone"))
    failure_file.leave("x", kind="WorldError", exit_code=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(20)
def test_storage_that_does_not_answer_does_not_keep_a_process_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_FAILURES", str(tmp_path))
    monkeypatch.setattr(failure_file, "_PATIENCE_S", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(failure_file.atomic, "write_text", lambda path, text: answers.wait())
    failure_file.leave("x", kind="WorldError", exit_code=1)
    answers.set()


def test_what_the_file_system_says_is_left_too(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_FAILURES", str(tmp_path))
    assert app.run(["inspect", "x" * 300]) == 1
    (record,) = left_by_ranks(tmp_path)
    assert "File name too long" in record["message"]


def test_a_command_that_fails_alone_leaves_its_message(tmp_path, monkeypatch):
    monkeypatch.setenv("CINGULUM_FAILURES", str(tmp_path))
    assert app.run(["train", str(tmp_path / "none.yaml")]) == 2
    (record,) = left_by_ranks(tmp_path)
    assert (record["exit_code"], record["who"], record["host"]) == (2, "", socket.gethostname())
    assert "none.yaml" in record["message"]
