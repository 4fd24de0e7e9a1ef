"""A network of the user's own, 'module:function' or 'file.py:function'; its errors come with their line."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.errors import CingulumError, ModelError


def find(name: str) -> Callable[..., Any]:
    """The function, from a module that the current folder or the environment has, or from a file.

    Raises:
        ModelError: there is none, or its file cannot be run.
    """
    place, _, attribute = name.rpartition(":")
    with told_with_place(name):
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place, name)
    function = getattr(module, attribute, None)
    if not callable(function):
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ModelError(f"{place} has no function {attribute!r} (asked for as network {name!r}).{hint}")
    return function


@contextlib.contextmanager
def told_with_place(name: str) -> Iterator[None]:
    """Turn what a network's code raises into a ModelError that names the line.

    Raises:
        ModelError: from any other exception.
    """
    try:
        yield
    except (CingulumError, KeyboardInterrupt):
        raise
    except SystemExit as error:  # a whole program was named, or a function ends the process
        what = f"it ends the program (exit code {error.code})"
        raise ModelError(
            f"network {name!r} cannot be built: {_line(error)}: {what}.",
            cure="Take the exit out, or put it under: if __name__ == '__main__':",
        ) from error
    except Exception as error:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        raise ModelError(f"network {name!r} cannot be built: {_line(error)}: {what}", cure=_CURE) from error


_CURE = "Mend that line, or the options that it is given (model.width, model.options)."


def _line(error: BaseException) -> str:
    """FILE:LINE of the innermost call that is neither ours nor a library's."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not is_installed(f.filename)] or frames
    return f"{theirs[-1].filename}:{theirs[-1].lineno}"


def is_installed(file: str) -> bool:
    """Whether a source file is part of this package, of Python, or of what was installed."""
    return (
        "site-packages" in file
        or file.startswith(("<", sys.base_prefix + "/lib"))
        or Path(file).is_relative_to(Path(__file__).parents[1])
    )


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"cingulum_own_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ModelError(f"{path}: there is no such Python file.")
    if spec.name in sys.modules:
        return sys.modules[spec.name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]  # as Python does: half a module must not be found next time
        raise
    return module


def _load_module(place: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # a console script's path starts at its own folder, not at the user's
        sys.path.append(here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(error.name + ".")):
            raise  # the module is there; something that it imports is not
        raise ModelError(
            f"There is no module {place!r} (asked for as network {name!r}).",
            cure="Run in the folder that holds it, or name its file: path/to/networks.py:function",
        ) from None
