"""No damage to a chunk makes the compiled decoder read or write where it must not: run under sanitizers."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from halves_for_any_processor import compiled

from trainer.data.shards import codecs

# Reads cases from its input (bytes of the chunk, values, the chunk) and decodes each into memory of just that
# size; says how many were decoded. AddressSanitizer ends it at the first byte beyond. The library's LZ4 needs
# Python around it, so a plain one stands in.
PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*decompress)(const char *, char *, int, int);
size_t cingulum_halves_block(const uint8_t *, size_t, size_t);
int cingulum_decode_halves(const uint8_t *, size_t, void *, size_t, uint8_t *, decompress);

static int longer(const uint8_t **in, const uint8_t *end, int length) {
    if (length != 15) return length;
    for (int more = 255; more == 255; length += more) {
        if (*in == end) return -1;
        more = *(*in)++;
    }
    return length;
}

static int lz4(const char *from, char *to, int size, int room) {
    const uint8_t *in = (const uint8_t *)from, *end = in + size;
    int done = 0;
    while (in < end) {
        int token = *in++, length = longer(&in, end, token >> 4);
        if (length < 0 || length > end - in || length > room - done) return -1;
        while (length--) to[done++] = (char)*in++;
        if (in == end) return done;
        if (end - in < 2) return -1;
        int back = in[0] | in[1] << 8;
        in += 2;
        length = longer(&in, end, token & 15);
        if (length < 0 || !back || back > done || length + 4 > room - done) return -1;
        for (length += 4; length--; done++) to[done] = to[done - back];
    }
    return -1;
}

int main(void) {
    uint64_t head[2], all = 0, decoded = 0;
    while (fread(head, sizeof head, 1, stdin) == 1) {
        uint8_t *chunk = malloc(head[0] ? head[0] : 1);
        if (head[0] && fread(chunk, head[0], 1, stdin) != 1) return 1;
        size_t block = cingulum_halves_block(chunk, head[0], head[1]);
        float *out = malloc(head[1] * sizeof *out);
        uint8_t *memory = malloc(block ? block : 1);
        decoded += cingulum_decode_halves(chunk, head[0], out, head[1], memory, lz4) ? 1 : 0;
        all++;
        free(chunk), free(out), free(memory);
    }
    printf("%llu %llu\n", (unsigned long long)all, (unsigned long long)decoded);
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    (folder / "main.c").write_text(PROGRAM)
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    # One generation of each function: they are chosen among before the sanitizers are ready.
    compiled(folder / "decode", "-g", "-O2", *sanitizers, "-DFOR_EACH_GENERATION=", str(folder / "main.c"))
    return folder / "decode"


def whole_chunks() -> list[tuple[bytes, int]]:
    """Chunks of several blocks, of one, with a rest, of little, of zeros and of what repeats itself."""
    chance = np.random.default_rng(5)
    smooth = np.cumsum(chance.normal(size=600_000) / 64).astype(np.float16)
    arrays = [
        smooth,
        smooth[:40_001],
        smooth[:300],
        np.zeros(100_000, np.float16),
        np.resize(smooth[:7], 90_000),
        np.where(chance.random(120_000) < 0.1, chance.normal(size=120_000), 0).astype(np.float16),
    ]
    return [(codecs.encode("blosc-lz4", array), array.size) for array in arrays]


def damaged(chunk: bytes, chance: np.random.Generator) -> bytes:
    """Some bytes changed; half of the time in the first hundred, where the lengths are."""
    changed = bytearray(chunk)
    for _ in range(chance.integers(1, 8)):
        where = chance.integers(0, min(100, len(changed)) if chance.random() < 0.5 else len(changed))
        changed[where] = chance.choice([0, 1, 0x0F, 0xF0, 0xFF, chance.integers(256)])
    kind = chance.random()
    if kind < 0.2:
        del changed[chance.integers(0, len(changed)) :]
    elif kind < 0.3:
        where = chance.integers(0, len(changed))
        changed[where:where] = chance.bytes(chance.integers(1, 50))
    # Often it says how long it is now, so that it is not refused at once.
    if kind < 0.25 and len(changed) >= 16:
        changed[12:16] = struct.pack("<I", len(changed))
    return bytes(changed)


def test_thousands_of_damaged_chunks_touch_no_other_memory(program):
    chance = np.random.default_rng(6)
    whole = whole_chunks()
    cases = list(whole)
    for chunk, values in whole:
        cases += [(damaged(chunk, chance), values) for _ in range(500)]
    text = b"".join(struct.pack("<QQ", len(chunk), values) + chunk for chunk, values in cases)
    # Looking for leaks needs ptrace, which containers may not have; the program ends right away anyway.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [program], input=text, capture_output=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[:4000]
    count, decoded = map(int, done.stdout.split())
    assert count == len(cases)
    # The whole ones, and those of which only values were changed: both ways out are taken often.
    assert len(whole) + 100 < decoded < count - 100
