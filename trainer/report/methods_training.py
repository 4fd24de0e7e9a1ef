"""The sentences of the methods about the network and its training."""

from __future__ import annotations

from typing import Any

from trainer import config as configuration
from trainer.config.training import FALLS, ScheduleConfig
from trainer.errors import ConfigError
from trainer.ranks.stopping import is_falling
from trainer.report.augmentation import phrases
from trainer.report.sentences import blank, count, get
from trainer.report.story import ReportMaterial, number
from trainer.run_folder import record

_RULES = {"sgd": "stochastic gradient descent", "adam": "Adam", "adamw": "AdamW"}


def trained_loss(story: ReportMaterial) -> str | None:
    """Return what the run trained, in words; None where another version wrote its configuration."""
    try:
        return configuration.parse(story.config_text).trained_loss
    except ConfigError:
        return None


def network(story: ReportMaterial, settings: dict[str, Any]) -> list[str]:
    """Return which network, how large, and where its weights started."""
    name, width = get(settings, "model.name"), get(settings, "model.width")
    parameters, volume = story.facts.parameters, story.facts.volume
    if not name:
        return [f"{blank('network')}."]
    sentences = [f"The network was {name}"]
    if width:
        sentences[0] += f" with {width} channels in its first stage"
    sentences[0] += "." if parameters is None else f" ({parameters:,} parameters)."
    options = get(settings, "model.options")
    if options:
        sentences.append("Options: " + ", ".join(f"{key} = {value}" for key, value in options.items()) + ".")
    if volume:
        sentences.append(
            f"Its input was a volume of {' × '.join(map(str, volume))} (depth, height, width, contrasts)."
        )
    start = get(settings, "train.transfer.start_from")
    seed = get(settings, "train.seed")
    if start:
        sentences.append(f"Training started from the weights of {start}.")
        frozen = get(settings, "train.transfer.freeze")
        if frozen:
            sentences.append(f"Layers {', '.join(frozen)} were not trained.")
    elif seed is not None:
        sentences.append(f"Its weights were initialised at random (seed {seed}).")
    return sentences


def training(story: ReportMaterial, settings: dict[str, Any]) -> list[str]:
    """Return loss, optimizer, schedule, batch, epochs, augmentation."""
    optimizer = get(settings, "train.optimizer")
    if not isinstance(optimizer, dict):
        return [f"{blank('training')}."]
    rule, rate = str(optimizer.get("name")), number(optimizer.get("learning_rate"))
    loss = trained_loss(story) or blank("loss")
    sentences = [f"Training minimised the {loss}, by {_RULES.get(rule, rule)}"]
    sentences[0] += f" (momentum {optimizer.get('momentum')})" if rule == "sgd" else ""
    decay = number(optimizer.get("weight_decay"))
    sentences[0] += "" if decay is None else f", weight decay {decay:g}"
    sentences[0] += "." if rate is None else f", at a learning rate of {rate:g}."
    sentences.append(_schedule(get(settings, "train.schedule")))
    sentences += _added(story, get(settings, "train.schedule.name"))
    batch, epochs = get(settings, "train.global_batch"), story.result.get("epochs", len(story.epochs))
    ranks, steps = story.facts.world_size, story.result.get("steps")
    over = f" over all {ranks} ranks" if ranks and ranks > 1 else ""
    updates = f" ({steps} updates)" if steps else ""
    sentences.append(f"The batch was {batch}{over}; {count(epochs, 'epoch')} were trained{updates}.")
    for key, words in (
        ("optimizer.clip_norm", "The norm of each gradient was clipped to {}."),
        ("optimizer.global_clip_norm", "The norm of all gradients together was clipped to {}."),
        ("optimizer.clip_value", "Gradients were clipped to ±{}."),
        ("optimizer.ema", "Weights were averaged exponentially (momentum {})."),
    ):
        value = get(settings, f"train.{key}")
        if value:
            sentences.append(words.format(value))
    if "weighted equally" in loss:
        sentences.append("Classes were weighted by the inverse of their share in the training partition.")
    precision = get(settings, "train.precision")
    sentences.append(f"Arithmetic was {precision}." if precision else "")
    sentences.append(_augmentation(get(settings, "data.augment")))
    return sentences


def _schedule(schedule: Any) -> str:
    if not isinstance(schedule, dict):
        return ""
    warm = number(schedule.get("warmup_epochs")) or 0.0
    rise = f"rose linearly over {warm:g} epoch{'' if warm == 1 else 's'}" if warm else ""
    kind = FALLS.get(str(schedule.get("name")))
    fall = kind.words.format(**{**dict.fromkeys(ScheduleConfig.model_fields), **schedule}) if kind else ""
    scaled = {
        "linear": f" It was scaled by the batch over {schedule.get('reference_batch')}.",
        "sqrt": f" It was scaled by the square root of the batch over {schedule.get('reference_batch')}.",
    }.get(str(schedule.get("scale")), "")
    parts = " and ".join(part for part in (rise, fall) if part)
    return f"The rate {parts}.{scaled}" if parts else ""


def _added(story: ReportMaterial, kind: Any) -> list[str]:
    """How the rate went on in epochs that were added to the run."""
    cycles, fall = story.facts.cycles, FALLS.get(str(kind))
    if not cycles:
        return []
    trained = number(story.result.get("epochs"))
    ends = [begin for begin, _ in cycles[1:]] + [len(story.epochs) if trained is None else int(trained)]
    sentences = []
    for (begin, epochs), end in zip(cycles, ends, strict=True):
        if begin:
            sentences.append(f"It began anew after epoch {begin}, over {count(epochs, 'epoch')}.")
        if fall is not None and fall.ends and end > begin + epochs:
            sentences.append(f"Epochs {begin + epochs + 1} to {end} were added, at its last rate.")
    return sentences


def _augmentation(augment: Any) -> str:
    if not isinstance(augment, dict):
        return ""
    changes = phrases(augment)
    if not changes:
        return "Training images were not augmented."
    return f"Training images were {', '.join(changes)}."


def captions(story: ReportMaterial, settings: dict[str, Any]) -> dict[str, str]:
    """Return by learning curve what its lines are, and on what: see `charts_training.learning_curves`."""
    seen = "Training: mean over an epoch's samples, as the weights changed"
    augment, patch = get(settings, "data.augment"), get(settings, "data.patch")
    changed = ["augmented"] if isinstance(augment, dict) and phrases(augment) else []
    changed += ["patches"] if patch else []
    changed += ["with dropout"] if get(settings, "model.options.dropout") else []
    seen += f" ({', '.join(changed)})" if changed else ""
    averaged = ", with averaged weights" if get(settings, "train.optimizer.ema") else ""
    whole = " on whole volumes" if patch else ""
    seen += f". Validation: after the epoch{whole}{averaged}."
    loss = trained_loss(story)
    by = best_by(story, settings)
    trained = f"The function that was trained: {loss}; penalties of layers are not in it. " if loss else ""
    texts = {
        "loss": trained,
        "cross-entropy": "Without class weights, label smoothing or focus. ",
        "accuracy": "",
        "error": "",
        "dice": "Volumes in which neither map has a class are left out. ",
    }
    return {file: f"{text}{seen} The best epoch is chosen by {by}." for file, text in texts.items()}


def best_by(story: ReportMaterial, settings: dict[str, Any]) -> str:
    """Return the column of metrics.jsonl by which the best epoch was chosen."""
    named = story.result.get("best_by")
    if isinstance(named, str):
        return named
    judged = any(key.startswith("val_") for row in story.epochs for key in row)
    return str(get(settings, "train.early_stopping.metric") or ("val_loss" if judged else "loss"))


def selection(story: ReportMaterial, settings: dict[str, Any]) -> list[str]:
    """Return how the final weights were chosen."""
    stopping = get(settings, "train.early_stopping")
    metric = best_by(story, settings)
    best = get(story.result, "best.epoch")
    chosen = f" (epoch {best} of {story.result.get('epochs', len(story.epochs))})" if best else ""
    order = "lowest" if is_falling(metric) else "highest"
    split = "validation" if metric.startswith("val_") else "training"
    word = metric.removeprefix("val_").replace("_", " ")
    trained = ", which is the function that was trained," if word == "loss" else ""
    chosen_by = f"The weights of the epoch with the {order} {split} {word}{trained} were"
    why = record.other_epoch(story.result)
    sentences = [f"{chosen_by} to be kept. {why}" if why else f"{chosen_by} kept{chosen}."]
    if isinstance(stopping, dict):
        patience = count(stopping.get("patience"), "epoch")
        sentences.append(f"Training stopped after {patience} without a better one.")
    if story.judged == "test":
        sentences.append("The test partition was looked at once, after that choice.")
    elif story.judged == "validation":
        sentences.append("There was no test partition: the figures are of the subjects that chose the epoch.")
    return sentences
