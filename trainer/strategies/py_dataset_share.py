"""A rank's share of a `keras.utils.PyDataset`."""

from __future__ import annotations

from typing import Any

import keras

from trainer.errors import InputError
from trainer.ranks.world import World


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
