"""Evictions record the work that they lose and win: version 7 of `CycleCompleted`."""

from alembic import op

revision = "0011"
down_revision = "0010"

STATEMENTS = ("UPDATE writer_type SET schema = 7 WHERE type = 'CycleCompleted'",)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
