"""Format 4: what was asked to be submitted by a key, so that it is done once."""

import sqlalchemy as sql
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "submissions",
        sql.Column("user", sql.String(255), primary_key=True),
        sql.Column("key", sql.String(64), primary_key=True),
        sql.Column("digest", sql.String(64), nullable=False),
        sql.Column("tokens", sql.Text, nullable=False),
        sql.Column("time", sql.Double, nullable=False),
    )
    op.execute("UPDATE schema_version SET version = 4")  # versions that know only this table refuse
