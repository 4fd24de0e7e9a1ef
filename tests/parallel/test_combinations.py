"""Every task under every strategy with an option, trained, and what follows: the cells of `combined`.

`tools/combinations.py run` runs the same cells, and makes the page of them.
"""

from __future__ import annotations

import itertools

import pytest
from combined import AXES, REFUSED, Bench, Cell, cells, refusal

pytestmark = pytest.mark.slow

CELLS = cells()


def test_each_two_values_that_train_together_meet_in_a_cell_and_each_refusal_has_one():
    trained = [vars(cell) for cell in CELLS if refusal(vars(cell)) is None]
    for a, b in itertools.combinations(AXES, 2):
        met = {(cell[a], cell[b]) for cell in trained}
        wanted = set(itertools.product(AXES[a], AXES[b]))
        assert {pair for pair in wanted if refusal(dict(zip((a, b), pair, strict=True))) is None} <= met
    refused = [vars(cell) for cell in CELLS if refusal(vars(cell)) is not None]
    assert all(
        any(pair.items() <= cell.items() for cell in refused) for one in REFUSED for pair in one.each()
    )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("cells"))


@pytest.mark.timeout(1000)  # three commands, each of which has a limit of its own
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_it_trains_or_is_refused_by_name_and_what_follows_works(bench: Bench, cell: Cell):
    ran = bench.run(cell)
    assert ran.problem is None
