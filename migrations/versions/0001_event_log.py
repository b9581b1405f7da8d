"""The event log.

Times are integers, microseconds since the epoch, because they are hashed and compared as such. There is no downgrade:
the only way back from a log is another log.
"""

from alembic import op

revision = "0001"
down_revision = None

STATEMENTS = (
    # One row per cluster, locked first by every append: that alone makes positions gapless and total.
    """
    CREATE TABLE log_head (
        cluster     text   PRIMARY KEY,
        position    bigint NOT NULL CHECK (position >= 0),
        hash        bytea  NOT NULL CHECK (length(hash) = 32),
        recorded_at bigint NOT NULL
    ) WITH (fillfactor = 50)
    """,
    # Versions live here, because a partitioned table cannot hold (cluster, stream, version) unique.
    """
    CREATE TABLE stream (
        cluster text   NOT NULL,
        stream  text   NOT NULL,
        version bigint NOT NULL CHECK (version > 0),
        PRIMARY KEY (cluster, stream)
    ) WITH (fillfactor = 80)
    """,
    # body is json, not jsonb: the exact bytes are hashed, and jsonb would rewrite them.
    """
    CREATE TABLE event (
        cluster     text    NOT NULL,
        position    bigint  NOT NULL,
        stream      text    NOT NULL,
        version     bigint  NOT NULL,
        type        text    NOT NULL,
        schema      integer NOT NULL,
        id          uuid    NOT NULL,
        actor       text    NOT NULL,
        occurred_at bigint  NOT NULL,
        recorded_at bigint  NOT NULL,
        subject     text    NOT NULL,
        cause       uuid,
        correlation text    NOT NULL,
        body        json    NOT NULL,
        hash        bytea   NOT NULL
    ) PARTITION BY RANGE (recorded_at)
    """,
    "CREATE INDEX event_position ON event (cluster, position)",
    "CREATE INDEX event_stream ON event (cluster, stream, position)",
    "CREATE INDEX event_subject ON event (cluster, subject, position) WHERE subject <> ''",
    "CREATE INDEX event_type ON event (cluster, type, position)",
    "CREATE INDEX event_recorded_at ON event (cluster, recorded_at)",
    "CREATE TABLE event_default PARTITION OF event DEFAULT",
    # Ids of all events ever recorded, those of detached months included: a fact that is observed again after a year has
    # the same id. The fingerprint of stream and type tells an event found again from another one under its id.
    """
    CREATE TABLE event_id (
        cluster     text   NOT NULL,
        id          uuid   NOT NULL,
        position    bigint NOT NULL,
        fingerprint bytea  NOT NULL CHECK (length(fingerprint) = 8),
        PRIMARY KEY (cluster, id)
    )
    """,
    """
    CREATE TABLE snapshot (
        cluster  text   NOT NULL,
        name     text   NOT NULL,
        schema   text   NOT NULL,
        position bigint NOT NULL,
        body     bytea  NOT NULL,
        PRIMARY KEY (cluster, name, schema)
    )
    """,
    # What a detached month held of a cluster, so that the chain of what is left can still be verified.
    """
    CREATE TABLE seal (
        cluster        text   NOT NULL,
        position       bigint NOT NULL,
        first_position bigint NOT NULL,
        hash           bytea  NOT NULL CHECK (length(hash) = 32),
        recorded_at    bigint NOT NULL,
        detached       text   NOT NULL,
        sealed_at      bigint NOT NULL,
        PRIMARY KEY (cluster, position)
    )
    """,
    """
    CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'table % is append-only: % refused', tg_table_name, tg_op USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    # Row triggers are inherited by partitions, statement triggers are not: `kaicore.ledger.log.partitions` adds them.
    """
    CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON event FOR EACH ROW EXECUTE FUNCTION refuse_change()
    """,
    "CREATE TRIGGER no_truncate BEFORE TRUNCATE ON event FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
    "CREATE TRIGGER no_truncate BEFORE TRUNCATE ON event_default FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()",
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON event_id EXECUTE FUNCTION refuse_change()",
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seal EXECUTE FUNCTION refuse_change()",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
