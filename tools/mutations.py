#!/usr/bin/env python3
"""Break central functions one at a time, and see that a gate test fails for each; in a clean checkout only.

    .venv/bin/python tools/mutations.py            all of them, some minutes
    .venv/bin/python tools/mutations.py halo clip  those of these names

Every mutation names the gate's tests that should notice it; tests marked `deep` are left out, as in the gate.
Exit code 1 if one was not noticed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Mutation:
    """A change that makes the program wrong.

    Attributes:
        name: for the command line.
        file: that is changed.
        right: text in it, which occurs once.
        wrong: what takes its place.
        tests: files of the gate that should fail.
    """

    name: str
    file: str
    right: str
    wrong: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "sign",  # of every gradient
        "trainer/strategies/reduction.py",
        '"sum", name=name)[0] / world.size',
        '"sum", name=name)[0] / -world.size',
        ("tests/parallel/test_equivalence.py",),
    ),
    Mutation(
        "mean",  # a sum where a mean is meant
        "trainer/strategies/reduction.py",
        '"sum", name=name)[0] / world.size',
        '"sum", name=name)[0]',
        ("tests/parallel/test_equivalence.py",),
    ),
    Mutation(
        "clip",  # before the reduction instead of after it
        "trainer/strategies/distributed_optimizer.py",
        "return super()._clip_gradients(self.reduce_gradients(grads))",
        "return self.reduce_gradients(super()._clip_gradients(grads))",
        ("tests/parallel/test_equivalence.py",),
    ),
    Mutation(
        "share",  # every rank reads the same part of the batch
        "trainer/strategies/base.py",
        '''None where others read them."""
        return Share(rank, self.world_size)''',
        '''None where others read them."""
        return Share(0, self.world_size)''',
        ("tests/parallel/test_reading.py", "tests/parallel/test_own_strategy.py"),
    ),
    Mutation(
        "divergence",  # weights of ranks are not compared
        "trainer/strategies/guards.py",
        "if len(set(digests)) == 1:",
        "if digests:",
        ("tests/parallel/test_guards.py", "tests/parallel/test_faults.py"),
    ),
    Mutation(
        "chunk",  # a stored volume's checksum is not compared
        "trainer/data/shards/whole_chunks.py",
        "found = xxhash.xxh3_64_hexdigest(stored)",
        "found = place.xxh3 or xxhash.xxh3_64_hexdigest(stored)",
        ("tests/unit/test_shards.py",),
    ),
    Mutation(
        "checkpoint",  # a damaged checkpoint is taken for a whole one
        "trainer/run_folder/checkpoint_checks.py",
        "if fingerprint(path / name) != expected:",
        "if not fingerprint(path / name):",
        ("tests/whole/test_checkpoint.py",),
    ),
    Mutation(
        "order",  # the same order in every epoch
        "trainer/data/loading/order.py",
        "return _permutation(seed, epoch, n)[",
        "return _permutation(seed, 0, n)[",
        ("tests/unit/test_order.py", "tests/whole/test_order_properties.py"),
    ),
    Mutation(
        "rate",  # not scaled with the global batch
        "trainer/strategies/schedule.py",
        '"linear": ratio,',
        '"linear": 1.0,',
        ("tests/unit/test_schedule.py",),
    ),
    Mutation(
        "leak",  # a subject in two splits
        "trainer/data/splits/splits.py",
        "if seen.setdefault(subject, name) != name:",
        "if seen.setdefault(subject, name) == subject:",
        ("tests/whole/test_splits.py",),
    ),
    Mutation(
        "server",  # forgets the gradient of the first worker
        "trainer/strategies/servers/server.py",
        "np.copyto(self._sum, self.received[0])",
        "self._sum[:] = 0",
        ("tests/parallel/test_parameter_server.py",),
    ),
    Mutation(
        "halo",  # one plane less than a convolution needs
        "trainer/planning/placement/windows.py",
        "inside = (max(start, 0), min(stop, size))",
        "inside = (max(start, 0), min(stop, size) - (stop < size))",
        ("tests/unit/test_windows.py", "tests/unit/test_exchanges.py"),
    ),
)


def noticed(mutation: Mutation) -> list[str]:
    """Return the tests that fail with the mutation; the file is as before afterwards.

    Raises:
        ValueError: the text to replace does not occur once.
    """
    file = ROOT / mutation.file
    text = file.read_text()
    if text.count(mutation.right) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} does not have {mutation.right!r} once")
    tests = [test for test in mutation.tests if (ROOT / test).exists()]
    words = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not deep", "-p", "no:cacheprovider", *tests]
    try:
        file.write_text(text.replace(mutation.right, mutation.wrong))
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    return [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]


def main() -> int:
    """Command line."""
    if subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode:
        print("error: the checkout has changes; commit them, or take a clean clone", file=sys.stderr)
        return 2
    known = {one.name: one for one in MUTATIONS}
    if unknown := set(sys.argv[1:]) - set(known):
        print(f"error: no mutation {', '.join(sorted(unknown))}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    missed = 0
    for name in sys.argv[1:] or known:
        began = time.monotonic()
        failed = noticed(known[name])
        missed += not failed
        said = failed[0] if failed else "NOT NOTICED"
        print(f"{name:<12}{time.monotonic() - began:4.0f} s  {said[:140]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
