"""Bodies without what is the same in each of their kind (`kaicore.ledger.log.shapes`).

The table `event` has the same columns. A row that has only the values of a body says so in `schema`: the version of the
payload's schema, and 1024 times the number of the shape. Programs of versions before this one take it for a schema that
is newer than they are, and stop. So that services can be replaced one by one, a log that was there before, with events
or without, gets its first such row a day after it was migrated. Rows that are there stay as they are.

`readable_event` has all events with whole bodies, for people and for programs of their own.

Four indexes of `event` get a third of their size. On a log of 1 GB or more they stay until the owner calls
`kai_thin_indexes()`, which keeps appends waiting for as long as it takes.
"""

import time

from alembic import op

revision = "0019"
down_revision = "0018"

#: Seconds that services have to be replaced.
_GRACE_S = 86_400

STATEMENTS = (
    """
    CREATE TABLE body_shape (
        number   integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        digest   bytea   NOT NULL UNIQUE,
        template text    NOT NULL CHECK (octet_length(template) <= 4096)
    )
    """,
    # Not compressed: it is read with each event.
    "ALTER TABLE body_shape SET (toast_tuple_target = 8160)",
    "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON body_shape EXECUTE FUNCTION refuse_change()",
    # As in kaicore.ledger.log.shapes.cut. Each name is what is behind the first `/`. Values that an owner took
    # away are empty: whoever reads the log sees that, and gets no error of the server.
    """
    CREATE FUNCTION kai_fill(_template text, _values text, _stream text, _subject text, _correlation text)
    RETURNS text LANGUAGE sql STABLE
    RETURN format(
        _template,
        VARIADIC ARRAY[
            substr(_stream, strpos(_stream, '/') + 1), substr(_subject, strpos(_subject, '/') + 1),
            split_part(_subject, '/', 1), _correlation
        ] || string_to_array(substr(_values, 2, length(_values) - 2), E',\n') || array_fill(''::text, ARRAY[95])
    )
    """,
    # A shape's number; made where it is new. NULL where no row may have one yet, or there are too many.
    r"""
    CREATE FUNCTION kai_shape(_template text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    DECLARE
        _digest bytea := sha256(convert_to(_template, 'UTF8'));
        _number integer;
    BEGIN
        IF NOT EXISTS (SELECT FROM append_grant WHERE role = session_user) AND NOT kai_unbound() THEN
            RAISE EXCEPTION 'role % may append nothing', session_user USING ERRCODE = 'insufficient_privilege';
        END IF;
        SELECT number INTO _number FROM body_shape WHERE digest = _digest;
        IF FOUND THEN
            RETURN _number;
        END IF;
        -- A width or another conversion would make any length of a short row.
        IF strpos(regexp_replace(_template, '%[1-9][0-9]?\$s', '', 'g'), '%') > 0 THEN
            RAISE EXCEPTION 'no shape of bodies' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF clock_timestamp() < to_timestamp({since}) OR (SELECT max(number) FROM body_shape) >= 8192 THEN
            RETURN NULL;
        END IF;
        INSERT INTO body_shape (digest, template) VALUES (_digest, _template) ON CONFLICT DO NOTHING;
        SELECT number INTO _number FROM body_shape WHERE digest = _digest;
        RETURN _number;
    END
    $$
    """,
    """
    CREATE OR REPLACE FUNCTION kai_append(
        _cluster text, _rows json, _position bigint, _hash bytea, _recorded_at bigint
    )
    RETURNS void LANGUAGE sql SECURITY DEFINER
    BEGIN ATOMIC
        WITH given AS MATERIALIZED (
            SELECT * FROM ROWS FROM (json_to_recordset(_rows) AS (
                stream text, version bigint, type text, schema integer, id uuid, actor text, occurred_at bigint,
                subject text, cause uuid, correlation text, body text, hash text, shape integer
            )) WITH ORDINALITY AS given (
                stream, version, type, schema, id, actor, occurred_at, subject, cause, correlation, body, hash, shape,
                number
            )
        ), whole AS MATERIALIZED (
            -- Values of a shape are few, so that no small row can stand for a huge body.
            SELECT given.*, CASE
                WHEN coalesce(shape, 0) = 0 THEN body
                WHEN shape > 0 AND schema BETWEEN 1 AND 1023 AND octet_length(body) <= 4096
                THEN kai_fill(
                    (SELECT template FROM body_shape WHERE body_shape.number = shape), body, stream, subject,
                    correlation
                )
            END AS text FROM given
        ), new AS MATERIALIZED (
            SELECT whole.*, _position - (SELECT count(*) FROM whole) + number AS position,
                decode(whole.hash, 'base64') AS digest, convert_to(whole.text, 'UTF8') AS bytes
            FROM whole
        ), head AS MATERIALIZED (
            SELECT hash, recorded_at FROM log_head WHERE cluster = _cluster
        ), chained AS (
            -- No stream has more events than the log: a version out of reach would leave none to those who come after.
            -- As in kaicore.ledger.log.chain. Rows come in the order of the array; the body is last, to be copied once.
            SELECT version <= position AND schema < 1024 AND text::json IS NOT NULL AND digest = sha256(
                (lag(digest, 1, (SELECT hash FROM head)) OVER ()
                || int8send(position) || int8send(version) || int8send(schema) || int8send(occurred_at)
                || int8send(_recorded_at)
                || int8send(octet_length(_cluster)) || int8send(octet_length(stream)) || int8send(octet_length(type))
                || int8send(16) || int8send(octet_length(subject)) || int8send(octet_length(actor))
                || int8send(CASE WHEN cause IS NULL THEN 0 ELSE 16 END) || int8send(octet_length(correlation))
                || int8send(octet_length(bytes))
                || convert_to(_cluster || stream || type, 'UTF8') || uuid_send(id)
                || convert_to(subject || actor, 'UTF8') || coalesce(uuid_send(cause), '')
                || convert_to(correlation, 'UTF8')) || bytes
            ) AS sound FROM new
        ), foreign_types AS (
            SELECT type, schema FROM new
            WHERE NOT EXISTS (
                SELECT FROM writer_type JOIN append_grant USING (writer)
                WHERE writer_type.type = new.type AND new.schema BETWEEN 1 AND writer_type.schema
                    AND role = session_user AND (cluster = _cluster OR cluster = '*' AND _cluster <> 'hub')
                    AND (about = '' OR about = new.text::jsonb ->> 'cluster' AND (
                        stream LIKE 'dispatch/%' OR stream IN ('cluster/' || about, 'lease/' || about)
                    ))
            )
        ), recorded AS (
            INSERT INTO event (
                cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at,
                subject, cause, correlation, body, hash
            )
            SELECT
                _cluster, position, stream, version, type, schema + coalesce(shape, 0) * 1024, id, actor, occurred_at,
                _recorded_at, subject, cause, correlation, body::json, digest
            FROM new
        ), identified AS (
            INSERT INTO event_id (cluster, id, position, fingerprint)
            SELECT
                _cluster, id, position,
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
            WHEN NOT EXISTS (SELECT FROM moved)
            THEN kai_refuse_append(
                _cluster, format('events up to %s do not follow the head', _position), 'check_violation'
            )
            WHEN EXISTS (SELECT FROM foreign_types) AND NOT kai_unbound()
            THEN kai_refuse_append(
                _cluster,
                (
                    SELECT format(
                        'role %s may not append %s', session_user,
                        string_agg(DISTINCT format('%s schema %s', type, schema), ', ')
                    ) FROM foreign_types
                ),
                'insufficient_privilege'
            )
            WHEN (SELECT count(*) FILTER (WHERE sound) <> count(*) FROM chained)
                OR _hash IS DISTINCT FROM (SELECT digest FROM new ORDER BY number DESC LIMIT 1)
            THEN kai_refuse_append(
                _cluster, format('events up to %s: a hash or version is not that of its event', _position),
                'check_violation'
            )
            WHEN _recorded_at > greatest(
                (SELECT recorded_at FROM head), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + 300000000
            ) AND NOT kai_unbound()
            THEN kai_refuse_append(
                _cluster, format('events up to %s: recorded_at is ahead of the clock', _position), 'check_violation'
            )
            ELSE pg_notify('kai_log', _cluster)
        END;
    END
    """,
    """
    CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF tg_op = 'UPDATE' AND current_setting('kai.erasing', true) = 'on' THEN
            IF tg_level = 'STATEMENT' AND tg_table_name = 'kept_snapshot' THEN
                RETURN NULL;
            END IF;
            IF tg_level = 'ROW' AND (
                OLD.cluster, OLD.position, OLD.stream, OLD.version, OLD.type, mod(OLD.schema, 1024), OLD.id, OLD.actor,
                OLD.occurred_at, OLD.recorded_at, OLD.cause, OLD.correlation, OLD.hash
            ) IS NOT DISTINCT FROM (
                NEW.cluster, NEW.position, NEW.stream, NEW.version, NEW.type, NEW.schema, NEW.id, NEW.actor,
                NEW.occurred_at, NEW.recorded_at, NEW.cause, NEW.correlation, NEW.hash
            ) THEN
                RETURN NEW;
            END IF;
        END IF;
        RAISE EXCEPTION 'table % is append-only: % refused', tg_table_name, tg_op USING ERRCODE = 'restrict_violation';
    END
    $$
    """,
    """
    CREATE OR REPLACE FUNCTION kai_erase(_cluster text, _rows json) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        _changed bigint;
    BEGIN
        PERFORM set_config('kai.erasing', 'on', true);
        UPDATE public.event SET subject = new.subject, body = new.body::json, schema = mod(schema, 1024)
        FROM json_to_recordset(_rows) AS new (position bigint, recorded_at bigint, subject text, body text)
        WHERE event.cluster = _cluster AND event.position = new.position AND event.recorded_at = new.recorded_at;
        GET DIAGNOSTICS _changed = ROW_COUNT;
        PERFORM set_config('kai.erasing', '', true);
        RETURN _changed;
    END
    $$
    """,
    """
    CREATE VIEW readable_event WITH (security_invoker = true) AS
    SELECT cluster, position, stream, version, type, mod(schema, 1024) AS schema, id, actor, occurred_at, recorded_at,
        subject, cause, correlation,
        CASE WHEN schema < 1024 THEN body::text ELSE kai_fill(
            (SELECT template FROM body_shape WHERE number = schema / 1024), body::text, stream, subject, correlation
        ) END AS body,
        hash
    FROM event
    """,
    # Owner's. As in kaicore.ledger.log.postgres.log: many events in a row have one key, which Postgres stores once.
    """
    CREATE FUNCTION kai_thin_indexes() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        CREATE INDEX event_stream_thin ON event (cluster, stream, (position >> 14));
        CREATE INDEX event_subject_thin ON event (cluster, subject, (position >> 14)) WHERE subject <> '';
        CREATE INDEX event_type_thin ON event (cluster, type, (position >> 10));
        CREATE INDEX event_recorded_at_thin ON event (cluster, (recorded_at >> 24));
        DROP INDEX event_stream, event_subject, event_type, event_recorded_at;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_thin_indexes() FROM PUBLIC",
    # Nothing is appended while it runs: some seconds. Owners of larger logs choose when.
    """
    SELECT kai_thin_indexes() FROM pg_inherits WHERE inhparent = 'event'::regclass
    HAVING sum(pg_relation_size(inhrelid)) < 1000000000
    """,
    # Keys and words of Kubernetes only; the view has the rights of its caller, and `kai_shape` asks who calls.
    "GRANT SELECT ON body_shape, readable_event TO PUBLIC",
)


def upgrade() -> None:
    # As in 0008.
    op.execute("SET LOCAL search_path = public, pg_temp")
    config = op.get_context().config
    since = int(time.time()) + _GRACE_S if config is not None and config.attributes["schema_before"] else 0
    for statement in STATEMENTS:
        # Not `op.execute(str)`: to it `:name` is a parameter.
        op.get_bind().exec_driver_sql(statement.replace("{since}", str(since)).replace("%", "%%"))
