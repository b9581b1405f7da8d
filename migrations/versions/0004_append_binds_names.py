"""Appending goes by names that are bound once, not by a search path that is set for each call.

Functions that run with their owner's rights must not look names up by a path that their caller chose. 0003 set a path
for each call, which cost an append of one event some 3 % of its time. The body of `kai_append` is now parsed here and
never again (`BEGIN ATOMIC`), and the one name that `kai_lock_head` looks up is qualified.

An event's position no longer comes with it: it follows from the new head's and from the event's place in the batch.
What was checked of positions needs no check, and that a stream's version grows is a check of the row.
"""

from alembic import op

revision = "0004"
down_revision = "0003"

STATEMENTS = (
    """
    CREATE OR REPLACE FUNCTION kai_lock_head(_cluster text)
    RETURNS TABLE (_position bigint, _hash bytea, _recorded_at bigint)
    LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        RETURN QUERY
            SELECT position, hash, recorded_at FROM public.log_head
            WHERE cluster OPERATOR(pg_catalog.=) _cluster FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO public.log_head
            VALUES (_cluster, 0, pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'), 0) ON CONFLICT DO NOTHING;
            RETURN QUERY
                SELECT position, hash, recorded_at FROM public.log_head
                WHERE cluster OPERATOR(pg_catalog.=) _cluster FOR UPDATE;
        END IF;
    END
    $$
    """,
    # A function, for no expression raises an error of one's own.
    """
    CREATE FUNCTION kai_refuse_append(_cluster text, _position bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'cluster %: events up to % do not follow the head', _cluster, _position
        USING ERRCODE = 'check_violation';
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_refuse_append(text, bigint) FROM PUBLIC",
    """
    CREATE OR REPLACE FUNCTION kai_append(
        _cluster text, _rows json, _position bigint, _hash bytea, _recorded_at bigint
    )
    RETURNS void LANGUAGE sql SECURITY DEFINER
    BEGIN ATOMIC
        WITH new AS MATERIALIZED (
            SELECT * FROM ROWS FROM (json_to_recordset(_rows) AS (
                stream text, version bigint, type text, schema integer, id uuid, actor text, occurred_at bigint,
                subject text, cause uuid, correlation text, body text, hash text
            )) WITH ORDINALITY AS new (
                stream, version, type, schema, id, actor, occurred_at, subject, cause, correlation, body, hash, number
            )
        ), recorded AS (
            INSERT INTO event (
                cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at,
                subject, cause, correlation, body, hash
            )
            SELECT
                _cluster, _position - (SELECT count(*) FROM new) + number,
                stream, version, type, schema, id, actor, occurred_at, _recorded_at,
                subject, cause, correlation, body::json, decode(hash, 'base64')
            FROM new
        ), identified AS (
            INSERT INTO event_id (cluster, id, position, fingerprint)
            SELECT
                _cluster, id, _position - (SELECT count(*) FROM new) + number,
                -- As in kaicore.ledger.log.appending.fingerprint.
                substring(sha256(convert_to(stream || chr(10) || type, 'UTF8')) FOR 8)
            FROM new
        ), versioned AS (
            INSERT INTO stream AS known (cluster, stream, version)
            SELECT _cluster, stream, max(version) FROM new GROUP BY stream
            ON CONFLICT (cluster, stream) DO UPDATE
            -- 0 is against the table's own check.
            SET version = CASE WHEN known.version < excluded.version THEN excluded.version ELSE 0 END
        ), moved AS (
            UPDATE log_head SET position = _position, hash = _hash, recorded_at = _recorded_at
            WHERE cluster = _cluster AND position + (SELECT count(*) FROM new) = _position AND position < _position
                AND recorded_at <= _recorded_at
            RETURNING 1
        )
        SELECT CASE
            WHEN EXISTS (SELECT FROM moved) THEN pg_notify('kai_log', _cluster)
            ELSE kai_refuse_append(_cluster, _position)
        END;
    END
    """,
)


def upgrade() -> None:
    # What `BEGIN ATOMIC` binds must be ours, whatever path the one who migrates has; pg_catalog comes first by itself.
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
