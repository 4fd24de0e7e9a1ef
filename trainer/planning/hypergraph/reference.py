"""A profile of devices that nobody measured: seconds in proportion to FLOPs, and links to match. Pure."""

from __future__ import annotations

import math

from trainer.planning.placement.operations import OperationGraph
from trainer.planning.profile import (
    VERSION,
    Device,
    Made,
    Profile,
    ProfiledLink,
    ProfiledOperation,
    ProfiledUpdate,
)

# An accelerator of 8 TFLOP/s whose link carries 250 Gbit/s: 256 FLOPs in the time of a byte.
FLOPS_PER_SECOND = 8e12
BYTES_PER_SECOND = 250e9 / 8
LATENCY_S = 5e-6


def profile(network: OperationGraph, ranks: int) -> Profile:
    """Return a profile of that accelerator on a host for each rank; operations without FLOPs take no time."""
    none = (0.0,) * ranks
    link = ProfiledLink(latency_s=LATENCY_S, bytes_per_second=BYTES_PER_SECOND)
    return Profile(
        version=VERSION,
        network="reference",
        sample_shape=network.inputs[0].shape[1:],
        batch=network.operations[-1].shape[0],
        precision="float32",
        made=Made(time="", versions={}),
        devices=tuple(Device(host=f"host-{rank}", name="8 TFLOP/s", threads=1) for rank in range(ranks)),
        operations=tuple(
            ProfiledOperation(
                name=one.name,
                kind=one.kind,
                layer=one.layer,
                measured="",
                flops=one.flops,
                parameter_bytes=sum(weight.bytes for weight in one.weights),
                output_bytes=math.prod(one.shape) * one.width,
                forward_s=(one.flops / FLOPS_PER_SECOND,) * ranks,
                forward_spread_s=none,
                backward_s=(2 * one.flops / FLOPS_PER_SECOND,) * ranks,
                backward_spread_s=none,
            )
            for one in network.operations
        ),
        update=ProfiledUpdate(parameters=network.parameters, seconds=none, spread_s=none),
        links=tuple(tuple(None if s == t else link for t in range(ranks)) for s in range(ranks)),
    )
