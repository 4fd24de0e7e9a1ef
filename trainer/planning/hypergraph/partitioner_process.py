"""Mt-KaHyPar in a process of its own, where its death is an answer and not the end of a training.

As a program, this file reads what `partitioner` asks, a JSON object a line, and answers each with one.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

# The largest hypergraphs that are divided take a tenth of it.
_MEMORY_BYTES = 4 * 2**30


def main() -> None:
    """Answer until there is nothing more to read; one thread, so that the same input gives the same parts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(_MEMORY_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    # What the library prints is no answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        import mtkahypar

        machine = mtkahypar.initialize(1)
        for line in sys.stdin:
            try:
                found: dict[str, Any] = {"parts": _parts(mtkahypar, machine, json.loads(line))}
            except (mtkahypar.SystemError, RuntimeError, ValueError, MemoryError) as error:
                found = {"refused": str(error) or type(error).__name__}
            answers.write(json.dumps(found) + "\n")
            answers.flush()


def _parts(library: Any, machine: Any, request: dict[str, Any]) -> list[int]:
    library.set_seed(request["seed"])
    context = machine.context_from_preset(library.PresetType.QUALITY)
    # With a target the trees are minimised, whatever is said here.
    context.set_partitioning_parameters(request["parts"], request["imbalance"], library.Objective.KM1)
    context.logging = False
    if request["limits"]:
        context.set_individual_target_block_weights(request["limits"])
    nets, weights, target = request["nets"], request["weights"], request["target"]
    graph = machine.create_hypergraph(context, len(weights), len(nets), nets, weights, request["costs"])
    if request["fixed"]:
        graph.add_fixed_vertices(request["fixed"], request["parts"])
    if target is None:
        partition = graph.partition(context)
    else:
        edges, lengths = [(a, b) for a, b, _ in target], [length for *_, length in target]
        joined = machine.create_target_graph(context, request["parts"], len(edges), edges, lengths)
        partition = graph.map_onto_graph(joined, context)
    return [int(partition.block_id(vertex)) for vertex in range(len(weights))]


if __name__ == "__main__":
    main()
