"""How many processes share a batch is each strategy's to say, for training and before a job is submitted."""

from __future__ import annotations

import pytest

from trainer.config import FiltersConfig, RingConfig, ServerConfig, SpatialConfig


@pytest.mark.parametrize(
    "section, processes, readers",
    [
        (RingConfig(), 4, 4),
        (ServerConfig(count=1), 4, 3),
        (ServerConfig(count=2, placement="colocated"), 4, 4),
        (SpatialConfig(), 4, 1),
        (SpatialConfig(parts=[2, 1, 1], replicas=2), 4, 2),
        (FiltersConfig(shares=[1, 0.5]), 2, 1),
    ],
)
def test_they_are_those_that_read_other_samples(section, processes, readers):
    assert section.readers(processes) == readers


@pytest.mark.parametrize(
    "section, processes, said",
    [
        (SpatialConfig(replicas=3), 2, "cannot be divided into 3 replicas"),
        (SpatialConfig(parts=[2, 2, 1]), 2, "4 parts or shares in 1 replica"),
        (FiltersConfig(shares=[1, 1, 1]), 2, "do not fit 2 rank"),
        (ServerConfig(count=2), 2, "no process is left for a worker"),
    ],
)
def test_processes_that_do_not_fit_are_refused(section, processes, said):
    with pytest.raises(ValueError, match=said):
        section.readers(processes)
