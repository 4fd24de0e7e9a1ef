"""Shard sets of a stranger: nothing in them can hold up a command, or make it read more than volumes need."""

from __future__ import annotations

import base64
import hashlib
import os
import signal
import socket
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from shard_sets import make_mapped_set, make_shard_set
from test_shards import rewrite_index
from wording import fails_with

from cingulum.cli import app
from trainer.data.importing import import_state
from trainer.data.shards import bricks, codecs
from trainer.data.shards.index_reading import MOST_BYTES
from trainer.data.shards.shards import ShardSet
from trainer.data.shards.verify import verify
from trainer.errors import ShardError


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail where a test hangs: 20 s are a hundred times what each needs."""

    def overdue(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, overdue)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "a named pipe": os.mkfifo,
    "a socket": as_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, capsys, kind):
    make_shard_set(tmp_path / "set")
    index, shard = tmp_path / "set" / "index.json", tmp_path / "set" / "shard-00001.h5"
    shard.unlink()
    KINDS[kind](shard)
    assert [str(problem) for problem in verify(tmp_path / "set")] == [
        f"shard-00001.h5: cannot be read (it is {kind}, not a regular file)"
    ]
    with pytest.raises(ShardError, match=f"shard-00001.h5: it is {kind}, not a regular file"):
        ShardSet.open(tmp_path / "set")
    index.unlink()
    KINDS[kind](index)
    for refuse in (verify, ShardSet.open):
        with pytest.raises(ShardError, match=f"index.json: cannot be read .it is {kind}, not a regular file"):
            refuse(tmp_path / "set")
    assert app.run(["verify", str(tmp_path / "set")]) == 2
    assert kind in capsys.readouterr().err
    if kind != "a folder":
        KINDS[kind](tmp_path / "itself")
        assert app.run(["verify", str(tmp_path / "itself")]) == 2
        assert "a shard set is a folder" in capsys.readouterr().err


def test_an_index_of_20_gib_is_refused_by_its_size(tmp_path, monkeypatch):
    make_shard_set(tmp_path)
    index = tmp_path / "index.json"
    os.truncate(index, 20 << 30)
    tracemalloc.start()
    with pytest.raises(ShardError, match=rf"has 21474836480 bytes; at most {MOST_BYTES} are read"):
        verify(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def enlarge(tmp_path: Path, key: str, nbytes: int) -> None:
    """A shard of 6 GiB that takes no disk, and an index, signed, that gives its first volume so much."""

    def change(index: dict) -> None:
        index["shards"][0]["nbytes"] = 6 << 30
        index["volumes"][0][key] = nbytes

    os.truncate(tmp_path / "shard-00000.h5", 6 << 30)
    rewrite_index(tmp_path, change, sign=True)


@pytest.mark.parametrize("codec", codecs.CODECS)
@pytest.mark.parametrize("key", ["nbytes", "map_nbytes"])
def test_a_chunk_is_no_larger_than_its_shape_type_and_codec_allow(tmp_path, codec, key):
    shards = make_mapped_set(tmp_path, codec=codec)
    decoded = int(np.prod(shards.shape)) * 2 if key == "nbytes" else int(np.prod(shards.shape[:3]))
    most = codecs.most_bytes(decoded)
    enlarge(tmp_path, key, most)
    ShardSet.open(tmp_path)
    enlarge(tmp_path, key, most + 1)
    for refuse in (verify, ShardSet.open):
        with pytest.raises(ShardError, match=f"nbytes of volume 0: {most + 1}; at most {most} are possible"):
            refuse(tmp_path)


def test_bricks_are_no_larger_either(tmp_path):
    make_shard_set(tmp_path, bricks=4)
    enlarge(tmp_path, "nbytes", 5 << 30)
    with fails_with(ShardError):
        ShardSet.open(tmp_path)


def test_a_brick_does_not_take_the_share_of_others(tmp_path):
    shards = make_shard_set(tmp_path, bricks=1)
    table = bricks.unpack_table(shards.volumes[0].brick_table).copy()
    table["nbytes"] = 1
    table["nbytes"][5] = codecs.most_bytes(2) + 1
    nbytes, text = int(table["nbytes"].sum()), base64.b64encode(table.tobytes()).decode()

    def change(index: dict) -> None:
        index["volumes"][0].update(nbytes=nbytes, brick_table=text)

    rewrite_index(tmp_path, change, sign=True)
    with fails_with(ShardError):
        ShardSet.open(tmp_path)


def test_no_codec_makes_noise_larger_than_that(tmp_path):
    random = np.random.default_rng(0)
    for count in (1, 1000, 300_000):
        for dtype in (np.uint8, np.float16, np.float64):
            voxels = random.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)
            for codec in codecs.CODECS:
                assert len(codecs.encode(codec, voxels)) <= codecs.most_bytes(voxels.nbytes)


def test_a_chunk_of_gzip_unpacks_to_no_more_than_a_volume():
    bomb = zlib.compress(bytes(64 << 20))
    out = np.empty(1000, np.float32)
    tracemalloc.start()
    with fails_with(codecs.CodecError):
        codecs.decode_into("gzip", bomb, out)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    whole = codecs.encode("gzip", np.ones(1000, np.float32))
    codecs.decode_into("gzip", whole, out)
    assert (out == 1).all()
    for short in (whole[:-1], whole[:-5], whole[: len(whole) // 2]):
        with pytest.raises(codecs.CodecError):
            codecs.decode_into("gzip", short, out)


@pytest.mark.parametrize(
    ("name", "says"),
    [("subjects", "in another shape"), ("volumes", "in another shape"), ("labels", "from another file")],
)
def test_what_hdf5_would_read_beyond_the_index_is_not_read(tmp_path, name, says):
    make_shard_set(tmp_path, 4)
    path = tmp_path / "shard-00000.h5"
    with h5py.File(path, "r+") as file:
        if says == "from another file":
            del file[name]
            file[name] = h5py.ExternalLink(str(tmp_path / "other.h5"), name)
            with h5py.File(tmp_path / "other.h5", "w") as other:
                other.create_dataset(name, (4,), h5py.string_dtype())
        else:
            kind = file[name].dtype
            del file[name]
            file.create_dataset(name, (1 << 40,), kind, chunks=(1 << 10,))

    def change(index: dict) -> None:
        content = path.read_bytes()
        index["shards"][0].update(nbytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    rewrite_index(tmp_path, change, sign=True)
    (problem,) = verify(tmp_path)
    assert f"`{name}` {says}" in problem.what


def test_the_state_of_an_import_is_read_from_regular_files_of_sensible_size(tmp_path):
    work = tmp_path / import_state.WORK_NAME
    work.mkdir()
    request = work / "request.json"
    os.mkfifo(request)
    with fails_with(ShardError):
        import_state.is_finished(tmp_path, {}, "")
    request.unlink()
    request.write_text("{}")
    os.truncate(request, 20 << 30)
    with fails_with(ShardError):
        import_state.is_finished(tmp_path, {}, "")
    os.mkfifo(work / "shard-00000.json")
    assert import_state.load(work, 0, []) is None
    (work / "shard-00001.json").write_text('{"sha256": "", "images": []}')
    os.mkfifo(tmp_path / "shard-00001.h5")
    assert import_state.load(work, 1, []) is None
