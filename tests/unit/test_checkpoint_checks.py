"""What lies among the checkpoints and is none, or another run's, is named, and the one before is taken."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.run_folder import checkpoint

NAMES = ("model.keras", "optimizer.npz", "rng.npz", "cursor.json")


def write(folder: Path, step: int, **manifest: Any) -> Path:
    """A checkpoint as far as its files and their checksums go."""
    path = checkpoint.path_of(folder, step)
    path.mkdir(parents=True)
    for name in NAMES:
        (path / name).write_bytes(f"{name} of {step}".encode())
    put_cursor(path, {"step": step, "steps_per_epoch": 2, "rows": []}, manifest)
    return path


def put_cursor(path: Path, cursor: object, manifest: dict[str, Any] | None = None) -> None:
    text = cursor if isinstance(cursor, str) else json.dumps(cursor)
    (path / "cursor.json").write_text(text)
    put_manifest(path, **(manifest or {}))


def put_manifest(path: Path, **changes: Any) -> None:
    files = {name: of(path / name) for name in NAMES if (path / name).is_file()}
    manifest = {"format": 3, "run": "aaaa", "config_sha256": "", "files": files, **changes}
    (path / "manifest.json").write_text(json.dumps(manifest))


def of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def linked(path: Path, name: str) -> None:
    away = path.parent.parent / f"away-{name}"
    (path / name).rename(away)
    (path / name).symlink_to(away)


def fifo(path: Path, name: str) -> None:
    (path / name).unlink()
    os.mkfifo(path / name)


def listing(path: Path, **files: Any) -> None:
    put_manifest(path, files={**{name: of(path / name) for name in NAMES}, **files})


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file listed": (lambda p: put_manifest(p, files={}), "does not list cursor.json, model.keras"),
    "one file not listed": (
        lambda p: put_manifest(p, files={name: of(p / name) for name in NAMES[1:]}),
        "manifest.json does not list model.keras",
    ),
    "files as a list": (lambda p: put_manifest(p, files=[]), "manifest.json lists no files"),
    "a list for a manifest": (lambda p: (p / "manifest.json").write_text("[]"), "not a JSON object"),
    "deep JSON": (lambda p: (p / "manifest.json").write_text("[" * 60_000), "nested too deeply"),
    "a huge manifest": (lambda p: os.truncate(p / "manifest.json", 5 << 30), "more than the 65536"),
    "bytes that are no text": (
        lambda p: (p / "manifest.json").write_bytes(b"\xff\x00\xfe"),
        "cannot be read",
    ),
    "a name with NUL": (
        lambda p: listing(p, **{"a\0b": {"bytes": 1, "sha256": ""}}),
        "not a valid file name",
    ),
    "a name outside": (lambda p: listing(p, **{"../x": {"bytes": 1, "sha256": ""}}), "not a valid file name"),
    "half a character": (
        lambda p: listing(p, **{"\ud800": {"bytes": 1, "sha256": ""}}),
        "not a valid file name",
    ),
    "no checksum": (lambda p: listing(p, **{"rng.npz": 5}), "lacks size and checksum of rng.npz"),
    "a strange format": (lambda p: put_manifest(p, format="9" * 9999), "its format is"),
    "a fifo": (lambda p: fifo(p, "optimizer.npz"), "optimizer.npz is not a plain file"),
    "a fifo as manifest": (lambda p: fifo(p, "manifest.json"), "manifest.json is not a plain file"),
    "a link out of it": (lambda p: linked(p, "model.keras"), "model.keras is not a plain file"),
    "an average not listed": (lambda p: (p / "averaged.keras").touch(), "does not list averaged.keras"),
    "a file cut short": (lambda p: os.truncate(p / "rng.npz", 3), "rng.npz has 3 bytes instead of 12"),
    "another step's name": (
        lambda p: put_cursor(p, {"step": 1, "steps_per_epoch": 2, "rows": []}),
        "its name is not of its step, 1",
    ),
    "a cursor nested deeply": (lambda p: put_cursor(p, "[" * 60_000), "cursor.json cannot be read"),
    "a cursor without rows": (lambda p: put_cursor(p, {"step": 2}), "cursor.json: rows is not a list"),
    "a step of text": (lambda p: put_cursor(p, {"step": "2", "rows": []}), "cursor.json: step is '2'"),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_checkpoint_that_is_none_is_named_and_the_one_before_is_taken(tmp_path, how):
    spoil, words = SPOILED[how]
    older, newest = write(tmp_path / "checkpoints", 1), write(tmp_path / "checkpoints", 2)
    spoil(newest)
    found = checkpoint.find(tmp_path / "checkpoints")
    assert found.path == older
    ((path, reason),) = found.skipped
    assert path == newest and words in reason
    assert len(reason) < 200 and "\n" not in reason


def test_folders_of_other_names_files_and_links_are_named(tmp_path):
    folder = tmp_path / "checkpoints"
    older = write(folder, 1)
    (folder / "step-00000003").symlink_to(write(tmp_path, 3))
    (folder / "step-00000002").write_text("a file")
    write(folder, 120).rename(folder / "step-120")
    write(folder, 7).rename(folder / "step-00000007 (copy)")
    found = checkpoint.find(folder)
    assert found.path == older
    reasons = {path.name: reason for path, reason in found.skipped}
    assert reasons == {
        "step-00000007 (copy)": "its name is not of the form step-00000120",
        "step-120": "its name is not of the form step-00000120",
        "step-00000003": "is a link or a file, not a folder",
        "step-00000002": "is a link or a file, not a folder",
    }


def test_the_newest_is_found_by_its_number_beyond_eight_digits(tmp_path):
    write(tmp_path, 99_999_999)
    newest = write(tmp_path, 100_000_000)
    assert checkpoint.find(tmp_path).path == newest


def test_what_a_crash_left_is_removed_whatever_it_is_and_nothing_that_a_link_leads_to(tmp_path):
    folder, away = tmp_path / "checkpoints", tmp_path / "away"
    older = write(folder, 1)
    away.mkdir()
    (away / "kept").touch()
    (folder / "step-00000002.partial").write_text("a file")
    (folder / "step-00000003.partial").symlink_to(away)
    (folder / "step-00000004.partial").symlink_to(tmp_path / "nowhere")
    (folder / "step-00000005.partial").mkdir()
    checkpoint.discard_partial(folder)
    assert list(folder.iterdir()) == [older] and (away / "kept").exists()


def test_another_runs_checkpoint_is_named_and_the_own_one_before_is_taken(tmp_path):
    own = write(tmp_path, 1, run="aaaa")
    other = write(tmp_path, 2, run="bbbb")
    assert checkpoint.find(tmp_path, "aaaa") == checkpoint.NewestCheckpoint(
        own, ((other, "another run wrote it (its run id is 'bbbb', this run's: aaaa)"),)
    )
    assert checkpoint.find(tmp_path).path == other  # run.json is lost: nobody can tell


def test_checkpoints_of_later_steps_cost_no_own_one_its_place(tmp_path):
    """With keep=1, one that was copied in would be kept, and what was just written removed."""
    write(tmp_path, 2)
    write(tmp_path, 4)
    write(tmp_path, 900)
    checkpoint.prune(tmp_path, keep=1, best_step=None, step=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000900"]
