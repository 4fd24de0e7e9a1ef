"""What dividing a run's network over ranks would cost, by each strategy: nothing is trained or measured."""

from __future__ import annotations

import collections
import dataclasses
import math
from dataclasses import dataclass, field
from typing import cast

import keras

from trainer.config import RunConfig, StrategySection, micro_batch
from trainer.config.strategy import NAMES, PLANNED, check
from trainer.errors import ConfigError, InputError
from trainer.forecast import outlooks
from trainer.forecast.outlooks import (
    Comparison,
    Impossible,
    Rounds,
    StrategyOutlook,
    ToldOutlook,
    Unlisted,
)
from trainer.models import own as own_code
from trainer.planning import choice
from trainer.planning.exchange import ExchangePart
from trainer.planning.hypergraph import planning
from trainer.planning.hypergraph.replicas import MOST_RANKS
from trainer.planning.placement import costs, ways
from trainer.planning.placement.costs import Cost, Sent
from trainer.planning.placement.listing import task_lists
from trainer.planning.placement.memory import memory
from trainer.planning.placement.operations import OperationGraph
from trainer.planning.placement.plan_file import PlanFile
from trainer.planning.placement.tasks import Compute, Differentiate, Receive, Send, TaskLists
from trainer.planning.placement.units import Placement, place
from trainer.planning.profile import Profile
from trainer.planning.simulation import stepping
from trainer.planning.simulation.collectives import WholeUpdate
from trainer.planning.simulation.fabric import PairLinks
from trainer.planning.simulation.stepping import StepSeconds
from trainer.runs import preparation
from trainer.strategies import optimizers, registry, slots
from trainer.strategies.placed import reading
from trainer.strategies.placed.plan import PlacedPlan
from trainer.strategies.placed.strategy import PlacedStrategy


@dataclass(frozen=True)
class DivisionRequest:
    """What `outlook` divides.

    Attributes:
        config: of the run.
        model: its network, built.
        network: what that is, with the samples of a micro-batch of all ranks.
        ranks: that train.
        slots: numbers that the optimizer keeps for each parameter.
        profile: of the network; None: no seconds are predicted.
        show: is told how many of how many steps of dividing a hypergraph are done.
    """

    config: RunConfig
    model: keras.Model
    network: OperationGraph
    ranks: int
    slots: int
    profile: Profile | None
    show: planning.Show = field(default=lambda done, total: None)

    @property
    def samples(self) -> int:
        """Of a micro-batch of all ranks."""
        return self.config.train.global_batch // self.config.train.accumulation

    def under(self, section: StrategySection) -> RunConfig:
        """Return the configuration with another strategy."""
        train = self.config.train.model_copy(update={"strategy": section})
        return self.config.model_copy(update={"train": train})

    @classmethod
    def of(
        cls, config: RunConfig, model: keras.Model, ranks: int, profile: Profile | None
    ) -> DivisionRequest:
        """Describe a run's network.

        Raises:
            InputError: the profile is of another network or of fewer ranks, or a layer cannot be described.
        """
        network = reading.read(model, max(1, config.train.global_batch // config.train.accumulation))
        if profile is not None:
            costs.check_profile(profile, network, ranks)
        of_each = slots.per_parameter(optimizers.build(config.train, 1, model), model.trainable_variables)
        return cls(config, model, network, ranks, of_each, profile)


def compare(
    config: RunConfig,
    ranks: int,
    *,
    strategy: str | None = None,
    profile: Profile | None = None,
    show: planning.Show = lambda done, total: None,
) -> Comparison:
    """Build a run's network, divide it over ranks by each strategy, and predict what an update costs.

    Args:
        config: of the run; the shapes of inputs are those of its shard set.
        ranks: that would train; none is needed.
        strategy: of `PLANNED`, or the user's own of the configuration, that is asked for; default: that of
            the configuration, with its keys; of one that stands for another the first.
        profile: of the same network; without it no seconds are predicted.
        show: is told how many of how many steps of dividing a hypergraph are done, which may take minutes.

    Raises:
        InputError: the configuration, the data or the profile cannot be used, a layer cannot be divided, or
            the strategy that is asked for cannot divide the network over these ranks.
    """
    own = config.train.strategy
    name = strategy or (PLANNED[0] if own.stands_for_another else own.name)
    check(name, PLANNED, "planned", own)
    preparation.set_numerics(config)
    data = preparation.open_data(config)
    model = preparation.build_model(config, data, synchronised=False)
    request = dataclasses.replace(DivisionRequest.of(config, model, ranks, profile), show=show)
    among = choice.compared(request.network, ranks, request.samples, profile)
    first = own if own.name == name else next(one for one in among if one.name == name)
    others: list[StrategyOutlook | ToldOutlook | Impossible]
    others = [tried(request, one) for one in among if one.label != first.label]
    if own.name not in NAMES and own is not first:
        others.append(_own_tried(request, own))
    return Comparison(
        network=config.model.name,
        sample_shape=data.sample_shape,
        precision=config.train.precision,
        ranks=ranks,
        batch=request.samples,
        accumulation=config.train.accumulation,
        parameters=request.network.parameters,
        slots=request.slots,
        chosen=_chosen(request, first),
        others=tuple(others),
    )


def _chosen(request: DivisionRequest, section: StrategySection) -> StrategyOutlook | ToldOutlook | Unlisted:
    """Return what is requested, perhaps of more ranks than messages are listed of."""
    if section.name not in NAMES:
        return told(request, section)
    is_one = getattr(section, "replicas", None) == 1 and getattr(section, "plan", None) is None
    if request.ranks <= MOST_RANKS or not is_one or not section.plans_many:
        return outlook(request, section)
    strategy = _strategy(request, section)
    decided = strategy.decide(request.model, request.ranks)
    if decided is None:
        raise TypeError(f"{section.name} decides nothing for many ranks")
    network = reading.read(request.model, request.samples // strategy.micro_batches)
    return outlooks.outlook_of_many(
        section.label, strategy.way(request.ranks), network,
        strategy.layouts(network, request.ranks), request.ranks, decided,
        strategy.micro_batches * request.config.train.accumulation,
    )  # fmt: skip


def _strategy(request: DivisionRequest, section: StrategySection) -> PlacedStrategy:
    """The strategy of a section that divides the network, with what is known of it."""
    strategy = cast(PlacedStrategy, registry.of(request.under(section)))
    strategy.profile, strategy.show = request.profile, request.show
    return strategy


def tried(
    request: DivisionRequest, section: StrategySection, *, planners_too: bool = True
) -> StrategyOutlook | Impossible:
    """Return what a strategy would cost, or why it cannot divide the network; arguments as of `outlook`."""
    if request.ranks > MOST_RANKS and not section.plans_many:
        return Impossible(
            section.label,
            f"Not compared: to lay out more than {MOST_RANKS} ranks takes long.",
        )
    try:
        return outlook(request, section, planners_too=planners_too)
    except InputError as error:
        return Impossible(section.label, error.message)


def outlook(
    request: DivisionRequest, section: StrategySection, *, planners_too: bool = True
) -> StrategyOutlook:
    """Divide a network by a strategy, and predict what an update costs.

    Args:
        request: which network is divided, and over how many ranks.
        section: of the strategy, one of `PLANNED`.
        planners_too: whether to say what each planner of stages makes of them, which takes longer.

    Raises:
        InputError: it cannot be divided so.
    """
    if not section.divides_network:
        return _of_data(request)
    train, ranks = request.config.train, request.ranks
    is_by_file, replicas = (getattr(section, key) for key in ("plan", "replicas"))
    if ranks > MOST_RANKS and section.plans_many and is_by_file is None and replicas != 1:
        return _of_replicas(request, section)
    strategy = _strategy(request, section)
    plan = cast(PlacedPlan, strategy.plan(request.model, optimizers.build(train, 1), ranks))
    file = PlanFile.of(
        plan.placement,
        name=request.config.model.name,
        strategy=section.name,
        ranks=ranks,
        replicas=plan.replicas,
    )
    rounds: Rounds = ((plan.lists, train.accumulation),)
    found = _described(request, section.label, plan.way, file, plan.placement, rounds)
    found = dataclasses.replace(found, flops=tuple(plan.micro_batches * one for one in found.flops))
    planned = strategy.planners(request.model, ranks // plan.replicas) if planners_too else ()
    return dataclasses.replace(found, planners=planned, decided=getattr(plan, "decided", None))


def _of_replicas(request: DivisionRequest, section: StrategySection) -> StrategyOutlook:
    """Lay out the ranks of one replica, and add what sums over all replicas cost."""
    strategy = _strategy(request, section)
    count, train = strategy.settle(request.model, request.ranks), request.config.train
    samples = micro_batch(train.global_batch, world_size=count, accumulation=train.accumulation)
    train = train.model_copy(update={"global_batch": train.accumulation * samples})
    alone = dataclasses.replace(
        request, config=request.config.model_copy(update={"train": train}), ranks=request.ranks // count
    )
    replica = outlook(alone, section.model_copy(update={"replicas": 1}))
    return outlooks.outlook_of_replicas(
        replica,
        reading.read(request.model, count * samples // strategy.micro_batches),
        count,
        times=train.accumulation,
        slots=request.slots,
        profile=request.profile,
    )


def _own_tried(request: DivisionRequest, section: StrategySection) -> ToldOutlook | Impossible:
    try:
        return told(request, section)
    except InputError as error:
        return Impossible(section.label, error.message)


def told(request: DivisionRequest, section: StrategySection) -> ToldOutlook:
    """Ask a strategy of the user's own what an update costs; arguments as of `outlook`.

    Raises:
        ConfigError: its code raises an error, whose place is named, or it does not say what an update moves.
    """
    train, ranks, profile = request.config.train, request.ranks, request.profile
    with own_code.errors_with_place(section.name, what="strategy", error=ConfigError):
        strategy = registry.of(request.under(section))
        plan = strategy.plan(request.model, optimizers.build(train, 1), ranks)
        moves, memory_of_plan = plan.exchange(), plan.memory()
        if moves is None:
            raise ConfigError("Its plan does not say what an update moves: Plan.exchange().")
        cost = None
        if profile is not None:
            update = strategy.on_links(request.model, PairLinks(profile), ranks)
            step = _step(update, profile, request)
            cost = Cost(step.step_s, (step.busy_s,) * ranks, (step.waiting_s,) * ranks)
    messages = collections.Counter(
        flow.source for flows in moves.rounds for flow in flows if flow.source != flow.target
    )
    network = reading.read(request.model, plan.micro_batch)
    if memory_of_plan is None:
        alone = place(network, ways.alone(network))
        of_each = memory(alone, task_lists(alone), 1, slots=request.slots, whole_update=True)
        memory_of_plan = of_each * ranks
    return ToldOutlook(
        label=section.label,
        way=f"{plan.micro_batch} sample(s) of each micro-batch on every rank, as {section.name} plans it",
        sent=tuple(Sent(round(one.sent), messages[rank]) for rank, one in enumerate(moves.payload)),
        memory=memory_of_plan,
        flops=(float(train.accumulation * sum(one.flops for one in network.operations)),) * ranks,
        cost=cost,
    )


def _step(update: WholeUpdate, profile: Profile, request: DivisionRequest) -> StepSeconds:
    """The step of ranks that each compute the whole network, as long as the slowest does."""
    train = request.config.train
    work = stepping.slowest(profile, update.micro_batch, train.accumulation)
    count, size = len(update.parts), math.fsum(update.parts)
    parts = [ExchangePart(number / count, part / size) for number, part in enumerate(update.parts, start=1)]
    sums = sum(one.kind.endswith("_moments") for one in request.network.operations)
    rounds_s = 2 * sums * train.accumulation * update.sum_s * train.sync_batch_norm
    return stepping.whole_network(work, update.exchanged, parts, request.ranks, 0.0, rounds_s=rounds_s)


def _of_data(request: DivisionRequest) -> StrategyOutlook:
    """Data parallelism as a placement: samples are cut, every rank holds and updates all."""
    train, ranks = request.config.train, request.ranks
    each = micro_batch(train.global_batch, world_size=ranks, accumulation=train.accumulation)

    placement = place(request.network, ways.replicas(request.network, ranks, 1, ways.alone))
    dropped = () if train.sync_batch_norm else ("output", "gradient")
    lists = _without(task_lists(placement), dropped)
    # Gradients are summed once in an update, with its last micro-batch.
    rounds: Rounds = ((lists, 1),)
    if train.accumulation > 1:
        passes = _without(lists, ("part", "value"), updates=False)
        rounds = (*rounds, (passes, train.accumulation - 1))
    file = PlanFile.of(
        placement, name=request.config.model.name, strategy="data", ranks=ranks, replicas=ranks
    )
    way = f"{each} sample(s) of each micro-batch on every rank, which holds the whole network"
    return _described(request, "data", way, file, placement, rounds, is_whole=True)


def _without(lists: TaskLists, contents: tuple[str, ...], *, updates: bool = True) -> TaskLists:
    """The lists without messages of these contents, and, if so wished, without updates."""
    return {
        rank: tuple(
            task
            for task in tasks
            if (
                task.messages[0].content not in contents
                if isinstance(task, Send | Receive)
                else updates or isinstance(task, Compute | Differentiate)
            )
        )
        for rank, tasks in lists.items()
    }


def _described(
    request: DivisionRequest,
    named: str,
    way: str,
    file: PlanFile,
    placement: Placement,
    rounds: Rounds,
    *,
    is_whole: bool = False,
) -> StrategyOutlook:
    """The figures of a placement; `is_whole`: every rank updates all that it holds."""
    ranks = request.ranks
    trained = [held for path, held in placement.holders.items() if path in placement.reductions]
    held = tuple(sum(one.elements(rank) for one in trained) for rank in range(ranks))
    owned = held if is_whole else costs.owned(placement, ranks)
    each = [(costs.sent(lists, ranks), times) for lists, times in rounds]
    micro_batches = sum(times for _, times in rounds)
    return StrategyOutlook(
        label=named,
        way=way,
        file=file,
        placement=placement,
        sent=tuple(
            Sent(
                sum(times * one[rank].bytes for one, times in each),
                sum(times * one[rank].messages for one, times in each),
            )
            for rank in range(ranks)
        ),
        memory=memory(placement, rounds[0][0], ranks, slots=request.slots, whole_update=is_whole),
        held=held,
        owned=owned,
        flops=tuple(micro_batches * one for one in costs.flops(placement, ranks)),
        rounds=rounds,
        cost=_cost(request.profile, placement, rounds, ranks, owned) if request.profile is not None else None,
    )


def _cost(
    profile: Profile, placement: Placement, rounds: Rounds, ranks: int, updated: tuple[int, ...]
) -> Cost:
    """Seconds of an update, one round after the other."""
    parts = [
        (costs.predict(placement, lists, profile, ranks, updated=dict(enumerate(updated))), times)
        for lists, times in rounds
    ]
    step = math.fsum(times * one.step_s for one, times in parts)
    busy = tuple(math.fsum(times * one.busy_s[rank] for one, times in parts) for rank in range(ranks))
    return Cost(step, busy, tuple(step - one for one in busy))
