"""Cycles may record that room is promised to a group: version 6 of `CycleCompleted`."""

from alembic import op

revision = "0010"
down_revision = "0009"

STATEMENTS = ("UPDATE writer_type SET schema = 6 WHERE type = 'CycleCompleted'",)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
