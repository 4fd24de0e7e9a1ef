"""Format 2: which job has which run folder, so that no second one is admitted to it."""

import json
import posixpath

import sqlalchemy as sql
from alembic import op

revision = "0002"
down_revision = "0001"

_ENDED = (
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED"),
    *("OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "LOST"),
)
_JOBS = sql.table(
    "jobs", *(sql.column(name) for name in ("number", "kind", "state", "spec")), sql.column("folder")
)


def upgrade() -> None:
    """Make the table, and fill it from the jobs that wait or run."""
    folders = op.create_table(
        "run_folders",
        sql.Column("folder", sql.Text, primary_key=True),
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), nullable=False, index=True),
    )
    active = sql.select(_JOBS).where(_JOBS.c.kind.in_(("train", "crossval")), _JOBS.c.state.not_in(_ENDED))
    found: dict[str, int] = {}
    for row in op.get_bind().execute(active.order_by(_JOBS.c.number)).mappings():
        run = _run(row["spec"])
        if run is not None:
            found[run] = row["number"]  # the newest of those that wait for each other
    if found:
        op.bulk_insert(folders, [{"folder": run, "job": number} for run, number in found.items()])
    op.execute("UPDATE schema_version SET version = 2")  # versions that know only this table refuse


def _run(spec: str) -> str | None:
    """Return the run folder of a job of format 1, by the name under which its configuration was kept."""
    try:
        job = json.loads(spec)
        for word in job["tasks"][0]:
            kept = posixpath.join(job["folder"], word)
            runs, beside = posixpath.split(posixpath.dirname(kept))
            if beside.startswith(".submitted-"):
                name = posixpath.basename(kept).removesuffix(".yaml").rpartition("-")[0]
                return posixpath.normpath(posixpath.join(runs, name))
    except (ValueError, KeyError, IndexError, TypeError):
        pass  # no job that this version can read: it cannot be run either
    return None
