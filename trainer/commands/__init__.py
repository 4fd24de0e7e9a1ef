"""The commands of `cingulum`, in the order in which a newcomer meets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

COMMANDS: dict[str, Callable[..., Any]] = {}
