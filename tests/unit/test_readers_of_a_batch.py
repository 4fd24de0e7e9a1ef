"""How many processes share a batch is each strategy's to say, for training and before a job is submitted."""

from __future__ import annotations

import pytest

from trainer.config import FiltersConfig, RingConfig, RunConfig, ServerConfig, SpatialConfig


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


@pytest.mark.parametrize(
    "section, batch, accumulation, said",
    [
        ({"name": "hybrid"}, 6, 1, r"micro_batches: 6 sample.* 4 micro-batches.* a multiple of 4"),
        ({"name": "hybrid", "replicas": 2, "micro_batches": 3}, 8, 2, "2 sample.* a multiple of 12"),
        ({"name": "hypergraph", "replicas": "auto", "micro_batches": 4}, 6, 1, "6 sample.*4 micro-batches"),
        ({"name": "spatial", "replicas": 4}, 6, 1, "global_batch: 6 sample.* 4 replica.* a multiple of 4"),
    ],
)
def test_samples_that_no_number_of_ranks_can_share_are_refused_before_anything_runs(
    section, batch, accumulation, said
):
    """Before, a run measured its devices for half a minute first, and `submit` took the job."""
    train = {"global_batch": batch, "accumulation": accumulation, "strategy": section}
    tree = {"name": "a", "data": {"shards": "s"}, "model": {"name": "tiny"}}
    with pytest.raises(ValueError, match=said):
        RunConfig.model_validate({**tree, "train": train})
