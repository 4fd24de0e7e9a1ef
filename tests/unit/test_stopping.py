"""Stop requests and early stopping."""

from __future__ import annotations

import math
import os
import signal

import pytest
from wording import fails_with

from trainer.config import EarlyStoppingConfig
from trainer.errors import ConfigError
from trainer.ranks.stopping import Patience, StopRequest, columns, improves

METRICS = columns("accuracy", ("loss", "auc"))


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_a_signal_asks_for_a_stop_instead_of_ending_the_process(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert signal.getsignal(number) == before


def test_sigterm_is_answered_at_once_and_only_once(capfd):
    with StopRequest(word="go on with: that\n"):
        os.kill(os.getpid(), signal.SIGUSR2)
        assert capfd.readouterr().err == ""
    with StopRequest(word="go on with: that\n"):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert capfd.readouterr().err == "go on with: that\n"


def test_the_first_ctrl_c_asks_for_a_stop_and_the_second_ends_at_once(capfd):
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        with stop.by_interrupt(answers=True):
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.requested
            assert "the state is saved first (Ctrl-C again ends at once)" in capfd.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == before
        with pytest.raises(KeyboardInterrupt):  # where there is nothing to save
            os.kill(os.getpid(), signal.SIGINT)


def test_losses_fall_and_other_metrics_rise():
    assert improves("val_loss", 0.5, 0.6) and not improves("val_loss", 0.6, 0.5)
    assert improves("val_auc", 0.6, 0.5) and not improves("val_auc", 0.5, 0.6)
    assert improves("val_cross_entropy", 0.5, 0.6) and not improves("val_cross_entropy", 0.6, 0.5)
    assert improves("mae", 4.0, 5.0) and not improves("val_mae", 5.0, 4.0)
    assert improves("val_dice", 0.9, 0.8) and not improves("val_r2", 0.1, 0.2)


def test_a_change_within_min_delta_is_no_improvement():
    assert not improves("loss", 0.49, 0.5, 0.05) and improves("loss", 0.4, 0.5, 0.05)
    assert not improves("val_auc", 0.54, 0.5, 0.05) and improves("val_auc", 0.6, 0.5, 0.05)


def test_what_is_not_a_number_never_improves():
    assert not any(improves("val_loss", value, None) for value in (None, math.nan, math.inf))
    assert improves("val_loss", 1e9, None)


def test_training_stops_after_as_many_epochs_without_improvement_as_patience_says():
    state = Patience.from_config(EarlyStoppingConfig(patience=2), METRICS, has_validation=True)
    seen = []
    for epoch, loss in enumerate([1.0, 0.8, 0.9, 0.7, 0.7, 0.75], start=1):
        state = state.after({"epoch": epoch, "val_loss": loss})
        seen.append(state.exhausted)
    assert seen == [False, False, False, False, False, True]
    assert state.best == {"epoch": 4, "val_loss": 0.7}


def test_without_early_stopping_the_best_epoch_is_still_known():
    state = Patience.from_config(None, METRICS, has_validation=False)
    for loss in (1.0, 2.0, 3.0):
        state = state.after({"loss": loss})
    assert state.best == {"loss": 1.0} and not state.exhausted


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (
            Patience("val_loss"),
            "the best epoch is that of the lowest val_loss (focal loss) on the validation split",
        ),
        (
            Patience("val_auc", 3),
            "the best epoch is that of the highest val_auc on the validation split; training stops after 3 "
            "epoch(s) without a better one",
        ),
        (Patience("loss"), "the best epoch is that of the lowest loss (focal loss) on the training split"),
    ],
)
def test_it_tells_which_figure_it_follows(state, told):
    assert state.told("focal loss") == told


def test_a_metric_that_does_not_exist_is_named_with_those_that_do():
    with fails_with(ConfigError):
        Patience.from_config(EarlyStoppingConfig(metric="val_los"), METRICS, has_validation=True)


def test_a_validation_metric_needs_a_validation_split():
    with fails_with(ConfigError):
        Patience.from_config(EarlyStoppingConfig(metric="val_auc"), METRICS, has_validation=False)
