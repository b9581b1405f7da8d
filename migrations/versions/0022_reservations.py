"""Version 10 of `CycleCompleted`, with reasons about reserved nodes, and facts about Reservations."""

from alembic import op

revision = "0022"
down_revision = "0018"

STATEMENTS = (
    "UPDATE writer_type SET schema = 10 WHERE type = 'CycleCompleted'",
    "INSERT INTO writer_type (writer, type, schema) VALUES "
    "('watcher', 'ReservationObserved', 1), ('watcher', 'ReservationDeleted', 1)",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
