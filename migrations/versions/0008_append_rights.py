"""What a role may append, and a hash that is checked as it is appended.

`kai_append` takes a batch only if each event's hash is the one that `kaicore.ledger.log.chain` gives after the event
before it, its time is not ahead of the server's clock, its type and schema are of this version of the log, and its
writer is the role's: which event types a writer appends is in `writer_type`, which role is a writer of which cluster in
`append_grant`. The log's owner and superusers are held to the chain only. `docs/explanation/log.md` has the roles.

Roles of services are made by `deploy/postgres/roles.sql` or by who runs Postgres, and admitted by `kai_admit_roles`:
here, by that script, and by `kai migrate`. `kai_append` stays what it was, a role for every cluster and type.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

#: Event types by who appends them.
WRITERS = {
    "watcher": (
        "DeviceClassDeleted DeviceClassObserved DeviceTaintRuleDeleted DeviceTaintRuleObserved FlavorDeleted "
        "FlavorObserved GroupSourceDeleted GroupSourceObserved HyperNodeDeleted HyperNodeObserved NamespaceDeleted "
        "NamespaceObserved NodeCharged NodeDeleted NodeObserved PersistentVolumeClaimDeleted "
        "PersistentVolumeClaimObserved PersistentVolumeDeleted PersistentVolumeObserved PodDeleted "
        "PodDisruptionBudgetDeleted PodDisruptionBudgetObserved PodObserved PodRejected PriorityClassDeleted "
        "PriorityClassObserved ProvisioningRequestDeleted ProvisioningRequestObserved QueueDeleted QueueObserved "
        "ResourceClaimDeleted ResourceClaimObserved ResourceSliceDeleted ResourceSliceObserved StorageClassDeleted "
        "StorageClassObserved TopologyDefinitionDeleted TopologyDefinitionObserved TopologyDeleted TopologyObserved "
        "WatcherStarted"
    ),
    "ingest": "NodeCharged PlacementObserved PredictionMissed",
    "scheduler": (
        "ConfigRecorded CycleCompleted DevicesCharged EvictionDecided HealRequested NodeCharged NominationCleared "
        "PodNominated PodPlaced PodsLeftWaiting ProvisioningRequested ProvisioningWithdrawn QueueReclaimed "
        "QueuesReported ReplicasChanged ShadowDecided"
    ),
    "binder": (
        "BindFailed DispatchArrived EvictionFailed PodBound PodEvicted ProvisioningRequestCreated "
        "ProvisioningRequestRefused ProvisioningRequestRemoved"
    ),
    # In the hub's log: the hub itself, the binder of each cluster, whoever registers a cluster, people.
    "hub": (
        "DispatchGiven DispatchKeptWaiting DispatchRecalled DispatchReleased DispatchSubmitted DispatchWithdrawn "
        "QueueCharged"
    ),
    "cluster": "DispatchFinished DispatchReturned DispatchStarted LeaseRenewed",
    "registration": "ClusterRegistered",
    "operator": (
        "ClusterDrained ClusterRegistered ClusterRemoved ClusterResumed DispatchSubmitted DispatchWithdrawn "
        "QueueBounded"
    ),
    # The log's owner alone.
    "owner": "EventSetAside FieldsErased",
}

#: Schema versions, where not 1.
SCHEMAS = {"PodPlaced": 2, "CycleCompleted": 5}

#: Snapshots by who saves them.
SNAPSHOTS = {"watcher": "watcher", "ingest": "ingest", "scheduler": "state", "binder": "binder", "hub": "hub"}

#: Roles of services: which writers they are, of every cluster (`*`, the hub's log excepted) or in the hub's log.
ROLES = {
    "kai_watcher": [("*", "watcher")],
    "kai_ingest": [("*", "ingest")],
    "kai_scheduler": [("*", "scheduler")],
    "kai_binder": [("*", "binder"), ("hub", "cluster"), ("hub", "registration")],
    "kai_hub": [("hub", "hub")],
    "kai_append": [
        *(("*", writer) for writer in ("watcher", "ingest", "scheduler", "binder")),
        *(("hub", writer) for writer in ("hub", "cluster", "operator")),
    ],
}


def _values(rows: list[tuple[object, ...]]) -> str:
    return ", ".join("(" + ", ".join(str(v) if isinstance(v, int) else f"'{v}'" for v in row) + ")" for row in rows)


_TYPES: list[tuple[object, ...]] = [
    (writer, name, SCHEMAS.get(name, 1)) for writer, names in WRITERS.items() for name in names.split()
]

STATEMENTS = (
    # schema: the newest of the type that this version of the log has.
    """
    CREATE TABLE writer_type (
        writer text NOT NULL, type text NOT NULL, schema integer NOT NULL CHECK (schema > 0), PRIMARY KEY (type, writer)
    )
    """,
    "CREATE TABLE writer_snapshot (writer text NOT NULL, name text NOT NULL, PRIMARY KEY (writer, name))",
    # cluster '*': each but the hub's. about: the one cluster that the events tell of, where not empty.
    """
    CREATE TABLE append_grant (
        role name NOT NULL, cluster text NOT NULL, writer text NOT NULL, about text NOT NULL DEFAULT '',
        PRIMARY KEY (role, cluster, writer, about)
    )
    """,
    f"INSERT INTO writer_type VALUES {_values(_TYPES)}",
    f"INSERT INTO writer_snapshot VALUES {_values(list(SNAPSHOTS.items()))}",
    # A cluster's head, locked for the rest of the transaction by a role that may append there; made where missing.
    """
    CREATE OR REPLACE FUNCTION kai_lock_head(_cluster text)
    RETURNS TABLE (_position bigint, _hash bytea, _recorded_at bigint)
    LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        RETURN QUERY
            SELECT position, hash, recorded_at FROM public.log_head
            WHERE cluster OPERATOR(pg_catalog.=) _cluster AND public.kai_may_append(_cluster) FOR UPDATE;
        IF NOT FOUND THEN
            IF NOT public.kai_may_append(_cluster) THEN
                RAISE EXCEPTION 'role % may append nothing to cluster %', session_user, _cluster
                USING ERRCODE = 'insufficient_privilege';
            END IF;
            INSERT INTO public.log_head
            VALUES (_cluster, 0, pg_catalog.decode(pg_catalog.repeat('00', 32), 'hex'), 0) ON CONFLICT DO NOTHING;
            RETURN QUERY
                SELECT position, hash, recorded_at FROM public.log_head
                WHERE cluster OPERATOR(pg_catalog.=) _cluster FOR UPDATE;
        END IF;
    END
    $$
    """,
    # Whether who is connected is the log's owner or a superuser, who can do everything anyway.
    """
    CREATE FUNCTION kai_unbound() RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    BEGIN ATOMIC
        SELECT session_user = current_user OR EXISTS (
            SELECT FROM pg_roles WHERE rolname = session_user AND rolsuper
        );
    END
    """,
    """
    CREATE FUNCTION kai_may_append(_cluster text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    BEGIN ATOMIC
        SELECT EXISTS (
            SELECT FROM append_grant
            WHERE role = session_user AND (cluster = _cluster OR cluster = '*' AND _cluster <> 'hub')
        ) OR kai_unbound();
    END
    """,
    """
    CREATE FUNCTION kai_refuse_append(_cluster text, _why text, _code text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'cluster %: %', _cluster, _why USING ERRCODE = _code;
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
                subject text, cause uuid, correlation text, body text, hash text
            )) WITH ORDINALITY AS given (
                stream, version, type, schema, id, actor, occurred_at, subject, cause, correlation, body, hash, number
            )
        ), new AS MATERIALIZED (
            SELECT given.*, _position - (SELECT count(*) FROM given) + number AS position,
                decode(given.hash, 'base64') AS digest, convert_to(given.body, 'UTF8') AS bytes
            FROM given
        ), head AS MATERIALIZED (
            SELECT hash, recorded_at FROM log_head WHERE cluster = _cluster
        ), chained AS (
            -- No stream has more events than the log: a version out of reach would leave none to those who come after.
            -- As in kaicore.ledger.log.chain. Rows come in the order of the array; the body is last, to be copied once.
            SELECT version <= position AND digest = sha256(
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
                    AND (about = '' OR about = new.body::jsonb ->> 'cluster' AND (
                        stream LIKE 'dispatch/%' OR stream IN ('cluster/' || about, 'lease/' || about)
                    ))
            )
        ), recorded AS (
            INSERT INTO event (
                cluster, position, stream, version, type, schema, id, actor, occurred_at, recorded_at,
                subject, cause, correlation, body, hash
            )
            SELECT
                _cluster, position, stream, version, type, schema, id, actor, occurred_at, _recorded_at,
                subject, cause, correlation, body::json, digest
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
    "DROP FUNCTION kai_refuse_append(text, bigint)",
    # Snapshots are caches that services start from: each saves its own. `kai` commands save all.
    """
    CREATE FUNCTION kai_may_save(_cluster text, _name text) RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER
    BEGIN ATOMIC
        SELECT session_user = 'kai_append' OR EXISTS (
            SELECT FROM append_grant JOIN writer_snapshot USING (writer)
            WHERE role = session_user AND name = _name
                AND (cluster = _cluster OR cluster = '*' AND _cluster <> 'hub')
        );
    END
    """,
    "ALTER TABLE snapshot ENABLE ROW LEVEL SECURITY",
    "CREATE POLICY all_read ON snapshot FOR SELECT USING (true)",
    "CREATE POLICY own_saved ON snapshot FOR INSERT WITH CHECK (kai_may_save(cluster, name))",
    "CREATE POLICY own_replaced ON snapshot FOR UPDATE USING (kai_may_save(cluster, name))",
    # A session that keeps a cluster's head for 10 s is ended; one that waits for a standby, or is the owner's, is not.
    # The owner must be a member of pg_signal_backend and pg_read_all_stats, else nobody is ended.
    """
    CREATE FUNCTION kai_end_stalled(_cluster text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    DECLARE
        _pid integer;
    BEGIN
        SELECT pid INTO _pid
        FROM log_head
        JOIN pg_locks ON locktype = 'transactionid' AND transactionid = log_head.xmax AND granted
        JOIN pg_stat_activity USING (pid)
        WHERE log_head.cluster = _cluster AND pid <> pg_backend_pid() AND usename <> current_user
            AND xact_start < clock_timestamp() - interval '10 s' AND wait_event IS DISTINCT FROM 'SyncRep';
        RETURN _pid IS NOT NULL AND pg_terminate_backend(_pid);
    EXCEPTION
        WHEN insufficient_privilege THEN RETURN false;
    END
    $$
    """,
    # Makes a role one of a cluster's writers; the hub's log is the cluster `hub`.
    """
    CREATE FUNCTION kai_admit(_role name, _cluster text, _writer text, _about text DEFAULT '') RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        IF NOT EXISTS (SELECT FROM writer_type WHERE writer = _writer) THEN
            RAISE EXCEPTION 'no writer of events: %', _writer USING ERRCODE = 'invalid_parameter_value';
        END IF;
        INSERT INTO append_grant VALUES (_role, _cluster, _writer, _about) ON CONFLICT DO NOTHING;
        EXECUTE format('GRANT USAGE ON SCHEMA public, views TO %I', _role);
        EXECUTE format(
            'GRANT SELECT ON log_head, stream, event, event_id, snapshot, seal, kept_snapshot, state_trail, '
            'append_grant, writer_type, writer_snapshot TO %I', _role
        );
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA views TO %I', _role);
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION kai_lock_head(text), kai_append(text, json, bigint, bytea, bigint), '
            'kai_make_month(integer, integer), kai_end_stalled(text) TO %I', _role
        );
        EXECUTE format('GRANT INSERT, UPDATE ON snapshot TO %I', _role);
        IF _writer = 'scheduler' THEN
            EXECUTE format('GRANT INSERT, UPDATE, DELETE ON state_trail TO %I', _role);
        END IF;
    END
    $$
    """,
    # The one role of a cluster that dials in from elsewhere: its watcher, ingest and binder.
    """
    CREATE FUNCTION kai_admit_spoke(_role name, _cluster text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        IF _cluster IN ('', '*', 'hub') THEN
            RAISE EXCEPTION 'no cluster of its own: %', _cluster USING ERRCODE = 'invalid_parameter_value';
        END IF;
        PERFORM kai_admit(_role, _cluster, writer) FROM unnest(ARRAY['watcher', 'ingest', 'binder']) AS writer;
        PERFORM kai_admit(_role, 'hub', writer, _cluster) FROM unnest(ARRAY['cluster', 'registration']) AS writer;
    END
    $$
    """,
    # Admits the roles of services that there are.
    f"""
    CREATE FUNCTION kai_admit_roles() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        PERFORM kai_admit(role::name, cluster, writer)
        FROM (VALUES {_values([(role, *grant) for role, grants in ROLES.items() for grant in grants])})
            AS known (role, cluster, writer)
        WHERE role IN (SELECT rolname FROM pg_roles);
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_refuse_append(text, text, text), kai_unbound(), kai_may_append(text), "
    "kai_end_stalled(text), kai_admit(name, text, text, text), kai_admit_spoke(name, text), kai_admit_roles() "
    "FROM PUBLIC",
    "GRANT SELECT ON append_grant, writer_type, writer_snapshot TO kai_read, kai_project",
    "SELECT kai_admit_roles()",
)


def upgrade() -> None:
    # What `BEGIN ATOMIC` binds must be ours, whatever path the one who migrates has; pg_catalog comes first by itself.
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
