"""Looking into a `.keras` file before Keras opens it: it may be a stranger's.

Such a file names the classes and functions that Keras is to look up and call. Keras' safe mode refuses those
that are known to do harm. Here only those pass that belong to networks: docs/decisions/0038.
"""

from __future__ import annotations

import json
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from trainer.errors import RunError

# docs/decisions/0038: Keras compresses nothing, so that a file unpacks to its own size.
MOST_TIMES_LARGER = 4
MOST_CONFIG = 64 << 20
MOST_MEMBERS = 1000
_HEADERS = 1 << 20  # what small members may exceed that factor by

# Where the classes of a saved network come from, and classes of these modules that run code or read files.
_CLASSES = frozenset(
    f"keras.{name}"
    for name in [
        "constraints",
        "initializers",
        "layers",
        "losses",
        "metrics",
        "optimizers",
        "optimizers.schedules",
        "regularizers",
    ]
)
_HARMFUL = frozenset(
    [
        "FlaxLayer",
        "IntegerLookup",
        "JaxLayer",
        "Lambda",
        "StringLookup",
        "TFSMLayer",
        "TextVectorization",
        "TorchModuleWrapper",
    ]
)
_FUNCTIONS = frozenset({"builtins", "keras.activations", "keras.initializers", "keras.ops"})
# Operations on symbolic tensors, such as x[:, 0] or keras.ops.mean(x), are classes without a public name.
_OPERATIONS = "keras.src.ops."
_FURTHER = frozenset(
    {
        ("keras", "DTypePolicy"),
        ("keras", "FloatDTypePolicy"),
        ("keras", "Model"),
        ("keras", "Sequential"),
        ("keras.src.models.functional", "Functional"),
        ("keras.src.models.sequential", "Sequential"),
    }
)
_VALUES = frozenset({"__bytes__", "__ellipsis__", "__keras_tensor__", "__numpy__", "__slice__", "__tensor__"})


def own_classes(path: Path) -> tuple[str, ...]:
    """Return the classes and functions of a saved network that are not Keras' own, by registered name,
    sorted.

    Args:
        path: a `.keras` file. Nothing that it names is imported or called.

    Raises:
        RunError: it is no `.keras` file, unpacks to much more than its size, writes outside its folder, or
            names something of Keras that is no part of a network or could run code.
    """
    tree = _config(path)
    if isinstance(tree, dict):
        tree = {key: value for key, value in tree.items() if key != "compile_config"}  # it is not compiled
    own = set()
    for node in _named(tree):
        try:
            name = _own(node)
        except ValueError as error:
            raise RunError(
                f"{path}: was not opened: it asks Keras for {error}, which is no part of a network that can "
                "be opened safely.",
                cure="A layer that needs it can be a class of your own: docs/how-to/add-your-own-network.md",
                path=path,
            ) from None
        if name is not None:
            own.add(name)
    return tuple(sorted(own))


def _config(path: Path) -> Any:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise RunError(f"{path}: is not a regular file.", path=path)
        with zipfile.ZipFile(path) as archive:
            _check_members(path, archive, status.st_size)
            return json.loads(archive.read("config.json"))
    except KeyError:
        raise RunError(f"{path}: is not a .keras file: it has no config.json.", path=path) from None
    except (
        OSError,
        ValueError,
        RuntimeError,  # encrypted; RecursionError: JSON nested too deep
        NotImplementedError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{path}: cannot be opened as a Keras model ({reason}).", path=path) from None


def _check_members(path: Path, archive: zipfile.ZipFile, size: int) -> None:
    """Refuse what would unpack to much more than the file, or elsewhere; reads nothing but the directory."""
    members = archive.infolist()
    names = [member.filename for member in members]
    outside = [
        name for name in names if "\\" in name or name.startswith("/") or ".." in PurePosixPath(name).parts
    ]
    if outside:
        raise RunError(
            f"{path}: was not opened: it holds a file outside its folder, {outside[0][:100]!r}.", path=path
        )
    if len(names) > MOST_MEMBERS or len(set(names)) < len(names):
        raise RunError(
            f"{path}: was not opened: it holds {len(names)} files, or one of them twice.", path=path
        )
    unpacked = sum(member.file_size for member in members)
    most = MOST_TIMES_LARGER * size + _HEADERS
    config = sum(member.file_size for member in members if member.filename == "config.json")
    if unpacked > most or config > MOST_CONFIG:
        raise RunError(
            f"{path}: was not opened: its {size} bytes would unpack to {unpacked} "
            f"({config} of config.json), more than a Keras model's.",
            path=path,
        )


def _named(tree: Any) -> Iterator[dict[str, Any]]:
    """Every node that names a class or function; without recursion, however deep the tree is."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class_name" in node:
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _own(node: dict[str, Any]) -> str | None:
    """The registered name of what is not Keras' own; None for what is.

    Raises:
        ValueError: Keras would look it up in itself, and it is none of what networks are made of; says what.
    """
    name, module, registered = node["class_name"], node.get("module"), node.get("registered_name")
    if not isinstance(name, str):
        raise ValueError(repr(name)[:100])
    if name in _VALUES:
        return None
    if name == "function":
        name = node.get("config")
        if not isinstance(name, str):
            raise ValueError("a function without a name")
        if module == "builtins" and ">" in name:  # a registered function of one's own
            return name
        if module in _FUNCTIONS:
            return None
        registered = name  # Keras looks functions up by this
    elif (
        (module in _CLASSES and name not in _HARMFUL)
        or (module, name) in _FURTHER
        or (isinstance(module, str) and module.startswith(_OPERATIONS))
    ):
        return None
    if isinstance(module, str) and module.partition(".")[0] != "keras" and not name.startswith("__"):
        return registered if isinstance(registered, str) and registered else name
    raise ValueError(f"{module}.{name}"[:100] if isinstance(module, str) else repr(name)[:100])
