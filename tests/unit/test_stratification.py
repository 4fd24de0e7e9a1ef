"""Dealing subjects by several traits at once."""

from __future__ import annotations

import collections

from hypothesis import given, settings
from hypothesis import strategies as some

from trainer.data.splits.dealing import by_hash, deal
from trainer.data.splits.splits import bands


@settings(max_examples=60)
@given(
    strata=some.lists(some.integers(0, 30), min_size=1, max_size=3),
    parts=some.integers(1, 6),
    levels=some.integers(1, 5),
    salt=some.text(max_size=4),
)
def test_each_part_takes_as_many_of_a_stratum_as_it_was_told_to(strata, parts, levels, salt):
    names = [[f"{i}-{j}" for j in range(count)] for i, count in enumerate(strata)]
    sizes = [[count // parts + (p < count % parts) for p in range(parts)] for count in strata]
    traits = {name: (hash_of(name) % levels, hash_of(name) % 2) for those in names for name in those}
    place = deal(names, sizes, traits, salt)
    assert sorted(place) == sorted(traits)
    for those, wanted in zip(names, sizes, strict=True):
        assert [sum(place[name] == part for name in those) for part in range(parts)] == wanted


def hash_of(name: str) -> int:
    """A number that, unlike `hash`, is the same every time."""
    return int.from_bytes(name.encode(), "big") % 1009


def test_two_crossed_traits_are_both_even_where_they_can_be():
    names = [f"s{i}" for i in range(24)]
    traits = {name: ("abcd"[i % 4], "FM"[i // 4 % 2]) for i, name in enumerate(names)}
    for salt in "xyz":
        place = deal([names], [[12, 12]], traits, salt)
        for trait in (0, 1):
            counts = collections.Counter((traits[name][trait], place[name]) for name in names)
            assert len(set(counts.values())) == 1, counts


def test_without_traits_the_salt_decides():
    names = [f"s{i}" for i in range(20)]
    deals = [deal([names], [[10, 10]], dict.fromkeys(names, ()), salt) for salt in "abc"]
    assert len({tuple(sorted(place.items())) for place in deals}) == 3


def test_bands_are_equally_large_and_keep_equal_values_together():
    values = {f"s{i}": float(i) for i in range(20)} | {"unknown": None}
    found = bands(values, 4)
    assert found["unknown"] is None
    assert collections.Counter(band for band in found.values() if band is not None) == dict.fromkeys(
        range(4), 5
    )
    tied = bands({"a": 1.0, "b": 1.0, "c": 1.0, "d": 2.0}, 4)
    assert tied["a"] == tied["b"] == tied["c"]
    assert bands({"a": None}, 4) == {"a": None}


def test_the_order_by_hash_depends_on_the_salt():
    names = [f"s{i}" for i in range(50)]
    assert by_hash(names, "a") == by_hash(names[::-1], "a") != by_hash(names, "b")
