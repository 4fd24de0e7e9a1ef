"""JSON files that people keep, edit and hand back: read within bounds; errors name file and key."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import Self

from trainer.errors import InputError

MOST_BYTES = 64 * 2**20

Name = Annotated[str, Field(min_length=1, max_length=1000)]


class FilePart(BaseModel):
    """A part of such a file: strict types, finite numbers, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class KeptFile(FilePart):
    """Content of such a file.

    Attributes:
        VERSION: of the form that is written.
        WHAT: what the file is, for messages.
        REMAKE: command that makes it, with FILE for its path.
        version: of the file's form.
    """

    VERSION: ClassVar[int]
    WHAT: ClassVar[str]
    REMAKE: ClassVar[str]

    version: int

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the content of a file.

        Raises:
            InputError: the file is missing, too large, no JSON, of a later version, or a key in it is wrong;
                names file and key.
        """
        if not path.is_file():
            raise InputError(
                f"{path}: there is no such file.", cure=cls.REMAKE.replace("FILE", str(path)), path=path
            )
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path}: is larger than {MOST_BYTES // 2**20} MiB: no {cls.WHAT}.", path=path)
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes | str, path: Path) -> Self:
        """Return what the content of a file says; `path` is for messages. Raises as `read`."""
        try:
            tree = json.loads(content, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is no JSON ({error}).", path=path) from None
        version = tree.get("version") if isinstance(tree, dict) else None
        if isinstance(version, int) and version > cls.VERSION:
            raise InputError(
                f"{path}: is of version {version}; this cingulum reads versions up to {cls.VERSION}.",
                cure=f"Use the cingulum that made it, or make it anew: {cls.REMAKE}",
                path=path,
                key="version",
            )
        try:
            # Of text and not of the tree: strict JSON has lists where Python has tuples.
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(_named(tree, first["loc"]))
            message = first["msg"].removeprefix("Value error, ")
            sentence = f"{key}: {message[:1].lower()}{message[1:]}" if key else message
            raise InputError(
                f"{path}: {sentence}.",
                cure=f"Mend it there, or make the file anew: {cls.REMAKE}",
                path=path,
                key=key or message.partition(": ")[0] or None,
            ) from None

    def text(self) -> str:
        """Return the content of the file: JSON, with a line for each entry of a list of lists or parts."""
        lines = []
        for key, value in self.model_dump(mode="json").items():
            if isinstance(value, list) and value and isinstance(value[0], dict | list):
                inner = ",\n".join(f"    {json.dumps(one, allow_nan=False)}" for one in value)
                lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
            else:
                lines.append(f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number of JSON")


def _named(tree: Any, loc: Sequence[int | str]) -> list[str]:
    """Return the keys that lead to a value; operations by their names, where they have one."""
    keys = [str(part) for part in loc]
    if len(loc) > 1 and loc[0] == "operations" and isinstance(loc[1], int):
        name = tree["operations"][loc[1]]
        if isinstance(name, dict) and isinstance(name.get("name"), str):
            keys[1] = name["name"]
    return keys
