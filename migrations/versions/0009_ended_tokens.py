"""Tokens of browsers that have ended: login tokens that were used, and sessions that were logged out, for all APIs.

An API has only the rights of `kai_read`. So it ends a token by a function, which returns whether it was the first to do
so. A token is a random id that the API made and signed, so nobody can guess one. Expired ones are removed.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

STATEMENTS = (
    """
    CREATE TABLE ended_token (
        id text PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64), until bigint NOT NULL
    )
    """,
    # Sessions last a week at most; an API that was taken over fills no disk.
    """
    CREATE FUNCTION kai_end_token(_id text, _until bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    DECLARE
        _now bigint := extract(epoch FROM clock_timestamp());
        _fresh integer;
    BEGIN
        DELETE FROM ended_token WHERE until < _now;
        IF _until > _now + 8 * 86400 THEN
            RAISE EXCEPTION 'no token lasts until %', _until USING ERRCODE = 'check_violation';
        END IF;
        IF (SELECT count(*) FROM ended_token) >= 1000000 THEN
            RAISE EXCEPTION 'too many tokens have ended' USING ERRCODE = 'configuration_limit_exceeded';
        END IF;
        INSERT INTO ended_token VALUES (_id, _until) ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS _fresh = ROW_COUNT;
        RETURN _fresh > 0;
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_end_token(text, bigint) FROM PUBLIC",
    "GRANT SELECT ON ended_token TO kai_read, kai_append",
    "GRANT EXECUTE ON FUNCTION kai_end_token(text, bigint) TO kai_read, kai_append",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
