"""Format 3: what users did with jobs, who and when."""

import sqlalchemy as sql
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the table; what was done before is not known."""
    op.create_table(
        "actions",
        sql.Column("number", sql.Integer, primary_key=True),
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), nullable=False, index=True),
        sql.Column("task", sql.Integer),
        sql.Column("time", sql.Double, nullable=False),
        sql.Column("action", sql.String(32), nullable=False),
        sql.Column("who", sql.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.execute("UPDATE schema_version SET version = 3")  # versions that know only this table refuse
