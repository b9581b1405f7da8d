"""GPUs that are opened for sharing: events of scheduler and binder, and version 8 of `CycleCompleted`."""

from alembic import op

revision = "0012"
down_revision = "0011"

STATEMENTS = (
    "INSERT INTO writer_type (writer, type, schema) VALUES ('scheduler', 'GpuOpened', 1), ('binder', 'GpuClosed', 1)",
    "UPDATE writer_type SET schema = 8 WHERE type = 'CycleCompleted'",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
