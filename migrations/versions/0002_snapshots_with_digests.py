"""Snapshots carry a digest, and those that lead past retired months are kept with them.

The digest is as in `kaicore.ledger.log.snapshots`; snapshots from before are taken as they are.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

STATEMENTS = (
    "ALTER TABLE snapshot ADD COLUMN digest bytea",
    r"""
    UPDATE snapshot SET digest = sha256(
        convert_to(cluster || E'\n' || name || E'\n' || schema || E'\n' || position || E'\n', 'UTF8') || body
    )
    """,
    "ALTER TABLE snapshot ALTER COLUMN digest SET NOT NULL",
    # What a reader starts from where the events before are gone: never replaced, unlike the rows of `snapshot`.
    """
    CREATE TABLE kept_snapshot (
        cluster  text   NOT NULL,
        seal     bigint NOT NULL,
        name     text   NOT NULL,
        schema   text   NOT NULL,
        position bigint NOT NULL CHECK (position >= seal),
        body     bytea  NOT NULL,
        digest   bytea  NOT NULL,
        PRIMARY KEY (cluster, seal, name)
    )
    """,
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON kept_snapshot EXECUTE FUNCTION refuse_change()",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
