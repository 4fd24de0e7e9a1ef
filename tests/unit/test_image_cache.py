"""What tests of containers keep between runs: whole or not at all, and for one at a time."""

from __future__ import annotations

from pathlib import Path

import image_cache
import pytest


@pytest.fixture(autouse=True)
def _a_cache_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CINGULUM_CACHE", str(tmp_path / "cache"))


def test_what_was_made_of_the_same_is_made_once(tmp_path):
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.write_text("content")

    (tmp_path / "lock").write_text("a==1")
    first = image_cache.kept("kind", image_cache.key("debian", tmp_path / "lock"), make)
    assert image_cache.kept("kind", image_cache.key("debian", tmp_path / "lock"), make) == first
    assert (first.read_text(), len(made)) == ("content", 1)
    (tmp_path / "lock").write_text("a==2")
    assert image_cache.kept("kind", image_cache.key("debian", tmp_path / "lock"), make) != first
    assert len(made) == 2


def test_a_file_that_moves_within_a_folder_is_another_content(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("x")
    before = image_cache.key(folder)
    (folder / "a").rename(folder / "b")
    assert image_cache.key(folder) != before


def test_what_could_not_be_made_whole_is_made_anew(tmp_path):
    def fail(path: Path) -> None:
        path.mkdir()
        (path / "half").touch()
        raise OSError

    with pytest.raises(OSError):
        image_cache.kept("kind", "0", fail)
    assert list(image_cache.kept("kind", "0", Path.mkdir).iterdir()) == []


def test_of_each_kind_the_newest_are_kept():
    for number in range(image_cache.KEPT + 2):
        image_cache.kept("kind", str(number), Path.touch)
    image_cache.kept("other", "0", Path.touch)
    left = {path.name for path in image_cache.place().iterdir() if path.suffix != ".lock"}
    assert left == {"kind-2", "kind-3", "kind-4", "other-0"}


def test_layers_are_for_one_daemon_at_a_time_and_those_left_in_disorder_for_none(tmp_path):
    with image_cache.layers(tmp_path) as folder:
        folder.mkdir()
        (folder / "layer").touch()
        with image_cache.layers(tmp_path) as other:
            assert other == tmp_path
    with image_cache.layers(tmp_path) as again:
        assert (again, (again / "layer").exists()) == (folder, True)
    with pytest.raises(KeyboardInterrupt), image_cache.layers(tmp_path):
        raise KeyboardInterrupt
    with image_cache.layers(tmp_path) as anew:
        assert anew == folder and not anew.exists()
