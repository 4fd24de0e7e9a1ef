"""Format 5: all tables, as version 0.1.0 makes them."""

import sqlalchemy as sql
from alembic import op

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "jobs",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("token", sql.String(16), nullable=False, unique=True),
        sql.Column("launcher", sql.String(32), nullable=False),
        sql.Column("place", sql.String(255), nullable=False),
        sql.Column("site", sql.String(255), nullable=False),
        sql.Column("external", sql.String(1024)),
        sql.Column("label", sql.String(64), nullable=False, index=True),
        sql.Column("name", sql.Text, nullable=False),
        sql.Column("kind", sql.String(32), nullable=False),
        sql.Column("spec", sql.Text, nullable=False),
        sql.Column("folder", sql.Text, nullable=False),
        sql.Column("user", sql.String(255), nullable=False),
        sql.Column("submitter", sql.String(512), nullable=False),
        sql.Column("submitted", sql.Double, nullable=False),
        sql.Column("changed", sql.Double, nullable=False, index=True),
        sql.Column("state", sql.String(16), nullable=False, index=True),
        sql.Column("revision", sql.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "tasks",
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), primary_key=True),
        sql.Column("task", sql.Integer, primary_key=True, autoincrement=False),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("exit_code", sql.Integer),
        sql.Column("reason", sql.Text, nullable=False),
        sql.Column("hosts", sql.Text, nullable=False),
        sql.Column("restarts", sql.Integer, nullable=False),
        sql.Column("started", sql.Double),
        sql.Column("ended", sql.Double),
        sql.Column("missing_since", sql.Double),
    )
    op.create_table(
        "changes",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), nullable=False, index=True),
        sql.Column("task", sql.Integer, nullable=False),
        sql.Column("time", sql.Double, nullable=False),
        sql.Column("state", sql.String(16), nullable=False),
        sql.Column("exit_code", sql.Integer),
        sql.Column("reason", sql.Text, nullable=False),
        sql.Column("restarts", sql.Integer, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "actions",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), nullable=False, index=True),
        sql.Column("task", sql.Integer),
        sql.Column("time", sql.Double, nullable=False),
        sql.Column("action", sql.String(300), nullable=False),
        sql.Column("who", sql.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run_folders",
        sql.Column("folder", sql.Text, primary_key=True),
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), nullable=False, index=True),
    )
    op.create_table(
        "shares",
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), primary_key=True),
        sql.Column("group", sql.String(255), primary_key=True, index=True),
        sql.Column("since", sql.Double, nullable=False),
    )
    op.create_table(
        "submissions",
        sql.Column("user", sql.String(255), primary_key=True),
        sql.Column("key", sql.String(64), primary_key=True),
        sql.Column("digest", sql.String(64), nullable=False),
        sql.Column("tokens", sql.Text, nullable=False),
        sql.Column("time", sql.Double, nullable=False),
    )
