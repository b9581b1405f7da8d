"""Notices that wait for their target, and up to which position they were made: a schema that the projector writes."""

from alembic import op

revision = "0018"
down_revision = "0017"

STATEMENTS = (
    "CREATE SCHEMA notices",
    "CREATE TABLE notices.progress (cluster text PRIMARY KEY, position bigint NOT NULL)",
    """
    CREATE TABLE notices.waiting (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, target text NOT NULL, cluster text NOT NULL,
        made_at bigint NOT NULL, body text NOT NULL
    )
    """,
    "CREATE INDEX waiting_target ON notices.waiting (target, number)",
    "GRANT USAGE ON SCHEMA notices TO kai_project",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA notices TO kai_project",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
