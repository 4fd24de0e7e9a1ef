"""Damage of any kind to a shard set ends in a named error or in the right data: thousands of cases, seeded.

All in one process, without HDF5, as training reads. HDF5 itself sees only files whose hash is right: see
test_verify.py and test_importing_damaged.py.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import draws
from shard_sets import SHAPE, make_mapped_set, make_shard_set, volume_of

from trainer.data.shards import codecs
from trainer.data.shards.index import Volume, canonical_json
from trainer.data.shards.shards import ShardSet
from trainer.errors import ShardError

pytestmark = pytest.mark.drawn

# Every kind of set that there is; new codecs come in by themselves.
SETS: list[tuple[Callable[..., ShardSet], dict[str, Any]]] = [
    *((maker, {"codec": codec}) for maker in (make_shard_set, make_mapped_set) for codec in codecs.CODECS),
    *((maker, {"bricks": 3}) for maker in (make_shard_set, make_mapped_set)),
    *((make_shard_set, {"dtype": dtype}) for dtype in ("float32", "bfloat16", "int16")),
]
# How many cases of each kind, over all sets.
SHARD_CASES, IN_USE_CASES, TEXT_CASES, TREE_CASES, CHUNK_CASES = map(draws, (2400, 600, 1500, 3000, 6000))


class Subject:
    """A small set, what its volumes and maps are, and the bytes of its files."""

    def __init__(self, folder: Path, maker: Callable[..., ShardSet], options: dict[str, Any]) -> None:
        shards = maker(folder, 5, **options)
        self.folder = folder
        self.volumes = [shards.read(row) for row in range(len(shards))]
        self.maps = [shards.read_map(row) for row in range(len(shards))] if shards.maps else []
        self.index = shards.index
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        self.shards = sorted(name for name in self.files if name.endswith(".h5"))

    def put(self, name: str, content: bytes) -> None:
        (self.folder / name).write_bytes(content)

    def mend(self) -> None:
        for name, content in self.files.items():
            self.put(name, content)

    def read_all(self, shards: ShardSet) -> int:
        """Read every volume and map; how many were refused. What was read must be right."""
        refused = 0
        for row, volume in enumerate(self.volumes):
            refused += _refused(lambda row=row: shards.read(row), volume)
            part = np.zeros((2, 3, 2, volume.shape[3]), np.float32)
            refused += _refused(
                lambda row=row, part=part: [shards.read_into(row, part, (1, 2, 0)), part][1],
                volume[1:3, 2:5, 0:2].astype(np.float32),
            )
            if self.maps:
                refused += _refused(lambda row=row: shards.read_map(row), self.maps[row])
        return refused


def _refused(read: Callable[[], np.ndarray], expected: np.ndarray) -> bool:
    try:
        found = read()
    except ShardError as error:
        _check_named(error)
        return True
    assert found.dtype == expected.dtype and np.array_equal(found, expected), "wrong data"
    return False


def _check_named(error: ShardError) -> None:
    assert str(error).strip() and ("shard-0" in str(error) or "index.json" in str(error)), error


NAMES = [f"{maker.__name__[5:]}-{'-'.join(map(str, options.values()))}" for maker, options in SETS]


@pytest.fixture(scope="module", params=SETS, ids=NAMES)
def subject(request, tmp_path_factory) -> Iterator[Subject]:
    maker, options = request.param
    return Subject(tmp_path_factory.mktemp("fuzzed") / "set", maker, options)


# Damage to bytes.


def _flip(content: bytearray, random: np.random.Generator) -> None:
    for _ in range(random.integers(1, 4)):
        content[random.integers(len(content))] ^= 1 << int(random.integers(8))


def _overwrite(content: bytearray, random: np.random.Generator) -> None:
    begin, count = _range(content, random)
    content[begin : begin + count] = random.bytes(count)


def _zero(content: bytearray, random: np.random.Generator) -> None:
    begin, count = _range(content, random)
    content[begin : begin + count] = bytes(count)


def _truncate(content: bytearray, random: np.random.Generator) -> None:
    del content[random.integers(len(content)) :]


def _cut_out(content: bytearray, random: np.random.Generator) -> None:
    begin, count = _range(content, random)
    del content[begin : begin + count]


def _duplicate(content: bytearray, random: np.random.Generator) -> None:
    begin, count = _range(content, random)
    content[begin:begin] = content[begin : begin + count]


def _splice(content: bytearray, random: np.random.Generator) -> None:
    """Bytes of one place over those of another; the size stays."""
    begin, count = _range(content, random)
    to = int(random.integers(len(content) - count + 1))
    content[to : to + count] = content[begin : begin + count]


def _append(content: bytearray, random: np.random.Generator) -> None:
    content += random.bytes(int(random.integers(1, 200)))


def _range(content: bytearray, random: np.random.Generator) -> tuple[int, int]:
    begin = int(random.integers(len(content)))
    return begin, min(len(content) - begin, int(2 ** random.uniform(0, 10)))


DAMAGES = (_flip, _overwrite, _zero, _truncate, _cut_out, _duplicate, _splice, _append)


def _damaged(content: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(content)
    DAMAGES[random.integers(len(DAMAGES))](changed, random)
    return bytes(changed)


def test_a_damaged_shard_is_refused_or_read_rightly(subject):
    random = np.random.default_rng(1)
    outcomes = {"refused": 0, "partly": 0, "right": 0}
    for _ in range(SHARD_CASES // len(SETS)):
        name = subject.shards[random.integers(len(subject.shards))]
        content = subject.files[name]
        chance = random.random()
        if chance < 0.05:  # one shard takes the place of another
            content = subject.files[subject.shards[random.integers(len(subject.shards))]]
        elif chance < 0.5:
            content = _damaged(content, random)
        else:  # where the voxels are
            volumes = [volume for volume in subject.index.volumes if volume.shard == name]
            volume = volumes[random.integers(len(volumes))]
            end = volume.offset + volume.nbytes
            chunk = _damaged(content[volume.offset : end], random)
            content = content[: volume.offset] + chunk + content[end:]
        subject.put(name, content)
        try:
            refused = subject.read_all(ShardSet.open(subject.folder))
            outcomes["partly" if refused else "right"] += 1
            assert refused or content == subject.files[name] or len(content) == len(subject.files[name])
        except ShardError as error:
            _check_named(error)
            outcomes["refused"] += 1
        subject.put(name, subject.files[name])
    assert min(outcomes.values()) > 0, outcomes


def test_a_shard_damaged_while_in_use_is_refused_or_read_rightly(subject):
    """In place or by another file of its name, before or between reads."""
    random = np.random.default_rng(2)
    refusals = 0
    for _ in range(IN_USE_CASES // len(SETS)):
        shards = ShardSet.open(subject.folder)
        if random.random() < 0.5:
            assert subject.read_all(shards) == 0
        name = subject.shards[random.integers(len(subject.shards))]
        content = _damaged(subject.files[name], random)
        if random.random() < 0.3:
            (subject.folder / name).unlink()
        if random.random() < 0.8:
            subject.put(name, content)
        refusals += subject.read_all(shards) > 0
        subject.put(name, subject.files[name])
    assert refusals > 0


@pytest.mark.parametrize("codec", codecs.CODECS)
def test_a_damaged_chunk_does_not_crash_its_decoder(codec):
    """No checksum stands before it here: the decoder itself says no or gives an array."""
    random = np.random.default_rng(3)
    volumes = [volume_of(2), random.integers(0, 2**16, SHAPE, np.uint16), np.zeros(SHAPE, np.float32)]
    refused = 0
    for number in range(CHUNK_CASES // len(codecs.CODECS)):
        volume = volumes[number % 3]
        chunk = _damaged(codecs.encode(codec, volume), random)
        try:
            codecs.decode_into(codec, chunk, np.empty_like(volume))
        except codecs.CodecError:
            refused += 1
    assert refused > 0


# Damage to the index.


def test_a_damaged_index_text_is_refused_or_means_the_same(subject):
    random = np.random.default_rng(4)
    good = subject.files["index.json"]
    outcomes = {"refused": 0, "same": 0}
    for number in range(TEXT_CASES // len(SETS)):
        if number % 10 == 0:  # white space and spelling do not matter
            content = json.dumps(json.loads(good), indent=int(random.integers(3))).encode()
        elif number % 10 == 1:
            encoding = ("utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037")[random.integers(5)]
            content = good.decode().encode(encoding)
        else:
            content = _damaged(good, random)
        subject.put("index.json", content)
        try:
            shards = ShardSet.open(subject.folder)
        except ShardError as error:
            _check_named(error)
            outcomes["refused"] += 1
            continue
        assert shards.index == subject.index
        outcomes["same"] += 1
    subject.mend()
    assert min(outcomes.values()) > 0, outcomes


STRANGE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 10**6, 2**31, 2**63, 2**64, -(2**63), 10**40, 0.0, -0.0, 1.5, 1e308,
    math.nan, math.inf, -math.inf, "", "x", "1", "é", "\ud800", "\0", "a\0b", "../x", "/", ".", "..",
    "x" * 500, "float16",
    "object", "O", "S4", "<U3", "V8", "f2,f4", ">f2", "float64", "complex64", "datetime64[s]",
    "bool", "none", "gzip", "blosc-lz4", "shard-00000.h5", "shard-00001.h5", "index.json",
    [], [0], [1, 2, 3], [6, 5, 4, 1], [5, 6, 4, 1], [1, 1, 1, 1], ["a"], [None], [[]], [math.nan] * 3,
    [10**12, 1, 1, 1], [2**31] * 4, {}, {"a": 1}, {"": None},
)  # fmt: skip


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON tree."""
    for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def _change_tree(tree: dict[str, Any], random: np.random.Generator) -> None:
    places = list(_places(tree))
    holder, key = places[random.integers(len(places))]
    kind = random.integers(8)
    if kind == 0:
        del holder[key]
    elif kind == 1:  # what stands at another place
        other, where = places[random.integers(len(places))]
        holder[key] = copy.deepcopy(other[where])
    elif kind == 2 and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[random.integers(len(holder))]))
    elif kind == 2:
        name = random.choice([field.name for field in dataclasses.fields(Volume)] + ["bricks", f"{key} "])
        holder[str(name)] = copy.deepcopy(STRANGE[random.integers(len(STRANGE))])
    elif kind == 3 and isinstance(holder[key], int):
        holder[key] += int(random.integers(-3, 4)) * 10 ** int(random.integers(0, 25))
    elif kind == 4:
        holder[key] = _nested(int(random.integers(1, 60)))
    else:
        holder[key] = copy.deepcopy(STRANGE[random.integers(len(STRANGE))])


def _signed(tree: dict[str, Any]) -> bytes:
    """Its text, with the content hash made right again where one can be computed."""
    if "content_hash" in tree:
        rest = {key: value for key, value in tree.items() if key != "content_hash"}
        with contextlib.suppress(ValueError):  # NaN or half a character: it has no canonical text
            tree["content_hash"] = hashlib.sha256(canonical_json(rest).encode()).hexdigest()
    return json.dumps(tree).encode()


def _content(volume: Volume) -> tuple[Any, ...]:
    """Says what is read; with another table of bricks, other bricks are."""
    return volume.brick_table or volume.xxh3 or volume.checksum, volume.scale


def test_a_changed_and_signed_index_is_refused_or_reads_only_what_its_checksums_allow(subject):
    """Whoever signs anew may call a subject otherwise; but nothing else than an error or such data comes."""
    random = np.random.default_rng(5)
    good = json.loads(subject.files["index.json"])
    right = {_content(volume): subject.volumes[volume.id] for volume in subject.index.volumes}
    outcomes = {"refused": 0, "opened": 0}
    for _ in range(TREE_CASES // len(SETS)):
        tree = copy.deepcopy(good)
        for _ in range(int(random.integers(1, 4))):
            _change_tree(tree, random)
        subject.put("index.json", _signed(tree))
        try:
            shards = ShardSet.open(subject.folder)
        except ShardError as error:
            _check_named(error)
            outcomes["refused"] += 1
            continue
        outcomes["opened"] += 1
        for row, volume in enumerate(shards.volumes):
            try:
                found = shards.read(row)
                expected = right.get(_content(volume))
                if expected is not None and (found.shape, found.dtype) == (expected.shape, expected.dtype):
                    assert np.array_equal(found, expected)
                if shards.maps:
                    shards.read_map(row)
            except ShardError as error:
                _check_named(error)
    subject.mend()
    assert min(outcomes.values()) > 0, outcomes
