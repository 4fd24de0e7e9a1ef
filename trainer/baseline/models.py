"""The linear models of the baselines, and what they predict of subjects that they were not fitted to.

Everything that is learned from data, the imputation of what is missing and the scales included, is a step of
the pipeline, so that it is learned from the training subjects of a fold alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from trainer.data.splits.splits import Split

# Fits take one thread: on matrices this small, many threads wait for one another most of the time.


def classifier() -> Pipeline:
    """Logistic regression, each class weighing the same."""
    model = LogisticRegression(C=1.0, class_weight="balanced", max_iter=1000)
    return make_pipeline(_imputer(), StandardScaler(), model)


def regressor() -> Pipeline:
    """Ridge regression, its penalty chosen by leave-one-out within the training subjects."""
    return make_pipeline(_imputer(), StandardScaler(), RidgeCV(alphas=np.logspace(-2, 4, 13)))


def probabilities(
    values: np.ndarray, numbers: np.ndarray, folds: Sequence[Split], classes: int
) -> np.ndarray:
    """Of each volume, by the model of the fold in which it is tested.

    Args:
        values: float (N, k), NaN where unknown, by row.
        numbers: int (N,), class numbers by row.
        folds: of which `train` is fitted and `test` predicted.
        classes: how many there are.

    Returns:
        float64 (N, classes); NaN for rows that no fold tests.
    """
    found = np.full((len(values), classes), np.nan)
    for fold in folds:
        train, test = list(fold.train), list(fold.test)
        with threadpool_limits(1):
            model = classifier().fit(values[train], numbers[train])
            likely = model.predict_proba(values[test])
        found[test] = 0.0
        found[np.ix_(test, model.classes_)] = likely
    return found


def numbers(
    values: np.ndarray,
    targets: np.ndarray,
    folds: Sequence[Split],
    make: Callable[[], Pipeline] = regressor,
) -> np.ndarray:
    """Like `probabilities`, for targets that are numbers: float64 (N,)."""
    found = np.full(len(values), np.nan)
    for fold in folds:
        train, test = list(fold.train), list(fold.test)
        with threadpool_limits(1):
            found[test] = make().fit(values[train], targets[train]).predict(values[test])
    return found


def _imputer() -> SimpleImputer:
    # A column that is unknown in all training subjects of a fold stays, as zeros.
    return SimpleImputer(strategy="median", keep_empty_features=True)
