"""A server of asynchronous training: holds variables, applies each update as it comes.

Every server has the whole network and its optimizer, but keeps up to date only its own variables and their
slots; server 0 collects the others' when the state is to be evaluated or saved.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainer.ranks.links import Links
from trainer.ranks.members import TO_SERVERS
from trainer.ranks.messages import Mailbox, ReceivedMessage
from trainer.strategies.async_servers import async_state as state
from trainer.strategies.async_servers.async_state import Tag, VariableShares
from trainer.strategies.compiled_update import Updated, is_compiled, set_compiled
from trainer.strategies.schedule import schedule_of


class Held:
    """Everything that belongs to one server's trained variables, in the network and optimizer of any process.

    Args: see `Shard`.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.Optimizer, shares: VariableShares, server: int
    ) -> None:
        slots = state.slots(optimizer, shares.trained[server])
        self._variables = [*shares.variables(model, server), *slots]
        # Not `iterations`, which under accumulation is a number of updates, and no variable.
        self._iterations = optimizer.variables[0]
        self._schedule = schedule_of(optimizer)

    def save(self) -> np.ndarray:
        """Return weights, slots, the optimizer's count of steps and its schedule's cycles, flat float32."""
        cycles = np.array(self._schedule.cycles if self._schedule else [], np.float32).ravel()
        # float32 counts to 16 million.
        counts = np.append(np.float32(self._iterations.numpy()), [*cycles, np.float32(cycles.size)])
        return np.concatenate([state.flat(self._variables), counts]).astype(np.float32)

    def restore(self, vector: np.ndarray) -> None:
        """Take over what `save` returned, perhaps in another process."""
        counts = vector[-2 - int(vector[-1]) : -1]
        state.assign(self._variables, vector[: -counts.size - 1])
        self._iterations.assign(int(counts[0]))
        # A process other than the main one does not know by what the run was made longer.
        if self._schedule is not None:
            self._schedule.cycles = [(int(first), int(n)) for first, n in counts[1:].reshape(-1, 2)]


class Shard:
    """One server's variables and their update.

    Args:
        model: built; its weights are what training begins with.
        optimizer: of the same configuration as with other strategies, built for all trained variables.
        shares: who holds what.
        server: our number.

    Attributes:
        version: updates applied since the start of this session.
        optimizer: that it was made with.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.Optimizer, shares: VariableShares, server: int
    ) -> None:
        self.version = 0
        self.optimizer = optimizer
        self._trained = shares.variables(model, server)
        self._untrained = list(model.non_trainable_weights) if server == 0 else []
        self._held = Held(model, optimizer, shares, server)
        self._micro_batches = optimizer.gradient_accumulation_steps or 1
        self._weights: np.ndarray | None = None
        self._apply = tf.function(self._apply_flat, autograph=False)

    def updated(self) -> Updated:
        """Return what it updates."""
        return Updated((self.optimizer,), tuple(self._trained))

    def weights(self) -> np.ndarray:
        """Return immutable flat float32 weights for workers."""
        if self._weights is None:
            self._weights = state.flat([*self._trained, *self._untrained])
        return self._weights

    def update(self, vector: np.ndarray) -> None:
        """Apply gradients, and add the differences of what is not trained."""
        split = vector.size - sum(int(np.prod(v.shape)) for v in self._untrained)
        self._apply(tf.convert_to_tensor(vector[:split]))
        if self._untrained:
            now = state.flat(self._untrained)
            state.assign(self._untrained, now + vector[split:])
        self._weights = None
        self.version += 1

    def restore(self, vector: np.ndarray) -> None:
        """Begin with what `Held.save` gave."""
        self._held.restore(vector)
        self._weights = None

    def save(self) -> np.ndarray:
        """Return what server 0 needs: see `Held`."""
        return self._held.save()

    def _apply_flat(self, vector: Any) -> None:
        sizes = [int(np.prod(v.shape)) for v in self._trained]
        parts = tf.split(vector, sizes)
        gradients = [tf.reshape(p, v.shape) for p, v in zip(parts, self._trained, strict=True)]
        # The worker has taken the mean over its micro-batches. To the optimizer they come one by one, so that
        # its state and its count of steps are those of the other strategies.
        for _ in range(self._micro_batches):
            self.optimizer.apply(gradients, self._trained)


class FurtherServer:
    """A server with a number above 0: does what workers and server 0 ask.

    Args:
        shard: its variables.
        links: of the world.
        post: its mailbox.
    """

    def __init__(self, shard: Shard, links: Links, post: Mailbox) -> None:
        self._shard, self._links, self._post = shard, links, post
        self._pushed: Counter[int] = Counter()
        self._gone: set[int] = set()
        self._wanted: np.ndarray | None = None

    def gone(self, process: int) -> None:
        """Wait no longer for updates of a worker that died."""
        self._gone.add(process)
        self._give_state()

    def handle(self, arrived: ReceivedMessage) -> None:
        """Do what a message asks for."""
        if arrived.tag == Tag.PULL:
            reply = state.message([self._shard.version], self._shard.weights())
            self._post.send(arrived.source, Tag.TAKE, reply)
        elif arrived.tag == Tag.PUSH:
            self._shard.update(state.values(arrived.array))
            self._pushed[arrived.source] += 1
        elif arrived.tag == Tag.STATE:
            set_compiled(self._shard.optimizer, bool(state.header(arrived.array)[0]))
            self._shard.restore(state.values(arrived.array))
        elif arrived.tag == Tag.COLLECT:
            self._wanted = arrived.array.view(np.int64)
        self._give_state()

    def _give_state(self) -> None:
        if self._wanted is None:
            return
        for process, updates in zip(self._links.workers, self._wanted, strict=True):
            if process not in self._gone and self._pushed[process] < updates:
                return
        self._wanted = None
        given = state.message([is_compiled(self._shard.optimizer)], self._shard.save())
        self._post.send(self._links.servers[0], Tag.STATE, given, channel=TO_SERVERS)
