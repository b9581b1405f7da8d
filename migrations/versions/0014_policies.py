"""Version 9 of `CycleCompleted`: policies that a cycle left out, and reasons of policies."""

from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    op.execute("UPDATE writer_type SET schema = 9 WHERE type = 'CycleCompleted'")
