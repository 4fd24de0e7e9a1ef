"""An optimizer's variables in a file, by the path of the network's variable and the name of the slot.

Keras keeps them as one flat list, whose order depends on its version and on the order of the layers. Names
last longer, and tell what is missing.

    variables            paths of the trained variables, such as `stage1_conv/kernel`
    00003/momentum       the slot `momentum` of the variable with number 3 in that list, from 0
    common/iteration     what belongs to no variable
    common/inner/...     the same of the optimizer within a LossScaleOptimizer
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.errors import RunError

if TYPE_CHECKING:
    import keras

_CURE = (
    "Resume with the configuration of the run folder: its config.yaml (and the network's own file as it was)."
)
_PATHS = "variables"
# Lists of an optimizer that are no slots.
_OTHER_LISTS = ("_variables", "_trainable_variables")


def write(path: Path, optimizer: keras.Optimizer) -> None:
    """Write all variables of a built optimizer."""
    arrays = {_member(place, slot): np.asarray(variable) for place, slot, variable in _slots(optimizer)}
    if len(arrays) != len(optimizer.variables):
        raise ValueError(f"{type(optimizer).__name__} has two variables of one name")
    np.savez(path, allow_pickle=False, **{_PATHS: np.array(_paths(optimizer), dtype=np.str_)}, **arrays)


def read(path: Path, optimizer: keras.Optimizer) -> None:
    """Put what `write` wrote into a built optimizer; nothing is changed where something does not fit.

    Raises:
        RunError: the file cannot be read, lacks a slot, has one more, or one of another shape or dtype.
    """
    arrays = read_arrays(path)
    theirs = [str(name) for name in arrays.pop(_PATHS, np.array([]))]
    ours = _paths(optimizer)
    number = _numbers(path, theirs, ours)
    values = []
    for place, slot, variable in _slots(optimizer):
        of = "" if place is None else f" of {ours[place]}"
        array = arrays.pop(_member(None if place is None else number[place], slot), None)
        if array is None:
            raise RunError(
                f"{path}: was written by another optimizer: {slot}{of} is missing.", cure=_CURE, path=path
            )
        kind = (tuple(variable.shape), np.dtype(variable.dtype))
        if (array.shape, array.dtype) != kind:
            raise RunError(
                f"{path}: was written for another network: {slot}{of} is {array.dtype} {array.shape} there, "
                f"and {kind[1]} {kind[0]} here.",
                cure=_CURE,
                path=path,
            )
        values.append((variable, array))
    if arrays:
        more = _name_of(next(iter(arrays)), theirs)
        raise RunError(
            f"{path}: was written by another optimizer: this one has no {more}.", cure=_CURE, path=path
        )
    for variable, array in values:
        variable.assign(array)


def read_arrays(path: Path) -> dict[str, Any]:
    """Return all arrays of a .npz file by name; no pickle.

    Raises:
        RunError: it cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: cannot be read ({error!r:.200}).", path=path) from None


def _slots(optimizer: Any, prefix: str = "common/") -> Iterator[tuple[int | None, str, Any]]:
    """Each variable of the optimizer: number of its variable of the network (or None), name, itself.

    Keras keeps one list per slot, aligned with the variables that the optimizer was built for.
    """
    trained = optimizer._trainable_variables
    known = {id(variable) for variable in optimizer._variables}
    of: dict[int, int] = {}
    for name, kind in vars(optimizer).items():
        if isinstance(kind, list) and len(kind) == len(trained) and name not in _OTHER_LISTS:
            of |= {id(slot): place for place, slot in enumerate(kind) if id(slot) in known}
    for variable in optimizer._variables:
        place = of.get(id(variable))
        if place is None:
            yield None, prefix + variable.name, variable
        else:
            yield place, variable.name.removeprefix(trained[place].path.replace("/", "_") + "_"), variable
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        yield from _slots(inner, f"{prefix}inner/")


def _paths(optimizer: Any) -> list[str]:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return [variable.path for variable in inner._trainable_variables]


def _member(place: int | None, slot: str) -> str:
    return slot if place is None else f"{place:05d}/{slot}"


def _numbers(path: Path, theirs: Sequence[str], ours: Sequence[str]) -> list[int]:
    """The number in the file of each of the network's variables.

    Keras counts layers that were given no name (`dense_4`) over the whole process, so that a network may come
    with other numbers the next time. Where paths are not the same, they are compared without them.
    """
    for name in (str, _uncounted):
        there, here = _numbered(theirs, name), _numbered(ours, name)
        if set(there) == set(here):
            return [there.index(one) for one in here]
    missing, more = (
        next((one for one in some if one not in others), "none")
        for some, others in ((ours, theirs), (theirs, ours))
    )
    raise RunError(
        f"{path}: was written for a network of {len(theirs)} trained variables, and this one has "
        f"{len(ours)}: {missing} is only in this network, {more} only in the file.",
        cure=_CURE,
        path=path,
    )


def _numbered(paths: Sequence[str], name: Callable[[str], str]) -> list[tuple[str, int]]:
    """Names, with how often each came before: two networks in one may have layers of the same name."""
    seen: Counter[str] = Counter()
    numbered = []
    for one in map(name, paths):
        numbered.append((one, seen[one]))
        seen[one] += 1
    return numbered


def _uncounted(path: str) -> str:
    return re.sub(r"_[0-9]+(?=/|$)", "", path)


def _name_of(member: str, paths: Sequence[str]) -> str:
    number, _, slot = member.partition("/")
    place = int(number) if number.isdecimal() else len(paths)
    return f"{slot} of {paths[place]}" if place < len(paths) else member
