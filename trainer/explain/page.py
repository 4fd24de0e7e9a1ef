"""The page that shows an explanation: index.html beside its pictures."""

from __future__ import annotations

import functools
from typing import Any

import jinja2

from trainer.explain.group import MOSTLY_OUTSIDE
from trainer.metrics.subjects import TOO_FEW

_METHODS = {"gradcam": "Grad-CAM", "integrated-gradients": "Integrated gradients", "occlusion": "Occlusion"}


def method_name(method: str) -> str:
    """Return the method's name for people."""
    return _METHODS[method]


def render(summary: dict[str, Any], *, phantom: bool) -> str:
    """Return the page as HTML text, from what summary.json says."""
    target = summary["class"]
    explained = f" for {target}" if target else " for the predicted class" if summary["classes"] else ""
    space = summary["space"]
    where = (
        "Averaged in millimetres: the subjects' brains lie where the MNI152 brain does"
        if space["mni_like"]
        else "Averaged voxel by voxel about each subject's own brain, and shown without a glass brain: the "
        "subjects' brains do not lie where the MNI152 brain does"
    )
    subjects = [
        {**s, "said": said(s), "share": s.get("share"), "chance": s.get("chance")}
        for s in summary["subjects"]
    ]
    of = scans_of(len(subjects), len({s.get("person", s["subject"]) for s in subjects}))
    facts = [
        ("Run", summary["run"]),
        ("Scans", f"{of}, {summary['of']}"),
        ("Method", method_name(summary["method"])),
        *((name.capitalize(), value) for name, value in summary["settings"].items()),
        ("Explained", summary["explained"]),
    ]
    return _template().render(
        title=f"{method_name(summary['method'])}{explained}",
        lead=f"Run {summary['run']}, {of}: {summary['of']}",
        phantom=phantom,
        outside=mostly_outside(summary.get("outside_head")),
        regions=summary.get("regions"),
        space=f"{where} (Dice overlap {space['overlap']:.2f}).",
        groups=summary["groups"],
        subjects=subjects,
        facts=facts,
    )


def mostly_outside(share: Any) -> str:
    """Return what to say of maps of which so much lies outside the head; nothing where it is little."""
    if not isinstance(share, float) or share <= MOSTLY_OUTSIDE:
        return ""
    return (
        f"{share:.0%} of these maps lies outside the head, where there is no anatomy: the network answers by "
        "borders or background, or the layer is too coarse to say where. Choose a finer one (--layer), or "
        "another method (--method integrated-gradients)."
    )


def scans_of(scans: int, subjects: int) -> str:
    """Return such as `4 scans of 2 subjects`."""
    return f"{scans} scan{'' if scans == 1 else 's'} of {subjects} subject{'' if subjects == 1 else 's'}"


def said(subject: dict[str, Any]) -> str:
    """Return one line: what is known of a scan, and the network's output."""
    true = f"true: {subject['label']} · " if subject["label"] else ""
    sure = f" ({subject['probability']:.2f})" if subject["probability"] is not None else ""
    return f"{true}network: {subject['predicted']}{sure}"


def percent(value: float, signed: bool = False) -> str:
    """Return a share in per cent with one decimal."""
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"


def interval(bounds: list[float] | None) -> str:
    """Return an interval of shares in per cent."""
    if bounds is None:
        return TOO_FEW
    return f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f} %"


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("trainer.explain"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(percent=percent, interval=interval)
    environment.globals["scans_of"] = scans_of
    return environment.get_template("explanation.html.j2")
