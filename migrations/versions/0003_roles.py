"""Roles: `kai_append` adds to the log by functions only, `kai_read` reads, and the migrating role owns.

Neither can change or remove what is recorded, move a head, or make a stream's version smaller: they have no right to
write the log's tables at all. The functions run with the owner's rights and check what they are given against what is
there. `docs/explanation/log.md` says what each role may do, `docs/how-to/deploy.md` how they are made.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

_MAKE_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
EXCEPTION
    -- Another database of this server was migrated at the same moment.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role {role} does not exist, and % may not create it', current_user
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'CREATE ROLE {role} LOGIN PASSWORD ... (docs/how-to/deploy.md)';
END
$$
"""

STATEMENTS = (
    _MAKE_ROLE.format(role="kai_append"),
    _MAKE_ROLE.format(role="kai_read"),
    # A cluster's head, locked for the rest of the transaction; made where it is missing.
    """
    CREATE FUNCTION kai_lock_head(_cluster text) RETURNS TABLE (_position bigint, _hash bytea, _recorded_at bigint)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        RETURN QUERY SELECT position, hash, recorded_at FROM log_head WHERE cluster = _cluster FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO log_head VALUES (_cluster, 0, decode(repeat('00', 32), 'hex'), 0) ON CONFLICT DO NOTHING;
            RETURN QUERY SELECT position, hash, recorded_at FROM log_head WHERE cluster = _cluster FOR UPDATE;
        END IF;
    END
    $$
    """,
    """
    CREATE FUNCTION kai_append(_cluster text, _rows json, _position bigint, _hash bytea, _recorded_at bigint)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        WITH new AS MATERIALIZED (
            SELECT * FROM json_to_recordset(_rows) AS new (
                position bigint, stream text, version bigint, type text, schema integer, id uuid, actor text,
                occurred_at bigint, subject text, cause uuid, correlation text, body text, hash text
            )
        ), recorded AS (
            INSERT INTO event (
                cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at,
                subject, cause, correlation, body, hash
            )
            SELECT
                _cluster, position, stream, version, type, schema, id, actor, occurred_at, _recorded_at,
                subject, cause, correlation, body::json, decode(hash, 'base64')
            FROM new
        ), identified AS (
            INSERT INTO event_id (cluster, id, position, fingerprint)
            SELECT
                _cluster, id, position,
                -- As in kaicore.ledger.log.appending.fingerprint.
                substring(sha256(convert_to(stream || chr(10) || type, 'UTF8')) FOR 8)
            FROM new
        ), versions AS (
            SELECT stream, max(version) AS version, count(*) AS events FROM new GROUP BY stream
        ), versioned AS (
            INSERT INTO stream AS known (cluster, stream, version) SELECT _cluster, stream, version FROM versions
            ON CONFLICT (cluster, stream) DO UPDATE SET version = excluded.version
            WHERE known.version < excluded.version
            RETURNING 1
        ), placed AS (
            SELECT min(position) AS first, max(position) AS last, count(DISTINCT position) AS places, count(*) AS events
            FROM new
        )
        UPDATE log_head SET position = _position, hash = _hash, recorded_at = _recorded_at
        FROM placed
        WHERE cluster = _cluster AND log_head.position + 1 = first AND last = _position
            AND places = events AND last - first + 1 = events AND log_head.recorded_at <= _recorded_at
            AND (SELECT count(*) FROM versioned) = (SELECT count(*) FROM versions);
        IF NOT FOUND THEN
            RAISE EXCEPTION 'cluster %: events up to % do not follow the head', _cluster, _position
            USING ERRCODE = 'check_violation';
        END IF;
        PERFORM pg_notify('kai_log', _cluster);
    END
    $$
    """,
    # Returns whether it is there now; it cannot be attached where the DEFAULT partition has events of it.
    """
    CREATE FUNCTION kai_make_month(_year integer, _month integer) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    DECLARE
        _name text := format('event_%s_%s', lpad(_year::text, 4, '0'), lpad(_month::text, 2, '0'));
        _start timestamptz := make_timestamptz(_year, _month, 1, 0, 0, 0, 'UTC');
        _end timestamptz := (_start AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC';
    BEGIN
        IF _year NOT BETWEEN 1970 AND 9999 THEN
            RAISE EXCEPTION 'no month of the log: %-%', _year, _month USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF to_regclass(format('public.%I', _name)) IS NOT NULL THEN
            RETURN true;
        END IF;
        -- Attaching locks readers and writers out of the DEFAULT partition only; PARTITION OF would of all.
        EXECUTE format('CREATE TABLE public.%I (LIKE event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', _name);
        EXECUTE format(
            'CREATE TRIGGER no_truncate BEFORE TRUNCATE ON public.%I '
            'FOR EACH STATEMENT EXECUTE FUNCTION public.refuse_change()', _name
        );
        EXECUTE format(
            'ALTER TABLE event ATTACH PARTITION public.%I FOR VALUES FROM (%s) TO (%s)',
            _name, (extract(epoch FROM _start) * 1000000)::bigint, (extract(epoch FROM _end) * 1000000)::bigint
        );
        RETURN true;
    EXCEPTION
        WHEN check_violation THEN RETURN false;
    END
    $$
    """,
    *(
        f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC"
        for function in (
            "kai_lock_head(text)",
            "kai_append(text, json, bigint, bytea, bigint)",
            "kai_make_month(integer, integer)",
        )
    ),
    "GRANT EXECUTE ON FUNCTION kai_lock_head(text), kai_append(text, json, bigint, bytea, bigint), "
    "kai_make_month(integer, integer) TO kai_append",
    "GRANT USAGE ON SCHEMA public TO kai_append, kai_read",
    "GRANT SELECT ON log_head, stream, event, event_id, snapshot, seal, kept_snapshot TO kai_append, kai_read",
    # A cache: a role that may append may write it.
    "GRANT INSERT, UPDATE ON snapshot TO kai_append",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
