"""What a linear model reaches on tissue volumes alone: what a network must beat to be worth its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.baseline import features
from trainer.metrics.classification import classification_metrics

if TYPE_CHECKING:
    from trainer.data.shards.shards import Volume
    from trainer.data.splits.splits import Split


def tissue_baseline(
    volumes: Sequence[Volume],
    split: Split,
    labels: Mapping[int, int] | Sequence[int] | np.ndarray,
    classes: Sequence[str],
) -> dict[str, Any] | None:
    """Return a logistic regression on tissue volumes (mL) and their shares of the whole.

    It is fitted to the training and validation scans and judged once, on the test scans: the very ones that
    judge the network.

    Args:
        volumes: all volumes of the shard set, in row order; their `tissue` holds millilitres by tissue.
        split: rows of each split.
        labels: class number by row (`labels[row]`), for the rows in the split.
        classes: class names, in order.

    Returns:
        `classification_metrics` of the test scans, with `features` (names), `n_fitted`, and `predictions`
        (row -> probabilities); or None where a subject has no tissue volumes, there are no test subjects, or
        the fitted subjects are all of one class.
    """
    fitted, tested = [*split.train, *split.validation], list(split.test)
    rows = [*fitted, *tested]
    if not fitted or not tested or any(not volumes[row].tissue for row in rows):
        return None
    columns = features.tissue([volumes[row] for row in rows])
    values, unknown = columns.values[: len(fitted)], columns.values[len(fitted) :]
    targets = np.array([labels[row] for row in fitted])
    if not columns.names or len(set(targets.tolist())) < 2:
        return None
    # Imported here: scikit-learn takes a second, and many sets have no tissue volumes.
    from trainer.baseline.scores import classifier

    model = classifier().fit(values, targets)
    probabilities = np.zeros((len(tested), len(classes)))
    probabilities[:, model.classes_] = model.predict_proba(unknown)
    who = [volumes[row].subject for row in tested]
    metrics = classification_metrics(np.array([labels[row] for row in tested]), probabilities, classes, who)
    return {
        **metrics,
        "features": list(columns.names),
        "n_fitted": len(fitted),
        "predictions": {str(row): p.tolist() for row, p in zip(tested, probabilities, strict=True)},
    }
