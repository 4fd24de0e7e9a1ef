"""Run by alembic: the files of versions/ on the connection that `jobs.store.tables` hands over."""

from alembic import context

# One transaction, begun by who called: a format is there whole or not at all.
context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
