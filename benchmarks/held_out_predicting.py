"""What `cingulum simulate` and `cingulum plan` predict of a case of held_out.py."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import emulated_units
import placement_rank
import published_results
import stages_on_hosts
from held_out_rank import job_of

from trainer.bench.placement_worker import network_of
from trainer.config import RunConfig
from trainer.errors import InputError
from trainer.forecast import groups, plans, simulating
from trainer.forecast.forecasts import Forecast
from trainer.forecast.subject import ForecastSubject, Scenario
from trainer.planning.placement import costs
from trainer.planning.profile import Profile, ProfiledHandling
from trainer.planning.simulation import devices
from trainer.planning.simulation.cluster import Cluster
from trainer.planning.simulation.fabric import ClusterFabric


class Emulated(ForecastSubject):
    """A network on emulated hosts, for which there is no shard set.

    Args:
        asked: what is to be simulated.
        model: the network, built.
    """

    def __init__(self, asked: Scenario, model: Any) -> None:
        self.asked, self.config, self.cluster, self.model = asked, asked.config, asked.cluster, model
        self.deviation, self.slots = 0.0, 1
        self._rows, self._sample_bytes, self._networks = 1, 0.0, {}


def cluster(known: dict[str, Any], rate: str) -> Cluster:
    """Return emulated hosts with links of a rate, by what was calibrated on links of another."""
    carries = known["carried"] * stages_on_hosts.bits_per_second(rate) / 8
    return published_results.flat(1e12, carries, latency_s=known["latency_s"], source="calibrated")


def profile(known: dict[str, Any], cell: dict[str, Any], section: dict[str, Any]) -> Profile:
    """Return the profile of a network on one emulated device, as it runs a strategy."""
    of_one = {**cell, "ranks": 1, "rate": "1gbit"}
    handled = ProfiledHandling(**{key: (value,) for key, value in known["handling"].items()})
    found = stages_on_hosts.profile(of_one, job_of(cell, section), handled)
    update = found.update.model_copy(
        update={"seconds": (known["update_s_per_parameter"] * found.update.parameters,)}
    )
    task_s = known["task_s"]
    if section["name"] in placement_rank.WHOLE:
        # Only layers of the chain that wait take longer; simulate counts all operations.
        waiting = sum(one.kind in emulated_units.KINDS for one in found.operations)
        task_s = known["wait_s"] * waiting / sum(one.kind != "input" for one in found.operations)
    return found.model_copy(update={"update": update, "task_s": (task_s,)})


def config_of(cell: dict[str, Any], section: dict[str, Any]) -> RunConfig:
    """Return the configuration of a run."""
    from trainer import config as configuration

    tree = {
        "name": "held-out",
        "data": {"shards": "none"},
        "model": {"name": cell["model"], "width": cell["width"]},
        "train": {
            "global_batch": cell["samples"],
            "strategy": section,
            # A chain of waiting layers has no batch norm.
            "sync_batch_norm": section["name"] not in placement_rank.WHOLE,
            "optimizer": {"name": "sgd", "momentum": 0.9},
        },
    }
    return configuration.parse(json.dumps(tree), [])


def with_plan(section: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the section of a strategy that divides a network as a plan's file has it."""
    kept = {key: section[key] for key in ("name", "replicas", "micro_batches") if key in section}
    return {**kept, "plan": str(path)}


def planned(
    known: dict[str, Any], cell: dict[str, Any], section: dict[str, Any], before: str | None = None
) -> dict[str, Any]:
    """Return what a strategy is predicted to take on links of each rate, planned for the first of them.

    Args:
        known: what was calibrated.
        cell: network, ranks and links.
        section: of the strategy.
        before: text of a plan's file that was made before, to predict what it takes.

    Returns:
        `simulated_s` and `planned_s`: seconds of `cingulum simulate` and `cingulum plan` by rate;
        `memory_bytes`: of each rank; `plan`: text of the plan's file, None where ranks need none.

    Raises:
        InputError: the strategy cannot train the network on so many ranks.
    """
    model = network_of(job_of(cell, section))
    if section["name"] in placement_rank.WHOLE:
        return _of_whole(known, cell, section, model)
    ranks, rates, own = cell["ranks"], cell["rates"], profile(known, cell, section)
    fabrics = {rate: ClusterFabric(cluster(known, rate), ranks) for rate in rates}
    profiles = {rate: devices.scaled(own, fabric) for rate, fabric in fabrics.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(before or "")
        config = config_of(cell, section if before is None else with_plan(section, path))
        asked = plans.DivisionRequest.of(config, model, ranks, profiles[rates[0]])
        whole = plans.outlook(asked, config.train.strategy, planners_too=False)
    found: dict[str, Any] = {
        "planned_s": {
            rate: costs.predict(whole.placement, whole.rounds[0][0], one, ranks).step_s
            for rate, one in profiles.items()
        },
        "memory_bytes": [rank.total for rank in whole.memory],
        "plan": whole.file.text(),
    }
    found["simulated_s"] = {
        rate: groups.play(whole, profiles[rate], fabric, deviation=0.0).step.step_s
        for rate, fabric in fabrics.items()
    }
    return found


def _of_whole(
    known: dict[str, Any], cell: dict[str, Any], section: dict[str, Any], model: Any
) -> dict[str, Any]:
    """Of strategies by which every rank trains the whole network."""
    found: dict[str, Any] = {"simulated_s": {}, "plan": None}
    for rate in cell["rates"]:
        hosts = cluster(known, rate)
        asked = Scenario(
            config_of(cell, section), hosts, section["name"], profile=profile(known, cell, section)
        )
        strategies = simulating.Strategies(Emulated(asked, model))
        row, _ = next(strategies.strategies(ClusterFabric(hosts, cell["ranks"])))
        if not isinstance(row, Forecast):
            raise InputError(row.reason)
        found["simulated_s"][rate] = row.step.step_s
        found["memory_bytes"] = [row.memory_bytes] * cell["ranks"]
    return found
