"""What people see of a run."""

from __future__ import annotations

from trainer import progress
from trainer.progress import Counting, Reporter, Shown


def test_without_a_terminal_there_is_a_line_per_epoch_and_one_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Shown() as shown:
        shown.start(10, 20)
        shown.step(15, 2, 3.25)
        shown.epoch({"epoch": 2, "loss": 0.5, "val_auc": None, "samples_per_second": 3.0})
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("epoch   2  step 15/20  3.2 samples/s") and first.endswith("left")
    assert second == "epoch   2  loss 0.5000  3.0 samples/s"


def test_lines_are_rare(capsys):
    with Shown() as shown:
        shown.start(0, 100)
        for step in range(1, 50):
            shown.step(step, 1, 1.0)
    assert capsys.readouterr().err == ""


def test_what_is_counted_before_the_training_is_told_too(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Shown() as shown:
        with shown.counting("copying", "MiB") as show:
            show(0, 4)
            show(1, 4)
        shown.start(0, 2)
        shown.step(1, 1, 3.0)
    copying, training = capsys.readouterr().err.splitlines()
    assert copying.startswith("copying: 1 of 4 MiB, ")
    assert training.startswith("epoch   1  step 1/2")


def test_counting_takes_the_place_of_the_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Shown() as shown:
        with shown.counting("copying", "MiB") as show:
            show(1, 2)
            show(2, 2)
        shown.start(0, 2)
        shown.step(2, 1, 3.0)
    told = capsys.readouterr().err
    assert "copying" in told and told.index("2/2") < told.rindex("epoch 1")


def test_counting_says_a_line_now_and_then_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with Counting("making", "phantoms") as counting:
        counting.show(10, 20)
        counting.show(15, 20)
        counting.note("one is odd [b]")
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("making: 15 of 20 phantoms, 0:00:0") and first.endswith("left")
    assert second == "one is odd [b]"


def test_counting_nothing_says_nothing(capsys):
    with Counting("making", "phantoms"):
        pass
    assert capsys.readouterr() == ("", "")


def test_counting_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Counting("making", "phantoms") as counting:
        counting.show(1, 2)
        counting.show(2, 2)
    assert "2/2" in capsys.readouterr().err


def test_other_ranks_say_nothing(capsys):
    silent = Reporter()
    silent.note("x")
    with silent.counting("copying", "MiB") as show:
        show(1, 2)
    silent.start(0, 1)
    silent.step(1, 1, 1.0)
    silent.epoch({"epoch": 1})
    assert capsys.readouterr() == ("", "")
