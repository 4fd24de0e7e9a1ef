"""The command line itself: how it ends."""

from __future__ import annotations

import builtins
import errno
import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer

from cingulum import __main__
from cingulum.cli import app as cli
from cingulum.cli.app import COMMANDS
from trainer.errors import ConfigError, Stopped, TrainingError


@pytest.fixture
def ends_with(monkeypatch):
    """Make `cingulum train` raise something instead; returns its exit code."""

    def run(error: BaseException, command: str = "train") -> int:
        def fail() -> None:
            raise error

        app = typer.Typer()
        app.callback()(lambda: None)
        app.command(command)(fail)
        monkeypatch.setattr(cli, "command_line", lambda: typer.main.get_command(app))
        return cli.run([command])

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_a_usage_error_with_the_address_of_the_help(name, capsys):
    assert cli.run([name, "--no-such-option"]) == 2
    said = capsys.readouterr().err
    assert f"cingulum {name} --help" in said
    assert "--no-such-option" in said


def test_a_mistyped_command_is_a_usage_error_that_suggests_one(capsys):
    assert cli.run(["trian"]) == 2
    assert "train" in capsys.readouterr().err


def test_no_arguments_show_the_help(capsys):
    assert cli.run([]) == 2
    shown = capsys.readouterr()
    assert "doctor" in shown.out + shown.err


def test_an_error_is_told_with_its_cure_and_gives_its_exit_code(ends_with, capsys):
    assert ends_with(ConfigError("a.yaml: is wrong.", cure="Mend it.")) == 2
    assert capsys.readouterr().err == "error: a.yaml: is wrong.\n  Mend it.\n"
    assert ends_with(TrainingError("went wrong")) == 1


def test_being_stopped_is_news_and_no_error(ends_with, capsys):
    assert ends_with(Stopped("saved at step 3")) == 75
    assert capsys.readouterr().err == "saved at step 3\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("phantom", "interrupted; the same command goes on where it stopped\n"),
        ("import", "interrupted; the same command goes on where it stopped\n"),
        ("train", "interrupted; the same command with --resume goes on from the last checkpoint\n"),
        ("verify", "interrupted\n"),
    ],
)
def test_ctrl_c_says_how_to_go_on_and_ends_in_130(ends_with, capsys, command, said):
    assert ends_with(KeyboardInterrupt(), command) == 130
    assert capsys.readouterr().err == said


def test_a_reader_who_has_seen_enough_is_no_error():
    code = "import sys; from cingulum.cli import app; sys.exit(app.run(['--help']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_pipe_that_rich_meets_is_no_error(ends_with):
    gone = SystemExit(1)
    gone.__context__ = BrokenPipeError()
    assert ends_with(gone) == 0


@pytest.mark.parametrize(("number", "exit_code"), [(errno.EACCES, 2), (errno.EISDIR, 2), (errno.EIO, 1)])
def test_an_error_of_the_file_system_names_the_file(ends_with, capsys, number, exit_code):
    assert ends_with(OSError(number, os.strerror(number), "out/table.csv")) == exit_code
    cure = "  Give another path, or one that you may read and write.\n" if exit_code == 2 else ""
    assert capsys.readouterr().err == f"error: out/table.csv: {os.strerror(number)}.\n{cure}"


def test_a_fault_of_ours_keeps_its_traceback(ends_with):
    with pytest.raises(KeyError):
        ends_with(KeyError("x"))


def test_ctrl_c_while_the_command_is_imported_is_answered_in_words(monkeypatch, capsys):
    plain = builtins.__import__

    def interrupted(name, *how):
        if name == "cingulum.cli" and how[2] == ("app",):
            raise KeyboardInterrupt
        return plain(name, *how)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit, match="130"):
        __main__.main()
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["train", "x.yaml", "--epochs", "3"],
            "--epochs is a key of the configuration: write train.epochs=3",
        ),
        (["train", "x.yaml", "--epochs=3", "--resume"], "write train.epochs=3"),
        (["train", "x.yaml", "--train.epochs=3"], "write train.epochs=3"),
        (["crossval", "x.yaml", "--global-batch", "8"], "write train.global_batch=8"),
        (["submit", "x.yaml", "--lr", "1e-3"], "write train.optimizer.learning_rate=1e-3"),
        (["train", "x.yaml", "--learning-rat", "0.1"], "write train.optimizer.learning_rate=0.1"),
        (["train", "x.yaml", "--deterministic"], "write train.deterministic=true"),
        (
            ["train", "x.yaml", "--seed", "1"],
            "one of these keys of the configuration: write data.split.seed=1, tr",
        ),
        (["train", "x.yaml", "--probability", "1"], "and 5 more"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_what_to_write(arguments, said, capsys):
    assert cli.run(arguments) == 2
    shown = capsys.readouterr().err
    assert "No such option" in shown
    assert said in shown


@pytest.mark.parametrize(
    "arguments", [["train", "x.yaml", "--zzz"], ["inspect", "--epochs"], ["train", "-q"]]
)
def test_an_option_that_is_like_no_key_is_a_usage_error_and_no_more(arguments, capsys):
    assert cli.run(arguments) == 2
    assert "configuration" not in capsys.readouterr().err


def test_the_version_is_shown_without_loading_what_trains():
    code = (
        "import sys; from cingulum.cli import app\n"
        "ended = app.run(['--version'])\n"
        "sys.exit(ended or any(m in sys.modules for m in ('tensorflow', 'keras', 'numpy', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"cingulum {version('cingulum')}\n"
