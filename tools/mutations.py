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
        ("tests/parallel/test_tasks_on_ranks.py",),
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
        "trainer/strategies/servers/serving.py",
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
    Mutation(
        "cosine",  # the rate does not fall to its end
        "trainer/strategies/schedule.py",
        "length = max(1, steps - self.warmup_steps)",
        "length = max(1, 2 * steps - self.warmup_steps)",
        ("tests/unit/test_schedule.py",),
    ),
    Mutation(
        "warmup",  # begins with a rate of 0
        "trainer/strategies/schedule.py",
        "rising = self.peak * (update + 1.0) / self.warmup_steps",
        "rising = self.peak * update / self.warmup_steps",
        ("tests/unit/test_schedule.py",),
    ),
    Mutation(
        "word",  # a value stands in a batch script without quotes
        "jobs/schedulers/script.py",
        "quoted = shlex.quote(text)",
        "quoted = text",
        ("tests/unit/test_rendering.py",),
    ),
    Mutation(
        "cure",  # the command that goes on, without quotes
        "trainer/run_folder/resuming.py",
        "return shlex.join([*began, *words])",
        'return " ".join([*began, *words])',
        ("tests/unit/test_resuming.py",),
    ),
    Mutation(
        "saved",  # no scheduler starts a run again that saved
        "trainer/errors.py",
        "exit_code = 75",
        "exit_code = 1",
        ("tests/whole/test_interrupted.py",),
    ),
    Mutation(
        "fence",  # a start whose run another has taken over hears of it as of any error
        "trainer/leases/lease.py",
        "            if self.is_held:\n                raise\n            raise self.fenced() from error",
        "            raise",
        ("tests/unit/test_lease.py",),
    ),
    Mutation(
        "held",  # a lease believes in itself for ever
        "trainer/leases/lease.py",
        "return not lease_files.is_gone(self.staging)",
        "return True",
        ("tests/unit/test_lease.py",),
    ),
    Mutation(
        "draw",  # dropout is the same for every seed of a run
        "trainer/strategies/draws.py",
        'text = f"{self._seed} {self._numbers',
        'text = f"{self._numbers',
        ("tests/unit/test_draws.py",),
    ),
    Mutation(
        "sample",  # dropout is drawn for a rank, not for its samples
        "trainer/strategies/draws.py",
        "_Box(self, step, None if shared[0] else samples, (whole, cut))",
        "_Box(self, step, None, (whole, cut))",
        ("tests/unit/test_draws.py",),
    ),
    Mutation(
        "stream",  # all samples are augmented alike
        "trainer/data/augment/streams.py",
        "entropy = [AUGMENTATION, key.seed, key.epoch, key.sample]",
        "entropy = [AUGMENTATION, key.seed, key.epoch]",
        ("tests/unit/test_augment_streams.py",),
    ),
    Mutation(
        "scan",  # every scan counts as a subject of its own
        "trainer/metrics/subjects.py",
        "numbers.setdefault(str(name), len(numbers)) for name in names",
        "place for place, name in enumerate(names)",
        ("tests/unit/test_subjects.py",),
    ),
    Mutation(
        "fill",  # what only fills up the last batch of an epoch is learned from
        "trainer/data/loading/order.py",
        "np.where(np.arange(global_batch) < real, global_batch / real, 0)",
        "np.ones(global_batch)",
        ("tests/unit/test_order.py",),
    ),
    Mutation(
        "secret",  # the password of a database in the query of its address
        "jobs/store/address.py",
        "_HIDDEN if _SECRET.search(key) else value",
        "value",
        ("tests/unit/test_store.py",),
    ),
    Mutation(
        "guard",  # routes without their guard
        "cingulum/service/guard.py",
        "if answer is not None:\n            await answer",
        "if answer is None:\n            await answer",
        ("tests/unit/test_service_access.py",),
    ),
    Mutation(
        "space",  # a label map lies in the image as in a mirror
        "trainer/inference/space.py",
        "to_source = np.linalg.inv(source.affine) @ target.affine",
        "to_source = np.linalg.inv(target.affine) @ source.affine",
        ("tests/whole/test_image_space.py",),
    ),
    Mutation(
        "session",  # the label of another visit
        "trainer/data/sources/joins.py",
        "row = rows.get(id_key(session) if session is not None else None)",
        "row = next(iter(rows.values()), None)",
        ("tests/unit/test_joins.py",),
    ),
    Mutation(
        "finite",  # a loss that is no number
        "trainer/ranks/consensus.py",
        "bad = np.flatnonzero(~finite)",
        "bad = np.flatnonzero(~finite)[:0]",
        ("tests/parallel/test_faults.py",),
    ),
    Mutation(
        "small",  # bfloat16 where TensorFlow's gradient is wrong
        "trainer/models/small_maps.py",
        "edge is not None and edge < size",
        "edge is not None and edge < size - 2",
        ("tests/unit/test_small_maps.py",),
    ),
    Mutation(
        "dice",  # counts what both have once
        "trainer/metrics/segmentation.py",
        '"dice": 2 * int((true & predicted).sum()) / both',
        '"dice": int((true & predicted).sum()) / both',
        ("tests/unit/test_segmentation_metrics.py",),
    ),
)


def noticed(mutation: Mutation) -> list[str]:
    """Return the tests that fail with the mutation; the file is as before afterwards.

    Raises:
        ValueError: the text to replace does not occur once, or a file of tests is not there.
    """
    file = ROOT / mutation.file
    text = file.read_text()
    if text.count(mutation.right) != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} does not have {mutation.right!r} once")
    missing = [test for test in mutation.tests if not (ROOT / test).is_file()]
    if missing:
        raise ValueError(f"{mutation.name}: there is no {missing[0]}")
    options = ["-q", "-x", "-m", "not deep", "-p", "no:cacheprovider"]
    words = [sys.executable, "-m", "pytest", *options, *mutation.tests]
    try:
        file.write_text(text.replace(mutation.right, mutation.wrong))
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        file.write_text(text)
    # Not of collection: what cannot be imported proves nothing of a test.
    lines = done.stdout.splitlines()
    return [line for line in lines if line.startswith(("FAILED", "ERROR")) and "::" in line]


def main() -> int:
    """Command line."""
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT, check=False).returncode:
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
