"""own_script_before.py on several ranks: five changed lines, marked with numbers.

mpirun -np 2 python examples/own_script_after.py
"""

import trainer  # 1
import keras
import numpy as np

trainer.init()  # 2
keras.utils.set_random_seed(1)

rng = np.random.default_rng(0)
y = np.arange(64) % 2
x = rng.normal(size=(64, 12, 12, 12, 1)).astype("float32")
x[y == 1, 3:9, 3:9, 3:9] += 0.5  # the second class has a bright middle
x, y = trainer.shard(x, y)  # 3

model = keras.Sequential(
    [
        keras.Input((12, 12, 12, 1)),
        keras.layers.Conv3D(8, 3, strides=2, activation="relu"),
        keras.layers.Conv3D(16, 3, activation="relu"),
        keras.layers.GlobalAveragePooling3D(),
        keras.layers.Dense(2),
    ]
)
model.compile(
    optimizer=trainer.DistributedOptimizer(keras.optimizers.Adam(0.01, global_clipnorm=1.0)),  # 4
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
options = {"epochs": 5, "shuffle": False, "verbose": 0}
history = model.fit(x, y, batch_size=16 // trainer.size(), callbacks=trainer.callbacks(), **options)  # 5

print("loss", *(f"{v:.5f}" for v in history.history["loss"]))
print("accuracy", *(f"{v:.5f}" for v in history.history["accuracy"]))
