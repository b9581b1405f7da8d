"""`RepairRequested`, the present name of `HealRequested`; an older scheduler may still append the former."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    op.execute("INSERT INTO writer_type (writer, type, schema) VALUES ('scheduler', 'RepairRequested', 1)")
