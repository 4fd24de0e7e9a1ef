"""Choose the strategy of a run when it starts: what all ranks measure and plan, and agree on."""

from __future__ import annotations

from typing import cast

import keras

from trainer.byte_sizes import as_text
from trainer.config import AutoConfig, RunConfig, StrategySection
from trainer.config import strategy as strategies
from trainer.errors import ConfigError, InputError
from trainer.forecast import plans
from trainer.forecast.outlooks import StrategyOutlook, ToldOutlook
from trainer.forecast.plans import DivisionRequest
from trainer.models import own as own_code
from trainer.planning import choice
from trainer.planning.choice import Candidate
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import Profile
from trainer.profiling import default_batch
from trainer.progress import Reporter
from trainer.ranks.agreement import Agreed, agree
from trainer.ranks.members import Members
from trainer.ranks.watchdog import Beat
from trainer.ranks.world import World
from trainer.run_folder.record import RunFolder
from trainer.runs import preparation
from trainer.runs.watching import Watch
from trainer.strategies import registry
from trainer.strategies.base import Strategy
from trainer.strategies.placed import costs_of_run
from trainer.strategies.placed.strategy import PlacedStrategy

# Reasons that one message names.
_MOST_REASONS = 8


def settle(
    config: RunConfig, world: World, folder: RunFolder, *, reporter: Reporter, beat: Beat
) -> tuple[Strategy, Watch]:
    """Return the strategy that trains a run with `train.strategy=auto`, as plan.json has it or chosen now.

    A collective. A choice that plan.json has is taken as it is where the run goes on with the same hosts,
    samples and keys, so that it ends with the same weights.

    Raises:
        Agreed: what is wrong with the configuration, the data or the profile, or no strategy can train it.
    """
    auto = config.train.strategy
    if not isinstance(auto, AutoConfig):
        raise TypeError(f"{auto.name} was not asked to choose")
    decision = choice.recorded(world.broadcast_object(folder.read_plan() if world.is_main else None))
    request = {"among": list(auto.among), "profile": auto.profile and str(auto.profile)}
    batch = (config.train.global_batch, config.train.accumulation)
    hosts = tuple(world.hosts)
    profile = None
    if decision is None or (decision.asked, decision.hosts, decision.batch) != (request, hosts, batch):
        profile, tried = _tried(config, auto, world, beat)
        decision = choice.first(request, hosts, batch, tried)
        if decision is None:
            raise Agreed(_none(world.size, tried))
    # Keras numbers the names that it gives, and ranks reduce gradients by name: what was built so far, to
    # plan or to train before another choice, was not the same on all ranks.
    keras.utils.clear_session()
    reporter.note(decision.told())
    section = strategies.section(decision.now.section)
    train = config.train.model_copy(update={"strategy": section})
    strategy = registry.of(config.model_copy(update={"train": train}))
    if section.divides_network:
        cast(PlacedStrategy, strategy).profile = profile
    return strategy, Watch(decision, auto.reconsider_after)


def _tried(
    config: RunConfig, auto: AutoConfig, world: World, beat: Beat
) -> tuple[Profile | None, list[Candidate]]:
    """Plan every candidate, each on one rank; all learn of all."""
    if world.size == 1:
        agree(world, lambda: Profile.read(auto.profile) if auto.profile else None)
        return None, [Candidate(label="data", section={"name": "data"}, fits=True)]
    beat("building the network to choose a strategy")

    def build() -> keras.Model:
        preparation.set_numerics(config)
        data = preparation.open_data(config)
        return preparation.build_model(config, data, synchronised=False)

    model = agree(world, build)
    beat("measuring the network to choose a strategy", collective=True)
    profile = costs_of_run.profile(config, auto.profile, model, world, default_batch(config, world.size))
    if profile is None:
        raise TypeError("nothing was measured")
    free = costs_of_run.memory_bytes(world, world.size)
    request = agree(world, lambda: DivisionRequest.of(config, model, world.size, profile))
    sections = choice.sections(
        auto,
        world.size,
        config.train.global_batch // config.train.accumulation,
        normalised=any(one.kind == "batch_norm" for one in request.network.operations),
        speeds=_speeds(request.network, profile, world.size),
    )

    def plan() -> list[Candidate]:
        candidates = []
        for section in sections[world.rank :: world.size]:
            beat(f"planning {choice.label(section)}")
            candidates.append(_candidate(request, section, free))
        return candidates

    mine = agree(world, plan)
    beat("waiting for what other ranks planned", collective=True)
    everyones = world.allgather_object([one.model_dump(mode="json") for one in mine])
    tried = [
        Candidate.model_validate(everyones[number % world.size][number // world.size])
        for number in range(len(sections))
    ]
    return profile, tried


def _candidate(request: DivisionRequest, section: StrategySection, free: list[float]) -> Candidate:
    name = choice.label(section)
    settings = section.model_dump(mode="json", exclude_defaults=True) | {"name": section.name}
    try:
        outlook: StrategyOutlook | ToldOutlook
        if section.name in strategies.NAMES:
            outlook = plans.outlook(request, section, planners_too=False)
        else:
            _check_needs(registry.of(request.under(section)), request.ranks)
            outlook = plans.told(request, section)
    except InputError as error:
        return Candidate(label=name, section=settings, refused=error.message)
    needed = [rank.total for rank in outlook.memory]
    return Candidate(
        label=name,
        section=settings,
        step_s=outlook.cost and outlook.cost.step_s,
        memory_bytes=max(needed),
        idle=sum(not one for one in outlook.flops),
        fits=all(need <= left for need, left in zip(needed, free, strict=True)),
    )


def _check_needs(strategy: Strategy, ranks: int) -> None:
    """Refuse a strategy of the user's own that needs what MPI and Horovod were not started with.

    Raises:
        ConfigError: it needs more than messages between ranks.
    """
    with own_code.errors_with_place(strategy.name, what="strategy", error=ConfigError):
        needed, variables = strategy.members(ranks), strategy.environment()
    if variables or needed != Members(messages=needed.messages):
        raise ConfigError(
            f"{strategy.name} asks for more than messages (members, environment), which is there only where "
            "train.strategy.name names it"
        )


def _speeds(network: OperationGraph, profile: Profile, ranks: int) -> list[float]:
    """How fast each rank computes the whole network, relative to the fastest."""
    took = [
        sum(
            profile.forward_s(one.name, rank) + profile.backward_s(one.name, rank)
            for one in network.operations
        )
        for rank in range(ranks)
    ]
    return [min(took) / one if one else 1.0 for one in took]


def _none(ranks: int, tried: list[Candidate]) -> ConfigError:
    reasons = [f"{one.label}: {one.refused or _too_large(one)}" for one in tried]
    left = len(reasons) - _MOST_REASONS
    shown = [*reasons[:_MOST_REASONS], *([f"and {left} more"] if left > 0 else [])]
    told = "\n  ".join(shown) or "no number of replicas divides the samples"
    return ConfigError(
        f"train.strategy: none of the strategies can train this network on {ranks} rank(s):\n  {told}",
        cure="Launch another number of ranks, take fewer samples at once (train.accumulation), or name more "
        "strategies (train.strategy.among).",
        key="train.strategy",
    )


def _too_large(one: Candidate) -> str:
    return f"a rank needs {as_text(one.memory_bytes or 0)}, more than it has"
