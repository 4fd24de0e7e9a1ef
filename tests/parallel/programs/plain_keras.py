"""The reference: every case in one process, with nothing but Keras. Arguments: the folder of the results."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
from cases import CASES, batches, network, set_precision, state

folder = Path(sys.argv[1])
for name, case in CASES.items():
    set_precision(case)
    keras.utils.set_random_seed(3)
    model = network(keras.layers.BatchNormalization if case.batch_norm else None)
    model.compile(
        optimizer=case.optimizer(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    np.savez(folder / f"{name}.start.npz", **state(model, model.optimizer))
    for x, y, w in batches(case):
        model.train_on_batch(x, y, sample_weight=w)
    np.savez(folder / f"{name}.npz", **state(model, model.optimizer))
