"""Sizes as people write them."""

from __future__ import annotations

import pytest

from trainer import byte_sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [("4 GiB", 4 * 2**30), ("512MiB", 2**29), ("1.5 KiB", 1536), ("7 B", 7), (" 1 TiB ", 2**40)],
)
def test_a_size_with_a_unit_is_that_many_bytes(text, size):
    assert byte_sizes.parse(text) == size


@pytest.mark.parametrize("text", ["4", "4 GB", "-1 GiB", "0 GiB", "0.1 B", "GiB", "", "4 gib", "1e3 MiB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="such as '4 GiB'"):
        byte_sizes.parse(text)


SIZES = [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5.0 GiB"), (2**51, "2048.0 TiB")]


@pytest.mark.parametrize(("size", "text"), SIZES)
def test_sizes_are_told_in_a_fitting_unit(size, text):
    assert byte_sizes.as_text(size) == text
