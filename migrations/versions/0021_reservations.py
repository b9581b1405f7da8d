"""Facts about Reservations, appended by the watcher."""

from alembic import op

revision = "0021"
down_revision = "0020"

STATEMENTS = (
    "INSERT INTO writer_type (writer, type, schema) VALUES "
    "('watcher', 'ReservationObserved', 1), ('watcher', 'ReservationDeleted', 1)",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
