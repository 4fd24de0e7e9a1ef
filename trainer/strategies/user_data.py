"""A rank's share of data that a user's own script brings, in any form that `model.fit` takes but generators.

Every rank gets equally many samples, always: ranks that take different numbers of steps wait for each
other for ever. Where the data do not divide evenly, the first samples fill up the last ranks' shares.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from trainer.errors import ConfigError, InputError
from trainer.ranks import world as worlds
from trainer.ranks.world import World


def shard(*data: Any, batched: bool | None = None) -> Any:
    """Return this rank's share.

    Arrays: sample i goes to rank i mod n. With the global batch divided by `trainer.size()` as `batch_size`
    and without shuffling, step s then sees the same samples as one process does. Up to n-1 of the first
    samples are repeated at the end, so that all shares are equally long. Give inputs, targets and sample
    weights together. Lists, tuples and dictionaries of arrays, as models with several inputs take them, keep
    their form; a list that holds numbers is one array.

    Dataset of samples: element i goes to rank i mod n; up to n-1 elements at the end are dropped, since their
    number is not known beforehand. Dataset of batches: every batch is split into n equal parts, so the
    global batch stays what it was; a last batch that does not divide is filled up with its own first
    samples. Every rank reads what comes before `shard`, in the same order only if a shuffle before it has a
    seed (`keras.utils.set_random_seed` gives one). Best is `shard` first, then shuffle, decode and batch.

    `keras.utils.PyDataset`: item i, which is a batch, goes to rank i mod n, and no rank makes the others'.
    The first items fill up. Divide its batch size by `trainer.size()` to keep the global batch.

    Args:
        *data: arrays with a common first axis, or structures of them; or one dataset. None is handed back as
            None.
        batched: whether a `tf.data.Dataset`'s elements are batches. Needed unless they are certainly samples:
            one part is a single number, or the parts' first dimensions are known and differ.

    Returns:
        The share, in the form given: one thing, or a tuple, which `validation_data` takes as well.

    Raises:
        InputError: arrays of different length, fewer samples than ranks, a dataset that may be one of samples
            or of batches, or something that cannot be shared out.
        WorldError: `trainer.init` was not called.
    """
    world = worlds.current()
    kinds = [_kind(part) for part in data]
    if "dataset" in kinds or "PyDataset" in kinds:
        if len(data) > 1:
            raise InputError(
                f"trainer.shard: {len(data)} arguments, one of them a {max(set(kinds) - {'arrays'})}.",
                cure="A dataset brings inputs, targets and weights itself: give it alone.",
            )
        if kinds[0] == "dataset":
            return _dataset_share(data[0], world, batched=_is_batched(data[0], batched))
    if batched is not None:
        raise InputError(
            "trainer.shard: batched is for a tf.data.Dataset.", cure="Leave it away: arrays hold samples."
        )
    if kinds == ["PyDataset"]:
        return PyDatasetShare(data[0], world) if world.size > 1 else data[0]
    shares = _array_shares(data, world)
    return shares[0] if len(shares) == 1 else tuple(shares)


def share_of(n: int, rank: int, size: int) -> np.ndarray:
    """Return the positions of a rank's samples among n, int64 `(ceil(n / size),)`; pure."""
    return (np.arange(-(-n // size), dtype=np.int64) * size + rank) % n


def _kind(part: Any) -> str:
    import keras
    import tensorflow as tf

    if isinstance(part, tf.data.Dataset):
        return "dataset"
    return "PyDataset" if isinstance(part, keras.utils.PyDataset) else "arrays"


def _array_shares(data: tuple[Any, ...], world: worlds.World) -> list[Any]:
    lengths: dict[str, int] = {}

    def note(array: Any, place: str) -> Any:
        lengths[place] = len(array)
        return array

    checked = [_mapped(note, part, f"argument {i}") for i, part in enumerate(data, 1)]
    if not lengths:
        raise InputError("trainer.shard: nothing to share out.", cure="x, y = trainer.shard(x, y)")
    if len(set(lengths.values())) > 1:
        shown = "; ".join(f"{place}: {n}" for place, n in list(lengths.items())[:4])
        raise InputError(
            f"trainer.shard: the arrays have different numbers of samples ({shown}).",
            cure="Inputs, targets and weights have one row for each sample. Share out each set by a call of "
            "its own: training, validation.",
        )
    n = next(iter(lengths.values()))
    if n < world.size:
        raise InputError(
            f"trainer.shard: {n} sample(s) are too few for {world.size} ranks.",
            cure=f"Give {world.size} or more, or start fewer ranks.",
        )
    if world.size == 1:
        return checked
    mine = share_of(n, world.rank, world.size)
    return [_mapped(lambda array, _: np.asarray(array)[mine], part, "") for part in checked]


def _mapped(change: Callable[[Any, str], Any], part: Any, place: str) -> Any:
    """A structure of arrays with each of them changed; `place` is what messages call it.

    Raises:
        InputError: something in it is no array.
    """
    if part is None:
        return None
    if isinstance(part, dict):
        return {key: _mapped(change, value, f"{place}[{key!r}]") for key, value in part.items()}
    if isinstance(part, (list, tuple)) and not _is_one_array(part):
        mapped = [_mapped(change, value, f"{place}[{i}]") for i, value in enumerate(part)]
        return type(part)(*mapped) if hasattr(part, "_fields") else type(part)(mapped)
    if isinstance(part, (list, tuple)):
        part = np.asarray(part)
    if not hasattr(part, "shape") or not hasattr(part, "__getitem__") or isinstance(part, np.generic):
        raise InputError(
            f"trainer.shard: {place} ({type(part).__name__}) cannot be shared out.", cure=_cure(part)
        )
    if len(part.shape) == 0:
        raise InputError(f"trainer.shard: {place} is a single number.", cure="Give one row for each sample.")
    return change(part, place)


def _is_one_array(part: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list holds numbers or texts, or lists of them, and no arrays."""
    first = part[0] if part else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, (bool, int, float, complex, str, bytes, np.generic))


def _cure(part: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(part, torch.utils.data.DataLoader):
        return (
            "Give its sampler the rank: torch.utils.data.DistributedSampler(dataset, trainer.size(), "
            "trainer.rank())."
        )
    if hasattr(part, "__next__") or callable(part):
        return (
            "A generator cannot say how many samples each rank gets: make a keras.utils.PyDataset of it, or "
            "tf.data.Dataset.from_generator(...)."
        )
    return (
        "Give arrays, lists, tuples or dictionaries of arrays, a tf.data.Dataset or a keras.utils.PyDataset."
    )


def _is_batched(dataset: Any, batched: bool | None) -> bool:
    """Whether elements are batches: what the caller says, or what is certain.

    Raises:
        InputError: it is not certain and the caller did not say, or what the caller says cannot be.
    """
    import tensorflow as tf

    shapes = [getattr(spec, "shape", tf.TensorShape(None)) for spec in tf.nest.flatten(dataset.element_spec)]
    firsts = {shape[0] for shape in shapes if shape.rank}
    # A batch has the same number of samples in front of each of its parts.
    samples = any(shape.rank == 0 for shape in shapes) or len(firsts - {None}) > 1
    shown = ", ".join(str(shape) for shape in shapes[:4])
    if batched and samples:
        raise InputError(
            f"trainer.shard: batched=True, but the dataset's elements ({shown}) are no batches.",
            cure="Leave batched=True away, or put .batch(...) before shard.",
        )
    if batched is None and not samples:
        raise InputError(
            f"trainer.shard: the dataset's elements ({shown}) may be samples or batches; taken for the wrong "
            "one, each rank would get half of every volume, or too few batches.",
            cure="Say it: trainer.shard(dataset, batched=False) before .batch(...), batched=True after it.",
        )
    return bool(batched)


def _dataset_share(dataset: Any, world: worlds.World, *, batched: bool) -> Any:
    import tensorflow as tf

    if world.size == 1:
        return dataset
    if batched:
        return dataset.map(lambda *batch: _unwrapped([_part(b, world) for b in batch]))
    elements = int(dataset.cardinality())
    if 0 <= elements < world.size:
        raise ConfigError(
            f"trainer.shard: {elements} element(s) are too few for {world.size} ranks.",
            cure="Start fewer ranks. If they are batches: trainer.shard(dataset, batched=True).",
        )
    if elements > 0:
        return dataset.shard(world.size, world.rank).take(elements // world.size)
    if elements == tf.data.INFINITE_CARDINALITY:
        return dataset.shard(world.size, world.rank)
    # Unknown number: a window of one element per rank is taken whole or not at all.
    windows = dataset.batch(world.size, drop_remainder=True)
    return windows.map(lambda *window: _unwrapped([_pick(w, world.rank) for w in window]))


def _part(batch: Any, world: worlds.World) -> Any:
    """This rank's part of a batch, or of each tensor of a nested one."""
    import tensorflow as tf

    def part(tensor: Any) -> Any:
        length = tf.shape(tensor)[0]
        share = -(-length // world.size)
        mine = (world.rank * share + tf.range(share)) % length
        taken = tf.gather(tensor, mine)
        fixed = tensor.shape[0]
        return (
            taken if fixed is None else tf.ensure_shape(taken, [-(-fixed // world.size), *tensor.shape[1:]])
        )

    return tf.nest.map_structure(part, batch)


def _pick(window: Any, rank: int) -> Any:
    import tensorflow as tf

    return tf.nest.map_structure(lambda tensor: tensor[rank], window)


def _unwrapped(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


# A rank's share of a `keras.utils.PyDataset`.


class PyDatasetShare(keras.utils.PyDataset):
    """Every n-th item of a dataset whose items are batches.

    The first ones fill up, so that ranks have equally many.

    What the dataset shuffles between epochs must be shuffled alike on every rank: with a seed.

    Args:
        whole: all ranks' items; if its `num_batches` is None it goes on for ever.
        world: all ranks.

    Raises:
        InputError: fewer items than ranks.
    """

    def __init__(self, whole: keras.utils.PyDataset, world: World) -> None:
        super().__init__(whole.workers, whole.use_multiprocessing, whole.max_queue_size)
        self._whole = whole
        # No world: with use_multiprocessing this object goes to other processes.
        self._rank, self._size = world.rank, world.size
        n = whole.num_batches
        if n is not None and n < world.size:
            raise InputError(
                f"trainer.shard: {n} item(s) of the PyDataset, which are batches, are too few for "
                f"{world.size} ranks.",
                cure="Divide its batch size by trainer.size(), or start fewer ranks.",
            )

    @property
    def num_batches(self) -> int | None:
        """The same number on every rank; None: without an end."""
        n = self._whole.num_batches
        return None if n is None else -(-n // self._size)

    def __getitem__(self, index: int) -> Any:
        n = self._whole.num_batches
        position = index * self._size + self._rank
        return self._whole[position if n is None else position % n]

    def on_epoch_begin(self) -> None:
        """Let the dataset prepare, such as shuffle, on every rank."""
        self._whole.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Let the dataset prepare the next epoch, on every rank."""
        self._whole.on_epoch_end()
