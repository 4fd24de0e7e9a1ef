"""One rank of held_out.py: trains several ways one after the other, or measures what predictions go by."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator
from typing import Any

import placement_rank

from trainer.bench import blocks
from trainer.bench.placement_worker import PlacementJob, begin, network_of, strategy_of


def job_of(cell: dict[str, Any], section: dict[str, Any]) -> PlacementJob:
    """Return what the ranks of a cell train by a strategy's section."""
    size = cell["size"]
    return PlacementJob(section, cell["model"], size, size, cell["samples"], cell["width"])


def on_rank(cell: dict[str, Any]) -> None:
    """Answer a line with a block; see `_turns`."""
    job = job_of(cell, cell["ways"][0]["section"])
    strategy, world = begin(job)
    if world.is_server:
        placement_rank.run_first(first=cell["first"])
    strategy.take_part(world, _Story(cell))


@dataclasses.dataclass(frozen=True)
class _Story:
    """What ranks do while servers serve."""

    cell: dict[str, Any]

    def together(self, world: Any) -> int:
        """Time blocks until there is no more line."""
        turns = _turns(self.cell, world)
        blocks.answer(world, lambda: next(turns))
        return 0


def _turns(cell: dict[str, Any], world: Any) -> Iterator[Any]:
    """Yield nothing to begin with, then the blocks of each way, one way after the other."""
    yield None
    for way in cell["ways"] if cell["blocks"] else ():
        job = job_of(cell, way["section"])
        block, learner = placement_rank.timed(cell, job, strategy_of(job), world)
        block()
        for _ in range(cell["blocks"]):
            yield block()
        learner.close()
    while cell["calibrates"]:
        yield _links(cell, world)


def _links(cell: dict[str, Any], world: Any) -> dict[str, Any]:
    """Return what messages, their links, all-reduces and updates take."""
    import keras

    from trainer.strategies import compiled_update
    from trainer.strategies.placed.profiling import links, measuring
    from trainer.telemetry import link_probe

    placement_rank.run_first(first=cell["first"])
    model = network_of(job_of(cell, {"name": "data"}))
    took = measuring.measured_update(
        compiled_update.compilable(keras.optimizers.SGD(1e-3, momentum=0.9)), model
    )
    found: dict[str, Any] = {"update_s": took.median, "parameters": model.count_params()}
    if world.size > 1:
        between = links.measure(world, lambda done, total: None)
        pairs = [link for row in between for link in row if link is not None]
        found["link"] = [statistics.median(values) for values in zip(*pairs, strict=True)]
        handled = measuring.measured_handling(world)
        found["handling"] = handled and handled.model_dump()
        found["all_reduces"] = [list(one) for one in link_probe.measure(world)]
    placement_rank.run_first(first=False)
    return found
