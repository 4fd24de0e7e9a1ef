"""Which operations are equal: they compute the same on tensors of the same shapes, so one is measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from trainer.planning.placement.operations import Operation

# Decide initial values, which layer it is, or what is added to the loss; not what is computed.
_NO_MATTER = ("name", "seed", "trainable")
_NO_MATTER_ENDINGS = ("_initializer", "_regularizer", "_constraint")


def key(operation: Operation, layer: Any, dtypes: Sequence[str], wanted: Sequence[bool]) -> str:
    """Return a text that is the same for operations that take the same time.

    Args:
        operation: of the network.
        layer: its Keras layer; None for the loss.
        dtypes: of its inputs.
        wanted: of which inputs the gradient is wanted.
    """
    options = {} if layer is None else layer.get_config()
    return json.dumps(
        [
            operation.kind,
            operation.shape,
            [(one.shape, repr(one.axes)) for one in operation.readings],
            list(dtypes),
            list(wanted),
            [(one.shape, one.cuts, one.trainable) for one in operation.weights],
            {
                name: value
                for name, value in options.items()
                if name not in _NO_MATTER and not name.endswith(_NO_MATTER_ENDINGS)
            },
        ],
        sort_keys=True,
        default=repr,
    )
