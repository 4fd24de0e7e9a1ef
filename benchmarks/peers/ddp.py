"""PyTorch's DistributedDataParallel over Gloo, around the same Keras network on Keras' torch back end.

Run by `starting.py` in the peers' environment as `python -m benchmarks.peers.ddp PROCESS`. The
optimizer is Keras' own, as everywhere else, so that the weights can be compared. Batch
norm takes the statistics of each
rank's own samples, and its moving statistics stay each rank's own (DDP shares buffers, and to Keras they
are parameters without gradients).
"""

from __future__ import annotations

import datetime
import os
import sys
from typing import Any

from benchmarks.peers import work
from benchmarks.peers.job import PeerProcess


def main() -> None:
    """Time what the process on the command line describes."""
    process = PeerProcess.from_json(sys.argv[1])
    starter = work.Starter()
    os.environ["KERAS_BACKEND"] = "torch"
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    model, optimizer = work.network(process.job)
    forward = _distributed(process, model)
    batches = [
        tuple(torch.from_numpy(part) for part in work.batch(process.job, number, process.number))
        for number in range(process.job.batches)
    ]
    loss_of = dice_cross_entropy if work.is_dense(process.job) else cross_entropy
    variables = model.trainable_variables

    def step(number: int) -> None:
        x, y = batches[number % len(batches)]
        model.zero_grad()
        loss = loss_of(forward(x, training=True), y)
        loss.backward()
        with torch.no_grad():
            optimizer.apply([v.value.grad for v in variables], variables)
        loss.item()

    work.measured(process, starter, step, model)


def _distributed(process: PeerProcess, model: Any) -> Any:
    """The model with its gradients averaged over all ranks; itself where there is one rank."""
    if process.job.ranks == 1:
        return model
    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = process.interface or "lo"
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{process.addresses[0]}",
        rank=process.number,
        world_size=process.job.ranks,
        timeout=datetime.timedelta(seconds=process.job.timeout_s),
    )
    return torch.nn.parallel.DistributedDataParallel(model, **dict(process.job.options))


def cross_entropy(logits: Any, y: Any) -> Any:
    """Return the mean cross-entropy of logits `(B, K)` and labels `(B,)`."""
    import torch

    return torch.nn.functional.cross_entropy(logits, y.long())


def dice_cross_entropy(logits: Any, y: Any, smoothing: float = 1e-5) -> Any:
    """Return `trainer.tasks.losses.dice_cross_entropy`: mean over samples, for logits `(B, D, H, W, K)`."""
    from torch.nn import functional

    y = y.long()
    entropy = functional.cross_entropy(logits.movedim(-1, 1), y)
    shares = functional.softmax(logits, dim=-1)[..., 1:]
    truth = functional.one_hot(y, logits.shape[-1])[..., 1:].float()
    space = (1, 2, 3)
    common, both = (shares * truth).sum(space), shares.sum(space) + truth.sum(space)
    return entropy + 1 - ((2 * common + smoothing) / (both + smoothing)).mean()


if __name__ == "__main__":
    main()
