"""Cases of the equivalence proof under parameter servers, against plain Keras in worker 0's process.

Arguments: servers, placement, file of the results, then `case:servers` for each run. What is written: for
each run the largest difference of a weight or of the optimizer's state, how far the weights moved, and bytes.
"""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
from cases import BATCH, CASES, SEED, Case, batches, network, state, train_in_one_process

import trainer
from trainer.config import ServerConfig
from trainer.ranks.members import Members
from trainer.ranks.starting import init
from trainer.strategies import compiled_update
from trainer.strategies.learner import Setup
from trainer.strategies.servers import serving, strategy

ROUNDS = 4  # of the six batches: more than 20 steps


def reference(case: Case) -> tuple[dict[str, Any], dict[str, Any]]:
    """State before and after training with nothing but Keras."""
    keras.utils.set_random_seed(3)
    model = network(case)
    start = {f"weight_{i}": v.numpy() for i, v in enumerate(model.weights)}
    train_in_one_process(model, case, ROUNDS)
    return start, state(model, model.optimizer)


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of what is in the first of two states."""
    return max(float(np.abs(np.float64(one[n]) - np.float64(other[n])).max()) for n in one)


def bytes_so_far(served: strategy.ServedModel) -> dict[str, Any]:
    box = served.client.mailbox
    # Of each server; a training does not ask.
    servers = served.client._ask({"do": "bytes"}) if world.is_main else None
    return {
        "workers": world.allgather_object(list(box.traffic())),
        "servers": world.broadcast_object(servers),
    }


servers, placement, results = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
world = init(threads=1, members=Members(servers, placement))
if world.is_server:
    sys.exit(serving.serve(world))
share = BATCH // world.size
mine = slice(world.rank * share, (world.rank + 1) * share)
found = {}
references: dict[str, Any] = {}
with serving.serving(world):
    for run in sys.argv[4:]:
        name, _, count = run.partition(":")
        case = CASES[name]
        keras.config.set_dtype_policy(case.policy)
        if world.is_main and name not in references:
            references[name] = reference(case)
        # Layers must have the same names on all ranks, or their collectives never meet.
        keras.utils.clear_session()
        keras.config.set_dtype_policy(case.policy)
        # Only worker 0 starts like the reference: the broadcast must do the rest.
        keras.utils.set_random_seed(3 + world.rank)
        model = network(case, trainer.SyncBatchNormalization)
        # Messages of 1 KiB: the small network is cut into several.
        config = ServerConfig(count=int(count), placement=placement, piece_mb=1 / 1024)
        optimizer = case.optimizer()
        plan = strategy.plan(
            model, world_size=world.size, global_batch=BATCH, server=config, optimizer=optimizer
        )
        served = strategy.build(plan, Setup(model, optimizer, world, seed=SEED))
        # As a run does it: servers time both ways, and worker 0 tells them.
        chosen = compiled_update.choose("xla" if case.compiled else "none", served.updated(), world)
        assert chosen.compiled is case.compiled and (chosen.plain_ms is not None) is case.compiled
        before = bytes_so_far(served)
        for _ in range(ROUNDS):
            for x, y, w in batches(case):
                served.train_step(x[mine], y[mine], w[mine])
        after = bytes_so_far(served)
        # Not guards.check_divergence: layers of worker 0, which has the reference too, have other names.
        weights = b"".join(np.asarray(v.value).tobytes() for v in model.weights)
        digests = world.allgather_object(hashlib.sha256(weights).hexdigest())
        served.gather()
        if world.is_main:
            start, end = references[name]
            found[run] = {
                "apart": apart(state(model, optimizer), end),
                "ranks_differ": len(set(digests)) > 1,
                "moved": apart(start, end),
                "planned": [[n, n] for n in (*plan.worker_sent, *plan.server_sent)],
                "bytes": [
                    [int(n) for n in np.subtract(b, a)]
                    for a, b in zip(
                        [*before["workers"], *([s["sent"], s["received"]] for s in before["servers"])],
                        [*after["workers"], *([s["sent"], s["received"]] for s in after["servers"])],
                        strict=True,
                    )
                ],
                "steps": ROUNDS * len(batches(case)),
            }
        served.close()
        world.barrier()
if world.is_main:
    results.write_text(json.dumps(found))
