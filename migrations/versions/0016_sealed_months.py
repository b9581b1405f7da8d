"""`MonthSealed`: the log's owner seals the account of a month."""

from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    op.execute("INSERT INTO writer_type (writer, type, schema) VALUES ('owner', 'MonthSealed', 1)")
