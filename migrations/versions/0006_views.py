"""Read models in a schema of their own, written by one more role, `kai_project`, which can write nothing else.

They are made from the log, and made anew from it at any time: dropping all rows loses nothing. Rows have a generation,
so that a new one is built beside the one that is read (`kaicore.analysis.ask.projections.store`).
"""

from alembic import op

revision = "0006"
down_revision = "0005"

_MAKE_ROLE = """
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'kai_project') THEN
        CREATE ROLE kai_project NOLOGIN;
    END IF;
EXCEPTION
    -- Another database of this server was migrated at the same moment.
    WHEN duplicate_object OR unique_violation THEN NULL;
    WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'role kai_project does not exist, and % may not create it', current_user
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'CREATE ROLE kai_project LOGIN PASSWORD ... (docs/how-to/deploy.md)';
END
$$
"""


def _columns(kind: str, *names: str) -> str:
    return ", ".join(f"{name} {kind} NOT NULL" for name in names)


STATEMENTS = (
    _MAKE_ROLE,
    "CREATE SCHEMA views",
    """
    CREATE TABLE views.progress (
        cluster text NOT NULL, generation integer NOT NULL, schema integer NOT NULL, live boolean NOT NULL,
        position bigint NOT NULL, recorded_at bigint NOT NULL, PRIMARY KEY (cluster, generation)
    )
    """,
    "CREATE UNIQUE INDEX progress_live ON views.progress (cluster) WHERE live",
    f"""
    CREATE TABLE views.pod_history (
        cluster text NOT NULL, generation integer NOT NULL,
        {_columns("text", "uid", "namespace", "name", '"group"', "queue", "node", "cycle", "outcome")},
        {
        _columns(
            "bigint",
            *("gpus", "created_at", "seen_at", "tried_at", "decided_at", "bound_at", "started_at", "finished_at"),
            *("gone_at", "placements", "bind_failures", "rejections", "evictions", "position"),
        )
    },
        PRIMARY KEY (cluster, generation, uid)
    )
    """,
    "CREATE INDEX pod_history_seen ON views.pod_history (cluster, generation, seen_at, uid)",
    "CREATE INDEX pod_history_there ON views.pod_history (cluster, generation) WHERE gone_at = 0",
    """CREATE INDEX pod_history_group ON views.pod_history (cluster, generation, "group") WHERE "group" <> ''""",
    f"""
    CREATE TABLE views.occupancy (
        cluster text NOT NULL, generation integer NOT NULL,
        {
        _columns(
            "bigint",
            *("at", "position", "nodes", "gpus", "gpus_held", "gpus_releasing", "gpus_free", "gpus_stranded"),
            *("gpus_out", "gpus_waiting", "pods_waiting", "pods_placed", "pods_bound"),
        )
    },
        PRIMARY KEY (cluster, generation, at)
    )
    """,
    f"""
    CREATE TABLE views.queue_hour (
        cluster text NOT NULL, generation integer NOT NULL, {_columns("text", "queue", "resource")},
        {_columns("bigint", "at", "seconds")}, {_columns("numeric", "allocated", "requested", "fair_share")},
        PRIMARY KEY (cluster, generation, at, queue, resource)
    )
    """,
    f"""
    CREATE TABLE views.decisions_hour (
        cluster text NOT NULL, generation integer NOT NULL,
        {
        _columns(
            "bigint",
            *("at", "cycles", "placed", "bound", "bind_failures", "rejected", "evictions", "agreed", "contradicted"),
            "missed",
        )
    },
        PRIMARY KEY (cluster, generation, at)
    )
    """,
    "GRANT USAGE ON SCHEMA public, views TO kai_project",
    "GRANT SELECT ON log_head, stream, event, event_id, snapshot, seal, kept_snapshot, state_trail TO kai_project",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA views TO kai_project",
    "GRANT USAGE ON SCHEMA views TO kai_read, kai_append",
    "GRANT SELECT ON ALL TABLES IN SCHEMA views TO kai_read, kai_append",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)
