#!/usr/bin/env python3
"""How far the weights of several ranks are from those of plain Keras, step by step, and why.

    .venv/bin/python benchmarks/rounding_growth.py --picture rounding-growth.png

Every network is trained on the same batches in five ways: plain Keras in one process; the same with the
samples of each batch in another order, which changes nothing but the order of sums; on several ranks, with
synchronous batch norm; and the first and the last in float64 as well. Two results are compared by the length
of their difference over the length of the way from the first weights: 0 is equal, 1 is as far apart as the
training went. docs/explanation/equality.md tells what it printed.

One thread per process, deterministic operations. TensorFlow has no maximum pooling of volumes in float64 on
a processor: there the same maximum is taken of shifted slices, and strides are taken by leaving out voxels.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jobs.launchers import mpirun

HELD_OUT = 16  # volumes
WIDTHS = {"tiny": 8}  # of the others: 4 channels
NETWORKS = ["tiny", "sfcn", "resattnet18", "resattnet18:group"]
PRECISIONS = ("float32", "float64")
ONE, OTHER_ORDER = "one process", "other order"


def batches(job: dict[str, Any], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Volumes float32 (batch, D, H, W, 1) and classes int32 (batch,), for every step."""
    rng = np.random.default_rng([17, seed])
    count, edge = job["batch"], job["edge"]
    return [
        (
            rng.normal(size=(count, edge, edge, edge, 1)).astype(np.float32),
            rng.integers(0, 2, count).astype(np.int32),
        )
        for _ in range(job["steps"])
    ]


def network(spec: str, edge: int, precision: str, *, synchronous: bool) -> Any:
    """A registered network by 'name[:normalisation[:activation]]', such as tanh in place of its ReLUs."""
    import keras

    from trainer import models

    name, normalisation, activation = (*spec.split(":"), "", "")[:3]
    options = {"normalisation": normalisation} if normalisation else {}
    if "dropout" in models.describe(name).options:
        options["dropout"] = 0.0
    model = models.build(
        name, (edge, edge, edge, 1), 2, width=WIDTHS.get(name, 4), sync_batch_norm=synchronous, **options
    )

    def exchanged(layer: Any) -> Any:
        config = {**layer.get_config(), "dtype": precision}
        if activation and config.get("activation") == "relu":
            config["activation"] = activation
        if precision == "float64" and isinstance(layer, keras.layers.MaxPooling3D):
            return slices_maximum(config)
        if precision == "float64" and isinstance(layer, keras.layers.Conv3D):
            return moved_by_one(config)
        return type(layer).from_config(config)

    return keras.models.clone_model(model, clone_function=exchanged)


def moved_by_one(config: dict[str, Any]) -> Any:
    """`keras.layers.Conv3D` whose kernel moves by one voxel and whose output is then thinned out.

    The same sums: TensorFlow's gradients of convolutions with strides take 15 times as long in float64.
    """
    import keras
    from keras import ops

    class Convolution(keras.layers.Conv3D):
        def convolution_op(self, inputs: Any, kernel: Any) -> Any:
            step, size = self.strides[0], self.kernel_size[0]
            if step == 1:
                return super().convolution_op(inputs, kernel)
            if self.padding == "same":
                inputs = padded(inputs, size, step, 0.0)
            return ops.conv(inputs, kernel, padding="valid")[:, ::step, ::step, ::step]

    return Convolution.from_config(config)


def padded(x: Any, size: int, step: int, value: float) -> Any:
    """A feature map with what the padding 'same' adds for a kernel or pool of this size and stride."""
    from keras import ops

    missing = [max((-(-n // step) - 1) * step + size - n, 0) for n in x.shape[1:4]]
    around = [(0, 0), *((p // 2, p - p // 2) for p in missing), (0, 0)]
    return ops.pad(x, around, constant_values=value)


def slices_maximum(config: dict[str, Any]) -> Any:
    """`keras.layers.MaxPooling3D` in any type: the maximum over strided slices, one per place of the pool."""
    import keras
    from keras import ops

    size, strides = config["pool_size"][0], config["strides"][0]

    def maximum(x: Any) -> Any:
        if config["padding"] == "same":
            x = padded(x, size, strides, -np.inf)
        sides = [(n - size) // strides + 1 for n in x.shape[1:4]]
        found = None
        for shift in itertools.product(range(size), repeat=3):
            d, h, w = (
                slice(s, s + (m - 1) * strides + 1, strides) for s, m in zip(shift, sides, strict=True)
            )
            part = x[:, d, h, w]
            found = part if found is None else ops.maximum(found, part)
        return found

    return keras.layers.Lambda(maximum, name=config["name"], dtype=config["dtype"])


Step = Callable[[np.ndarray, np.ndarray], Any]


def plain_step(model: Any, optimizer: Any, precision: str) -> Step:
    """One update with nothing but Keras."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype=precision)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    return lambda x, y: model.train_on_batch(x, y)


def shared_step(model: Any, optimizer: Any, world: Any) -> Step:
    """One update over all ranks, each with its part of the batch."""
    import trainer
    from trainer.strategies import data

    learner = data.build(model, trainer.DistributedOptimizer(optimizer), world)

    def step(x: np.ndarray, y: np.ndarray) -> None:
        share = len(x) // world.size
        mine = slice(world.rank * share, (world.rank + 1) * share)
        learner.train_step(x[mine], y[mine], np.ones(share, x.dtype))

    return step


def results(job: dict[str, Any], world: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Weights (steps + 1, parameters) and the loss of held-out volumes, by 'spec|rate|seed|way|precision'.

    Args:
        job: what is trained; see `study`.
        world: the ranks that share each batch; None for plain Keras.
    """
    import keras

    ways = [ONE, OTHER_ORDER] if world is None else [f"{world.size} rank{'s'[: world.size > 1]}"]
    for precision, spec in itertools.product(PRECISIONS, job["networks"]):
        # Layers and collectives have the same names on all ranks, and Keras' losses the type of floatx.
        keras.utils.clear_session()
        keras.config.set_floatx(precision)
        model = network(spec, job["edge"], precision, synchronous=world is not None)
        optimizer = keras.optimizers.SGD(0.0)
        optimizer.build(model.trainable_variables)
        step = (
            plain_step(model, optimizer, precision) if world is None else shared_step(model, optimizer, world)
        )
        for seed in range(job["seeds"]):
            given = batches(job, seed)
            start = first_weights(spec, job["edge"], seed)
            for rate, way in itertools.product(job["rates"], ways):
                model.set_weights(start)
                optimizer.learning_rate = rate
                weights = [flat(model)]
                for number, (x, y) in enumerate(given):
                    order = np.arange(len(y))
                    if way == OTHER_ORDER:
                        order = np.random.default_rng([number, seed]).permutation(len(y))
                    step(x[order].astype(precision), y[order])
                    weights.append(flat(model))
                key = f"{spec}|{rate:g}|{seed}|{way}|{precision}"
                yield key, np.stack(weights)
                yield f"{key}|loss", held_out_loss(model, precision)


def first_weights(spec: str, edge: int, seed: int) -> list[np.ndarray]:
    """The same float32 numbers in every process and at every precision."""
    import keras

    floatx = keras.config.floatx()
    keras.config.set_floatx("float32")
    keras.utils.set_random_seed(seed)
    found = network(spec, edge, "float32", synchronous=False).get_weights()
    keras.config.set_floatx(floatx)
    return list(found)


def flat(model: Any) -> np.ndarray:
    """All trainable weights, float64 (parameters,)."""
    return np.concatenate([np.asarray(v.value, np.float64).ravel() for v in model.trainable_variables])


def held_out_loss(model: Any, precision: str) -> np.ndarray:
    """Mean cross-entropy of volumes that are in no batch."""
    rng = np.random.default_rng(18)
    x = rng.normal(size=(HELD_OUT, *model.input_shape[1:])).astype(precision)
    logits = np.asarray(model(x, training=False), np.float64)
    top = logits.max(axis=1, keepdims=True)
    logarithms = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return np.asarray(-logarithms[np.arange(HELD_OUT), np.arange(HELD_OUT) % 2].mean())


def work(job: dict[str, Any], path: Path) -> None:
    """What one process of the study does: train every network, and keep the weights of every step."""
    import tensorflow as tf

    world = None
    if job["ranks"] == 0:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    else:
        import trainer
        from trainer.world import current

        trainer.init(threads=1)
        world = current()
    tf.config.experimental.enable_op_determinism()
    found = {}
    for key, values in results(job, world):
        found[key] = values
        if (world is None or world.is_main) and not key.endswith("loss"):
            print(f"  {key.replace('|', ', ')}", file=sys.stderr, flush=True)
    if world is None or world.is_main:
        np.savez(path, **found)


def trained(job: dict[str, Any], worlds: list[int]) -> dict[str, np.ndarray]:
    """The results of plain Keras and of each number of ranks, in processes of their own."""
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (0, *worlds):
            print("plain Keras" if ranks == 0 else f"{ranks} rank(s)", file=sys.stderr, flush=True)
            path = Path(folder) / f"{ranks}.npz"
            line = [sys.executable, __file__, "--worker", json.dumps({**job, "ranks": ranks}), str(path)]
            additions: dict[str, str] = {}
            if ranks > 1:
                line, additions = mpirun.command(ranks, line)
            here = {"PYTHONPATH": str(Path(__file__).parents[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
            subprocess.run(line, env={**os.environ, **here, **additions}, check=True)
            with np.load(path) as archive:
                found |= dict(archive)
    return found


def apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distance over the length of the way from the first weights of `other`, after each step (steps,)."""
    way = np.linalg.norm(other[1:] - other[0], axis=1)
    return np.asarray(np.linalg.norm(one[1:] - other[1:], axis=1) / way)


def study(job: dict[str, Any], worlds: list[int]) -> list[dict[str, Any]]:
    """One row per network, rate and seed: what is how far apart after each step."""
    found, rows = trained(job, worlds), []
    ways = [OTHER_ORDER, *(f"{n} rank{'s'[: n > 1]}" for n in worlds)]
    for spec, rate, seed in itertools.product(job["networks"], job["rates"], range(job["seeds"])):
        key = f"{spec}|{rate:g}|{seed}|"
        narrow, wide = (found[f"{key}{ONE}|{precision}"] for precision in PRECISIONS)
        rows.append(
            {
                "network": spec,
                "rate": rate,
                "seed": seed,
                "float32": {w: apart(found[f"{key}{w}|float32"], narrow).tolist() for w in ways},
                "float64": {w: apart(found[f"{key}{w}|float64"], wide).tolist() for w in ways},
                "to float64": {w: apart(found[f"{key}{w}|float32"], wide).tolist() for w in (ONE, *ways)},
                "largest": {
                    precision: {
                        w: np.abs(found[f"{key}{w}|{precision}"][1:] - reference[1:]).max(axis=1).tolist()
                        for w in ways
                    }
                    for precision, reference in (("float32", narrow), ("float64", wide))
                },
                "held-out loss": {
                    w: {p: float(found[f"{key}{w}|{p}|loss"]) for p in PRECISIONS} for w in (ONE, *ways)
                },
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The figures as lines of Markdown; of several seeds the median and the largest."""
    steps = len(next(iter(rows[0]["float32"].values())))
    shown = [n for n in (1, 2, 4, 8, 16, 32, 64) if n < steps] + [steps]
    yield "| network | rate | | " + " | ".join(f"step {n}" for n in shown) + " |"
    yield "| --- | --- | --- |" + " --- |" * len(shown)
    for (spec, rate), group in itertools.groupby(rows, key=lambda row: (row["network"], row["rate"])):
        several = list(group)
        for kind in ("float32", "to float64", "float64"):
            for way in several[0][kind]:
                values = np.array([row[kind][way] for row in several])[:, np.array(shown) - 1]
                cells = [f"{np.median(v):.1g}" + f" to {v.max():.1g}" * (len(v) > 1) for v in values.T]
                yield f"| {spec} | {rate:g} | {kind}, {way} | " + " | ".join(cells) + " |"
        if len(several) == 1:
            losses = several[0]["held-out loss"]
            told = (f"{w} {v['float32']:.4g} ({v['float64']:.4g})" for w, v in losses.items())
            yield f"| {spec} | {rate:g} | held-out loss (in float64) | " + ", ".join(told) + " |"


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """A panel for each network and rate: ranks, another order, and both in float64, over the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["seed"] == 0]
    rates = sorted({row["rate"] for row in rows})
    specs = list(dict.fromkeys(row["network"] for row in rows))
    size = (2.3 * len(specs) + 1, 2.4 * len(rates) + 0.7)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rates), len(specs), sharex=True, sharey=True, squeeze=False)
    for row in rows:
        panel = panels[rates.index(row["rate"])][specs.index(row["network"])]
        for kind, colour in (("float32", "#1f5fa8"), ("float64", "#2e8b57")):
            for way, values in row[kind].items():
                other = way == OTHER_ORDER
                label = f"{kind}, " + ("one process, other order" if other else "ranks")
                numbers = np.arange(1, len(values) + 1)
                line = {"color": "#d95f02", "linewidth": 2.2, "linestyle": (0, (2, 1.4))} if other else {}
                style: dict[str, Any] = {"color": colour, "linewidth": 1.1, "label": label, **line}
                # What is equal bit for bit has no logarithm.
                panel.plot(numbers, np.maximum(values, 1e-17), **style)
        panel.set_yscale("log")
        panel.set_ylim(1e-17, 10)
        panel.set_title(f"{row['network'].replace(':', ', ')}, rate {row['rate']:g}", fontsize=9)
        panel.grid(alpha=0.3)
    for panel in panels[-1]:
        panel.set_xlabel("steps")
    figure.supylabel("difference / way from the start", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=120)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="How far ranks are from plain Keras, and how far rounding goes."
    )
    parser.add_argument(
        "--networks", nargs="+", default=NETWORKS, metavar="NAME[:NORMALISATION[:ACTIVATION]]"
    )
    parser.add_argument("--rates", nargs="+", type=float, default=[0.001, 0.01], help="of SGD")
    parser.add_argument("--worlds", nargs="+", type=int, default=[1, 2, 3, 4], help="numbers of ranks")
    parser.add_argument("--batch", type=int, default=12, help="samples over all ranks (default: 12)")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--edge", type=int, default=32, help="of the volumes, in voxels (default: 32)")
    parser.add_argument("--seeds", type=int, default=1, help="sets of weights and batches (default: 1)")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(json.loads(args.worker[0]), Path(args.worker[1]))
        return 0
    for ranks in args.worlds:
        if ranks < 1 or args.batch % ranks:
            parser.error(f"--batch {args.batch} cannot be divided over {ranks} ranks")
    job = {name: getattr(args, name) for name in ("networks", "rates", "batch", "steps", "seeds", "edge")}
    rows = study(job, args.worlds)
    print(json.dumps(rows, indent=2) if args.json else "\n".join(table(rows)))
    if args.picture:
        draw(args.picture, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
