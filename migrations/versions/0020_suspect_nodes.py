"""`NodeSuspected` and `NodeCleared`: nodes that fail what is put on them, found and cleared by cycles.

Version 10 of `CycleCompleted` has their reason.
"""

from alembic import op

revision = "0020"
down_revision = "0019"

STATEMENTS = (
    "INSERT INTO writer_type (writer, type, schema) VALUES "
    "('scheduler', 'NodeSuspected', 1), ('scheduler', 'NodeCleared', 1)",
    "UPDATE writer_type SET schema = 10 WHERE type = 'CycleCompleted'",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
