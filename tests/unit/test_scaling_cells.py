import dataclasses

import pytest
from wording import fails_with

from trainer.bench.scaling.cells import Cell, MeasuredCell, key
from trainer.bench.scaling.study import Study, merged
from trainer.bench.scaling.summary import TrainingCurve
from trainer.bench.scaling.variants import OTHERS, OtherSystem, section, variant
from trainer.errors import ConfigError, InputError


def test_processes_sit_on_hosts_in_blocks_and_separate_servers_on_hosts_of_their_own():
    cell = Cell("tiny", ranks=4, hosts=2, strategy="parameter-server", servers=2)
    assert cell.places() == (0, 0, 1, 1, 2, 3)
    assert (cell.processes, cell.machines) == (6, 4)
    colocated = dataclasses.replace(cell, options={"placement": "colocated"})
    assert colocated.places() == (0, 0, 1, 1)
    assert (colocated.processes, colocated.machines) == (4, 2)
    here = dataclasses.replace(cell, hosts=0)
    assert (here.places(), here.machines) == ((0,) * 6, 0)


def test_strong_scaling_shares_the_batch_and_weak_scaling_gives_it_to_each_rank():
    strong = Cell("tiny", batch=8, ranks=4)
    assert (strong.rank_batch, strong.global_batch) == (2, 8)
    weak = dataclasses.replace(strong, scaling="weak")
    assert (weak.rank_batch, weak.global_batch) == (8, 32)


def test_equal_cells_have_equal_keys_and_every_field_counts():
    cell = Cell("tiny", options={"a": 1, "b": 2})
    assert key(cell) == key(Cell("tiny", options={"b": 2, "a": 1}))
    others = {
        "model": "vgg",
        "scaling": "weak",
        "options": {},
        "hosts": 3,
        "repeat": 1,
        "epochs": 2,
        "cpus": 0.5,
    }
    keys = {key(dataclasses.replace(cell, **{name: value})) for name, value in others.items()}
    assert len(keys | {key(cell)}) == len(others) + 1
    # A key that changed would have every study measured again.
    assert key(Cell("tiny")) == "1f1b97cc82da21f4"


def test_a_row_comes_back_from_its_line():
    row = MeasuredCell(Cell("tiny"), 3.5, {"median": 1.0}, curve=({"seconds": 1.0},), error=None)
    assert MeasuredCell.from_json(row.to_json()) == row
    for line in ("", "{", "[]", '{"key": 1}', row.to_json().replace('"servers"', '"waiters"')):
        with pytest.raises(ValueError, match=r"no row of a study|Expecting"):
            MeasuredCell.from_json(line)


def test_a_product_has_each_cell_once_and_repeats_in_turn():
    found = Study(
        models=("a", "b"),
        ranks=(1, 2),
        strategies=("data", "parameter-server/servers=n"),
        batch=4,
        hosts=(0, 8),
        bandwidths=("200mbit", "1gbit"),
        repeats=2,
        epochs=3,
        emulated=True,
        cpus=0.2,
    ).cells()
    assert len({key(cell) for cell in found}) == len(found)
    here = [cell for cell in found if not cell.hosts]
    assert all((cell.bandwidth, cell.emulated, cell.cpus) == (None, False, None) for cell in here)
    assert {cell.hosts for cell in found} == {0, 1, 2}  # one rank takes one host
    timed = [cell for cell in found if not cell.train]
    assert [cell.repeat for cell in timed] == sorted(cell.repeat for cell in timed)
    trained = found[len(timed) :]
    assert all(cell.train and cell.scaling == "strong" and cell.steps == 0 for cell in trained)
    assert len(trained) * 4 == len(timed)
    assert {cell.servers for cell in found if cell.ranks == 2} == {0, 2}


def test_what_is_compared_is_timed_only_and_asynchronous_servers_are_trained_only(monkeypatch):
    monkeypatch.setitem(OTHERS, "peer:ddp", OtherSystem("PyTorch DDP (gloo)", False, print, print))
    words = ("peer:ddp", "parameter-server/mode=async")
    found = Study(models=("tiny",), ranks=(2,), strategies=words, batch=4, epochs=1).cells()
    assert {(cell.strategy, cell.train) for cell in found} == {
        ("peer:ddp", False),
        ("parameter-server", True),
    }


def test_a_batch_that_ranks_cannot_share_is_told():
    asked = {"models": ("tiny",), "ranks": (1, 3), "strategies": ("data",), "batch": 8}
    with fails_with(InputError):
        Study(**asked).cells()
    assert len(Study(**asked, scalings=("weak",)).cells()) == 2


def test_a_strategy_is_a_word_with_options():
    found = variant("parameter-server/servers=n/placement=colocated/staleness=2/mode=async")
    assert found.options == {"placement": "colocated", "staleness": 2, "mode": "async"}
    assert (found.servers_for(4), variant("parameter-server/servers=3").servers_for(4)) == (4, 3)
    assert variant("data").servers_for(4) == 0
    assert found.title == "parameter-server, k = n, colocated, staleness 2, async"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("date", "unknown strategy 'date'"),
        ("data/tree", "'tree' in 'data/tree' is not OPTION=VALUE"),
        ("data/=tree", "is not OPTION=VALUE"),
        ("parameter-server/servers=0", "servers=0"),
        ("parameter-server/servers=many", "servers=many"),
        ("parameter-server/servers=true", "servers=True"),
    ],
)
def test_a_word_that_is_no_strategy_is_told(word, said):
    with pytest.raises(InputError, match=said):
        variant(word)


def test_lines_of_two_studies_are_there_once():
    asked = {"strategies": ("data",), "batch": 4, "size": 16, "width": 2, "scalings": ("strong",)}
    asked |= {"hosts": (0,), "bandwidths": (None,), "steps": 2, "repeats": 1, "epochs": 0}
    asked |= {"emulated": False, "cpus": None, "ranks": (1, 2)}
    first = Study(models=("tiny",), **asked)
    second = Study(models=("tiny", "vgg"), **asked)
    assert [line.first.model for line in merged([first, second, first])] == ["tiny", "vgg"]
    assert Study.from_json(first.to_json()) == first


def test_an_option_that_a_strategy_does_not_have_is_told():
    from cingulum.cli.bench_scaling import _check_words

    asked = Study(
        ("tiny",), (1,), ("data/speed=9",), 4, 16, 2, ("strong",), (0,), (None,), 2, 1, 0, False, None
    )
    with fails_with(ConfigError):
        _check_words(asked)


@pytest.mark.parametrize("name", ["spatial", "filters", "hybrid", "hypergraph"])
def test_strategies_that_divide_the_network_are_trained_and_not_timed(name):
    study = Study(models=("tiny",), ranks=(2,), strategies=("data", f"{name}/replicas=2"), batch=4, epochs=3)
    found = [(one.strategy, dict(one.options), one.epochs) for one in study.cells()]
    assert [one for one in found if one[0] == name] == [(name, {"replicas": 2}, 3)]
    assert [epochs for strategy, _, epochs in found if strategy == "data"] == [0, 0, 3]
    assert section(name, {"replicas": 2}, 0) == {"name": name, "replicas": 2}


def test_time_to_a_target_is_that_of_the_first_epoch_that_reaches_it():
    curve = tuple({"seconds": 2.0 * n, "val_auc": auc} for n, auc in enumerate((0.5, 0.9, 0.8), start=1))
    training = TrainingCurve(None, MeasuredCell(Cell("tiny", epochs=3), curve=curve))
    assert [training.seconds_to("val_auc", target) for target in (0.5, 0.85, 0.95)] == [2.0, 4.0, None]
    assert training.seconds_to("val_dice", 0.1) is None
