"""A store whose file is damaged is said to be so by every command, and made again when that is asked for."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from pretended_slurm import submit

from cingulum.cli import app

COMMANDS = [
    ["jobs"],
    ["jobs", "--all", "--json"],
    ["show", "4711"],
    ["logs", "4711"],
    ["wait", "4711", "--timeout", "0"],
    ["requeue", "4711"],
    ["cancel", "4711"],
    ["submit", "mine.yaml", "name=other"],
]
# The list and a submission need no index of labels, and `submit` reads no row but those of its run folder.
OF_ONE_JOB = COMMANDS[2:-1]
OF_ROWS = COMMANDS[:-1]


def no_database(content: bytearray, page: Callable[[str], int]) -> None:
    content[:16] = b"not a database!!"


def newer_format(content: bytearray, page: Callable[[str], int]) -> None:
    content[47] = 9  # https://sqlite.org/fileformat2.html, 1.3.10


def cut(content: bytearray, page: Callable[[str], int]) -> None:
    del content[len(content) // 2 // 4096 * 4096 :]


def names_that_are_no_text(content: bytearray, page: Callable[[str], int]) -> None:
    at = content.index(b"tablejobsjobs")
    content[at + 5 : at + 13] = b"\xdc\xff" * 4


def no_table(content: bytearray, page: Callable[[str], int]) -> None:
    content[:] = content.replace(b"tablejobsjobs", b"tablejxbsjxbs").replace(b"TABLE jobs ", b"TABLE jxbs ")


def no_text(content: bytearray, page: Callable[[str], int]) -> None:
    at = content.index(b'"kind": "train"')
    content[at + 9 : at + 14] = b"\xff" * 5


def no_json(content: bytearray, page: Callable[[str], int]) -> None:
    content[:] = content.replace(b'"kind": "train"', b'"kind"; "train"')


def no_state(content: bytearray, page: Callable[[str], int]) -> None:
    at = page("tasks")
    content[at : at + 4096] = content[at : at + 4096].replace(b"PENDING", b"DREAMED")


def index(content: bytearray, page: Callable[[str], int]) -> None:
    at = page("ix_jobs_label")
    content[at : at + 4096] = content[at : at + 4096].replace(b"4711", b"9911")


@pytest.mark.parametrize(
    ("damage", "commands"),
    [
        (no_database, COMMANDS),
        (newer_format, COMMANDS),
        (cut, COMMANDS),
        (names_that_are_no_text, COMMANDS),
        (no_table, COMMANDS),
        (no_text, OF_ROWS),
        (no_json, OF_ROWS),
        (no_state, OF_ROWS),
        (index, OF_ONE_JOB),
    ],
)
def test_every_command_says_so_and_jobs_rebuild_mends_it(slurm, tmp_path, capsys, damage, commands) -> None:
    submit(capsys)
    file = tmp_path / "home" / "jobs.db"
    content = bytearray(whole(file))
    before = bytes(content)
    damage(content, lambda name: root_page(file, name))
    assert content != before
    for words in commands:
        write(file, content)
        capsys.readouterr()
        assert app.run(words) == 1, words
        said = capsys.readouterr().err
        assert f"{file} is damaged: " in said and "cingulum jobs --rebuild" in said, words
        assert said.isascii() and len(said.splitlines()) == 2
    write(file, content)
    assert app.run(["jobs", "--all", "--rebuild", "--json"]) == 0
    told = capsys.readouterr()
    assert "the damaged store is kept as" in told.err
    assert [job["id"] for job in json.loads(told.out)["jobs"]] == ["4711"]
    assert app.run(["show", "4711"]) == 0


def whole(file: Path) -> bytes:
    """The content of the store, its log included."""
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return file.read_bytes()


def root_page(file: Path, name: str) -> int:
    """Where the first page of a table or index begins; those of one job have no second."""
    connection = sqlite3.connect(file)
    (number,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name]).fetchone()
    connection.close()
    return (number - 1) * 4096


def write(file: Path, content: bytes) -> None:
    for path in file.parent.glob("jobs.db*"):
        if ".damaged-" not in path.name:
            path.unlink()
    file.write_bytes(content)
