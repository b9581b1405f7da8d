"""Alembic's entry: runs on the connection that `kaicore.ledger.log.migrate` hands over, or on `KAI_DATABASE_URL`.

`alembic -c migrations/alembic.ini history` and the like work in a checkout.
"""

import os

from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.engine import Connection


def run(connection: Connection) -> None:
    context.configure(connection=connection, transaction_per_migration=False)
    with context.begin_transaction():
        # None of a log that is made now: no older service runs on it.
        context.config.attributes["schema_before"] = context.get_context().get_current_revision()
        context.run_migrations()


handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    url = os.environ["KAI_DATABASE_URL"].replace("postgresql://", "postgresql+psycopg://", 1)
    with create_engine(url).connect() as connection:
        run(connection)
