"""The reference: cases in one process, with nothing but Keras. Arguments: folder of the results, names."""

from __future__ import annotations

import tensorflow_first  # noqa: F401  # isort: skip

import sys
from pathlib import Path

import keras
import numpy as np
from cases import CASES, network, set_precision, state, train_in_one_process

folder = Path(sys.argv[1])
for name in sys.argv[2].split(","):
    case = CASES[name]
    set_precision(case)
    keras.utils.set_random_seed(3)
    model = network(case)
    np.savez(folder / f"{name}.start.npz", **{f"weight_{i}": v.numpy() for i, v in enumerate(model.weights)})
    train_in_one_process(model, case)
    np.savez(folder / f"{name}.npz", **state(model, model.optimizer))
