"""Site profiles: files of settings that differ between clusters, with the keys that schedulers have."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from pydantic import ValidationError, create_model

from jobs.schedulers import registry
from jobs.sites import HERE, Site
from trainer.config import yaml_reader
from trainer.config.explaining import apart, explain, screenful
from trainer.errors import JobError, LauncherError


@functools.cache
def model() -> type[Site]:
    """Return a site with the keys of all schedulers.

    Raises:
        LauncherError: two schedulers have a key of one name.
    """
    owners: dict[str, str] = {}
    kinds: list[type[Site]] = []
    for scheduler in registry.every_scheduler():
        for key in scheduler.site.model_fields.keys() - Site.model_fields.keys():
            if owners.setdefault(key, scheduler.name) != scheduler.name:
                raise LauncherError(
                    f"Two schedulers, {owners[key]} and {scheduler.name}, have a key {key!r} of sites.",
                    cure="Remove the package of one of them.",
                )
        if scheduler.site is not Site:
            kinds.append(scheduler.site)
    return create_model("Site", __base__=tuple(kinds) or Site)


def load(name_or_path: str | None = None) -> Site:
    """Return the profile of this name, or in this file.

    A name is looked for in the user's folder (`folder()`), then among those shipped with us. Without one it
    is the user's `default`, or where there is none, a site about which nothing is known.

    Raises:
        JobError: there is none, it cannot be read, or it holds unknown keys or impossible values.
    """
    profiles = dict(listed())
    if name_or_path is None:
        return _read(profiles["default"]) if "default" in profiles else HERE
    if "/" in name_or_path or name_or_path.endswith((".yaml", ".yml")):
        return _read(Path(name_or_path))
    if name_or_path not in profiles:
        close = difflib.get_close_matches(name_or_path, profiles, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise JobError(
            f"There is no site profile {name_or_path!r}.{hint}",
            cure=f"There are: {', '.join(profiles)}. Write your own as {folder() / 'NAME.yaml'}.",
        )
    return _read(profiles[name_or_path])


def listed() -> Iterator[tuple[str, Path]]:
    """Return name and file of every profile that `load` finds by name, the user's own first."""
    seen: set[str] = set()
    for place in (folder(), shipped() / "sites"):
        for path in sorted(place.glob("*.yaml")):
            if path.stem not in seen:
                seen.add(path.stem)
                yield path.stem, path


def folder() -> Path:
    """Return the folder of the user's profiles: `$XDG_CONFIG_HOME/cingulum/sites`, else
    `~/.config/cingulum/sites`.
    """
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "cingulum" / "sites"


def shipped() -> Path:
    """Return the folder with templates and example profiles, in a checkout or as installed."""
    return Path(str(resources.files("jobs"))) / registry.SHIPPED


def _read(path: Path) -> Site:
    document = yaml_reader.read(path, error=JobError, cure="Name a YAML file, or a known site.")
    if not isinstance(document.tree, dict):
        raise JobError(f"{path}: holds no keys.", cure="See docs/reference/site-profile.md for them.")
    try:
        return model().model_validate({"name": path.stem, **document.tree})
    except ValidationError as error:
        found = apart(error.errors())
    said = (explain(str(path), problem, model(), document.written) for problem in found)
    raise JobError(screenful(said, len(found)))
