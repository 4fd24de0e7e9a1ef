"""Write the findings of an import for people and scripts: qc.csv, qc.json and the picture sheet qc.html."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from trainer.attempts import attempt
from trainer.data.importing.examination import Examined
from trainer.data.shards.shard_writer import write_atomically
from trainer.data.sources.listing import SourceListing
from trainer.telling import tell

_SEVERITY = {"bad": 0, "warning": 1, "ok": 2}
COLUMNS = (
    "source", "status", "findings", "messages", "cures", "subject", "session", "label", "age", "sex", "site",
    "format", "shape", "dtype", "voxel_mm", "orientation", "xform", "minimum", "maximum", "mean",
    "not_finite", "foreground_ml", "cut_share", "inner", "dice", "turn_degrees", "scale", "stretch",
    "content_sha256", "source_sha256",
)  # fmt: skip


def write(target: Path, listing: SourceListing, examined: Sequence[Examined]) -> None:
    """Write the three files into the folder of the shard set; the same bytes for the same images.

    What cannot be shown as pictures is said, and is no reason to lose an import.

    Raises:
        ShardError: the disk is full or a file cannot be written.
    """
    rows = [row(image) for image in examined]
    document = {
        "source": listing.name,
        "label_name": listing.label_name,
        "cohort": [finding.to_json() for finding in listing.findings],
        "label_changes": listing.label_changes,
        "images": [
            {**row, "findings": [f.to_json() for f in image.findings]}
            for row, image in zip(rows, examined, strict=True)
        ],
    }
    write_atomically(target / "qc.json", (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())
    write_atomically(target / "qc.csv", _csv(rows).encode())
    attempt(
        f"{target / 'qc.html'}",
        lambda: write_atomically(target / "qc.html", html(listing, examined).encode()),
        remedy="import again with --overwrite; qc.csv has the same findings",
        note=tell,
    )


def row(image: Examined) -> dict[str, Any]:
    """Return one row of the table: the columns of `COLUMNS`, as lists where there are several values."""
    source, subject, session, label, age, sex, site, *_ = image.identity
    person = {"subject": subject, "session": session, "label": label, "age": age, "sex": sex, "site": site}
    facts, report = image.facts or {}, image.report or {}
    counted = [finding for finding in image.findings if finding.severity != "note"]
    return {
        "source": source,
        "status": image.status,
        "findings": [finding.code for finding in image.findings],
        "messages": [finding.message for finding in counted],
        "cures": [finding.cure for finding in counted],
        **person,
        **{name: facts.get(name) for name in COLUMNS if name in facts or name in _OF_FACTS},
        **{name: report.get(name) for name in ("foreground_ml", "cut_share")},
        **{name: report.get("registration", {}).get(name) for name in _OF_REGISTRATION},
        "content_sha256": facts.get("content_sha256"),
        "source_sha256": image.sha256 or None,
    }


_OF_REGISTRATION = COLUMNS[COLUMNS.index("inner") : COLUMNS.index("content_sha256")]
_OF_FACTS = COLUMNS[COLUMNS.index("format") : COLUMNS.index("foreground_ml")]


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="raise")
    writer.writeheader()
    for line in rows:
        writer.writerow({name: _cell(name, line[name]) for name in COLUMNS})
    return text.getvalue()


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return (" x " if name in ("shape", "voxel_mm") else " ").join(
            "?" if v is None else str(v) for v in value
        )
    return "" if value is None else value


def html(listing: SourceListing, examined: Sequence[Examined]) -> str:
    """Return the picture sheet: one self-contained page, the images with findings first."""
    cards = [
        {
            **row(image),
            "number": number,
            "remarks": [finding.to_json() for finding in image.findings],
            "picture": image.picture,
        }
        for number, image in enumerate(examined)
    ]
    return _template().render(
        listing=listing,
        cards=sorted(cards, key=lambda card: (_SEVERITY[str(card["status"])], card["number"])),
        statuses=Counter(image.status for image in examined),
        labels=dict(
            sorted(Counter(str(image.identity[3]) for image in examined if image.status != "bad").items())
        ),
        registered=any(card["inner"] is not None for card in cards),
        codes=dict(
            Counter(
                f.code for image in examined for f in image.findings if f.severity != "note"
            ).most_common()
        ),
    )


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("trainer.data.importing")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.get_template("qc.html.j2")
