"""Format 5: with which groups jobs are shared."""

import sqlalchemy as sql
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table, and let an action name a group; no job is shared."""
    op.create_table(
        "shares",
        sql.Column("job", sql.Integer, sql.ForeignKey("jobs.number"), primary_key=True),
        sql.Column("group", sql.String(255), primary_key=True, index=True),
        sql.Column("since", sql.Double, nullable=False),
    )
    with op.batch_alter_table("actions", table_kwargs={"sqlite_autoincrement": True}) as actions:
        actions.alter_column("action", existing_type=sql.String(32), type_=sql.String(300), nullable=False)
    op.execute("UPDATE schema_version SET version = 5")  # versions that know only this table refuse
