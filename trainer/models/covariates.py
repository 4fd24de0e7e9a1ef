"""Age, sex and other tabular values beside the volume."""

from __future__ import annotations

import keras

from trainer.errors import ModelError


def with_covariates(name: str, model: keras.Model, count: int) -> keras.Model:
    """The same network, whose last layer also sees `count` covariates.

    The features before the last layer, `(B, F)`, are concatenated with the covariates, `(B, count)`, and a
    new last layer of the same kind takes both. This late fusion is the field's plain baseline ("Concat-1FC"
    in Poelsterl et al., arXiv 2107.05990, who go beyond it): it works with every network, adds
    `count * outputs` weights only, and those weights can be read as those of a logistic or linear regression
    on the covariates beside the image. A dropout of the features comes before, so no covariate is dropped.

    Scale the covariates first, to mean 0 and standard deviation 1 of the training split: beside features of
    about that size, an age in years would swamp them.

    Args:
        model: from a volume to `(B, outputs)`, with a `keras.layers.Dense` on `(B, F)` as last layer.
        count: how many covariates there are, at least 1.

    Returns:
        A model that takes [volume, covariates float32 `(B, count)`]; the second input is named "covariates".

    Raises:
        ModelError: the last layer is no Dense layer on a vector of features.
    """
    last = model.layers[-1]
    if (
        not isinstance(last, keras.layers.Dense)
        or last.output is not model.outputs[0]
        or last.input.ndim != 2
    ):
        raise ModelError(
            f"{name}: ends in {type(last).__name__} ({last.name}), where covariates cannot be added.",
            cure="They can where the last layer is a Dense layer on pooled or flattened features.",
            key="data.covariates",
        )
    table = keras.Input((count,), name="covariates", dtype="float32")
    joined = keras.layers.Concatenate(name="head_covariates", dtype="float32")([last.input, table])
    logits = keras.layers.Dense.from_config(last.get_config())(joined)
    return keras.Model([*model.inputs, table], logits, name=model.name)
