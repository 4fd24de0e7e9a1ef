"""The proof on phantoms: Grad-CAM of a trained network finds what the disease changed.

A quicker version of what docs/how-to/explain-a-run.md does with the commands.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from trainer import models
from trainer.data.phantom import image, people, template
from trainer.explain import regions, score
from trainer.explain.gradcam import grad_cam
from trainer.explain.regions import PhantomTruth, RegionShares
from trainer.explain.sanity import randomised

SUBJECTS, SIZE, GAP, EPOCHS, BATCH = 240, 32, 4.0, 40, 8
RANDOM_NETWORKS = 5


def made() -> tuple[np.ndarray, np.ndarray, list[PhantomTruth]]:
    """Volumes (N, D, H, W, 1) with mean 0 and spread 1 over the brain, whether AD, and what was changed."""
    average = template.build(SIZE)
    drawn = [people.draw(1, number, ("AD", "NC")) for number in range(SUBJECTS)]
    volumes, truths = [], []
    for person in drawn:
        phantom = image.make(average, person, 1, GAP, pattern="diffuse")
        brain = phantom.tissue.sum(axis=0) > 127
        values = phantom.t1.astype(np.float32)
        volumes.append((values - values[brain].mean()) / values[brain].std())
        truths.append(PhantomTruth(brain, brain & (phantom.moved > regions.CHANGED_MM)))
    return np.stack(volumes)[..., None], np.array([p.diagnosis == "AD" for p in drawn]), truths


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_grad_cam_finds_the_changed_regions_better_than_chance_and_than_randomised_networks() -> None:
    x, is_ad, truths = made()
    training = np.arange(SUBJECTS) < 0.75 * SUBJECTS
    keras.utils.set_random_seed(0)
    model = models.build("tiny", x.shape[1:], 2, width=8, normalisation="none")
    rate = keras.optimizers.schedules.CosineDecay(0.002, EPOCHS * int(training.sum()) // BATCH)
    model.compile(
        keras.optimizers.AdamW(rate, weight_decay=0.05),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(0)
    for _ in range(EPOCHS):
        seen = x[training] + rng.normal(0, 0.2, x[training].shape).astype(np.float32)
        mirrored = rng.random(len(seen)) < 0.5
        seen[mirrored] = seen[mirrored, ::-1]
        model.fit(seen, is_ad[training].astype(int), batch_size=BATCH, verbose=0)
    assert roc_auc_score(is_ad[~training], score.scores(model, x[~training], 1)) > 0.75, "it has learned"

    held_out = np.flatnonzero(~training & is_ad)
    found = grad_cam(model, x[held_out], 1)
    others = [grad_cam(randomised(model, seed), x[held_out], 1) for seed in range(RANDOM_NETWORKS)]
    shares = []
    for k, row in enumerate(held_out):
        random = [s for maps in others if (s := truths[row].share(maps[k])) is not None]
        shares.append(
            RegionShares(str(row), truths[row].share(found[k]), float(np.mean(random)), truths[row].chance)
        )
    pooled = regions.pooled(shares)
    assert pooled["empty"] == 0 and pooled["n"] == len(held_out) == 30
    assert pooled["above_chance"]["interval"][0] > 0, pooled
    assert pooled["above_randomised"]["interval"][0] > 0, pooled
