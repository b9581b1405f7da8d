"""The trail: snapshots of the state along each log, so that no moment of the past is far from one.

It is a cache, as `snapshot` is: a role that may append may write it and thin it, and deleting all of it loses nothing.
Bodies are compressed (zlib); the digest is that of `kaicore.ledger.log.snapshots`, over the body as it was before.
"""

from alembic import op

revision = "0005"
down_revision = "0004"

STATEMENTS = (
    """
    CREATE TABLE state_trail (
        cluster  text    NOT NULL,
        schema   text    NOT NULL,
        position bigint  NOT NULL CHECK (position > 0),
        size     integer NOT NULL,
        body     bytea   NOT NULL,
        digest   bytea   NOT NULL,
        PRIMARY KEY (cluster, schema, position)
    )
    """,
    # Compressed already.
    "ALTER TABLE state_trail ALTER COLUMN body SET STORAGE EXTERNAL",
    "GRANT SELECT ON state_trail TO kai_append, kai_read",
    "GRANT INSERT, UPDATE, DELETE ON state_trail TO kai_append",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
