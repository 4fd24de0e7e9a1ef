"""A network that planners divide, small enough for figures that follow by hand; no TensorFlow."""

from __future__ import annotations

from trainer.planning.hypergraph import reference
from trainer.planning.placement.operations import Operation, OperationGraph, Reading, Weight
from trainer.planning.placement.windows import Pointwise, Sliding

SAME = Pointwise()


def small(samples: int = 2, length: int = 8) -> OperationGraph:
    """`x` (n, l, 2), a convolution of kernel 3 to 4 channels, `relu`, `mean` over l, and the loss."""
    volume, features, mean = (samples, length, 2), (samples, length, 4), (samples, 4)
    each = tuple((axis, SAME) for axis in range(3))
    kernel = Weight("conv/kernel", (3, 2, 4), (None, None, 2))
    near = ((0, SAME), (1, Sliding(3, padding="same")), None)
    return OperationGraph(
        (
            Operation("x", "input", "x", (), volume),
            Operation(
                "conv",
                "convolution",
                "conv",
                (Reading("x", volume, near),),
                features,
                (kernel,),
                flops=500.0 * samples,
            ),
            Operation(
                "relu",
                "activation",
                "relu",
                (Reading("conv", features, each),),
                features,
                flops=5.0 * samples,
                keeps="output",
            ),
            Operation(
                "mean",
                "mean",
                "mean",
                (Reading("relu", features, ((0, SAME), None, (1, SAME))),),
                mean,
                flops=5.0 * samples,
                sums=True,
                keeps="nothing",
            ),
            Operation("loss", "loss", "", (Reading("mean", mean, ((0, SAME), None)),), (samples,)),
        ),
        ("mean",),
    )


def two_hosts(network):
    """Two ranks on each, with links that are ten times as fast within a host."""
    one = reference.profile(network, 4)
    fast = one.links[0][1]
    slow = fast.model_copy(update={"bytes_per_second": fast.bytes_per_second / 10})
    links = [[None if s == t else fast if s // 2 == t // 2 else slow for t in range(4)] for s in range(4)]
    hosts = tuple(
        device.model_copy(update={"host": f"host-{rank // 2}"}) for rank, device in enumerate(one.devices)
    )
    return one.model_copy(update={"links": tuple(map(tuple, links)), "devices": hosts})
