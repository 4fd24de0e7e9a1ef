"""Suggest configuration keys for unknown options: for `--epochs 3`, `train.epochs=3`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# How other programs name them.
_ALSO = {"lr": "learning_rate", "batch": "global_batch", "batch_size": "global_batch", "model": "model.name"}
_MOST = 5


def advice(option: str, arguments: Sequence[str]) -> str | None:
    """Return what to write instead of an unknown option; None where no key is like it.

    Args:
        option: as it was written, such as `--epochs`.
        arguments: of the whole command line, for the option's value.
    """
    found = keys(option)
    if not found:
        return None
    value = _value(option, arguments)
    settings = [f"{key}={value}" for key in found[:_MOST]]
    if len(settings) == 1:
        return f"{option} is a key of the configuration: write {settings[0]}"
    more = f" and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return f"{option} may be one of these keys of the configuration: write {', '.join(settings)}{more}"


def keys(option: str) -> list[str]:
    """Return keys whose last part is the option's name; else those whose last part is
    spelled much like it.
    """
    from trainer import config

    wanted = option.lstrip("-").replace("-", "_")
    if len(wanted) < 2:
        return []
    wanted = _ALSO.get(wanted, wanted)
    known = [key for key, field in config.fields() if config.section_of(field.annotation) is None]
    same = [key for key in known if key == wanted or key.rpartition(".")[2] == wanted]
    if same:
        return same
    last = sorted({key.rpartition(".")[2] for key in known})
    close = difflib.get_close_matches(wanted.rpartition(".")[2], last, n=1, cutoff=0.75)
    return [key for key in known if close and key.rpartition(".")[2] == close[0]]


def _value(option: str, arguments: Sequence[str]) -> str:
    """Return the value given with the option; true where there was none, as for a switch."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == option:
            after = arguments[number + 1] if number + 1 < len(arguments) else "-"
            return value if equals else "true" if after.startswith("-") or "=" in after else after
    return "true"
