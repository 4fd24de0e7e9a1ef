"""A file is read into as much memory as it has bytes."""

from __future__ import annotations

from trainer.data.shards import regular_files


def test_no_more_memory_is_taken_than_the_file_has_bytes(tmp_path):
    (tmp_path / "index.json").write_bytes(b"{}")
    assert regular_files.read(tmp_path / "index.json", 2**62) == b"{}"
