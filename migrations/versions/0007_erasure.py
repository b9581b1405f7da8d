"""Erasing personal data: the owner may replace subject and body of events, in one function and nowhere else.

An event that was recorded is still never changed in anything else, by anybody: the trigger lets an update of an event
pass only while `kai_erase` runs, and only of these two columns. Nobody but the owner may run it; it has its caller's
rights, so that nobody gains any by it. `docs/how-to/audit.md` says how it is used.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

STATEMENTS = (
    """
    CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF tg_op = 'UPDATE' AND current_setting('kai.erasing', true) = 'on' THEN
            IF tg_level = 'STATEMENT' AND tg_table_name = 'kept_snapshot' THEN
                RETURN NULL;
            END IF;
            IF tg_level = 'ROW' AND (
                OLD.cluster, OLD.position, OLD.stream, OLD.version, OLD.type, OLD.schema, OLD.id, OLD.actor,
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
    # Returns how many events it changed.
    """
    CREATE FUNCTION kai_erase(_cluster text, _rows json) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        _changed bigint;
    BEGIN
        PERFORM set_config('kai.erasing', 'on', true);
        UPDATE public.event SET subject = new.subject, body = new.body::json
        FROM json_to_recordset(_rows) AS new (position bigint, recorded_at bigint, subject text, body text)
        WHERE event.cluster = _cluster AND event.position = new.position AND event.recorded_at = new.recorded_at;
        GET DIAGNOSTICS _changed = ROW_COUNT;
        PERFORM set_config('kai.erasing', '', true);
        RETURN _changed;
    END
    $$
    """,
    # What readers start from behind retired months holds names as well, and is encoded by a program.
    """
    CREATE FUNCTION kai_erase_kept(_cluster text, _seal bigint, _name text, _body bytea, _digest bytea)
    RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM set_config('kai.erasing', 'on', true);
        UPDATE public.kept_snapshot SET body = _body, digest = _digest
        WHERE cluster = _cluster AND seal = _seal AND name = _name;
        PERFORM set_config('kai.erasing', '', true);
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_erase(text, json), kai_erase_kept(text, bigint, text, bytea, bytea) FROM PUBLIC",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
