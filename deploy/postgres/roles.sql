-- The log's roles, for psql as a superuser in the log's own database; run again, it sets the passwords anew. They come from
-- the environment, so that they are no arguments of a process. kai_migrate owns the database and changes the schema;
-- the others get what they may do from the migrations (docs/explanation/log.md): one role for each service that appends,
-- kai_read and kai_project for those that do not, kai_append for people's `kai` commands. A role that has no password in
-- the environment is left as it is, or made without a login. A role for a cluster that dials in: spoke-role.sql.
\set ON_ERROR_STOP on
\getenv migrate KAI_MIGRATE_PASSWORD
\getenv append KAI_APPEND_PASSWORD
\getenv read KAI_READ_PASSWORD
\getenv project KAI_PROJECT_PASSWORD
\getenv watcher KAI_WATCHER_PASSWORD
\getenv ingest KAI_INGEST_PASSWORD
\getenv scheduler KAI_SCHEDULER_PASSWORD
\getenv binder KAI_BINDER_PASSWORD
\getenv hub KAI_HUB_PASSWORD
\getenv inputs KAI_INPUTS_PASSWORD
SELECT format('CREATE ROLE %I', name) FROM unnest(ARRAY[
    'kai_migrate', 'kai_append', 'kai_read', 'kai_project',
    'kai_watcher', 'kai_ingest', 'kai_scheduler', 'kai_binder', 'kai_hub', 'kai_inputs'
]) AS name
WHERE name NOT IN (SELECT rolname FROM pg_roles) \gexec
ALTER ROLE kai_migrate LOGIN PASSWORD :'migrate';
ALTER ROLE kai_append LOGIN PASSWORD :'append';
ALTER ROLE kai_read LOGIN PASSWORD :'read';
ALTER ROLE kai_project LOGIN PASSWORD :'project';
\if :{?watcher}
ALTER ROLE kai_watcher LOGIN PASSWORD :'watcher';
\endif
\if :{?ingest}
ALTER ROLE kai_ingest LOGIN PASSWORD :'ingest';
\endif
\if :{?scheduler}
ALTER ROLE kai_scheduler LOGIN PASSWORD :'scheduler';
\endif
\if :{?binder}
ALTER ROLE kai_binder LOGIN PASSWORD :'binder';
\endif
\if :{?hub}
ALTER ROLE kai_hub LOGIN PASSWORD :'hub';
\endif
\if :{?inputs}
ALTER ROLE kai_inputs LOGIN PASSWORD :'inputs';
\endif
-- A session that stalls with a cluster's head in its hands is thrown out; one that sets this otherwise is ended by the
-- others, for which the owner needs the two memberships (migration 0008).
SELECT format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', name, '5s')
FROM unnest(ARRAY['kai_append', 'kai_watcher', 'kai_ingest', 'kai_scheduler', 'kai_binder', 'kai_hub', 'kai_inputs'
]) AS name \gexec
ALTER ROLE kai_read SET statement_timeout = '60s';
SELECT format('GRANT %I TO kai_migrate', name) FROM unnest(ARRAY['pg_signal_backend', 'pg_read_all_stats']) AS name
WHERE NOT pg_has_role('kai_migrate', name, 'MEMBER') \gexec
SELECT format('ALTER DATABASE %I OWNER TO kai_migrate', current_database()) \gexec
ALTER SCHEMA public OWNER TO kai_migrate;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
-- Where the log was migrated before the roles were made.
SELECT 'SELECT kai_admit_roles()' WHERE to_regprocedure('kai_admit_roles()') IS NOT NULL \gexec
