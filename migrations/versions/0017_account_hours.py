"""Hours of the account of GPU-hours, kept as a projection (`kaicore.analysis.ask.hours.kept`); pods' users and ends."""

from alembic import op

revision = "0017"
down_revision = "0016"

STATEMENTS = (
    "SET LOCAL search_path = public, pg_temp",
    """
    CREATE TABLE views.account_hour (
        cluster text NOT NULL, schema integer NOT NULL, begin_at bigint NOT NULL, end_at bigint NOT NULL,
        position bigint NOT NULL, document bytea NOT NULL, PRIMARY KEY (cluster, schema, begin_at)
    )
    """,
    # Compressed already.
    "ALTER TABLE views.account_hour ALTER COLUMN document SET STORAGE EXTERNAL",
    """
    ALTER TABLE views.pod_history ADD COLUMN "user" text NOT NULL DEFAULT '',
        ADD COLUMN why_ended text NOT NULL DEFAULT ''
    """,
    "GRANT SELECT, INSERT, UPDATE, DELETE ON views.account_hour TO kai_project",
    "GRANT SELECT ON views.account_hour TO kai_read, kai_append",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
