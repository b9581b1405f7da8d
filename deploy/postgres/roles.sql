-- The log's roles, for psql as a superuser in the log's own database; run again, it sets the passwords anew. They come from
-- the environment, so that they are no arguments of a process. kai_migrate owns the database and changes the schema;
-- kai_append, kai_read and kai_project get what they may do from the migrations (docs/explanation/log.md).
\set ON_ERROR_STOP on
\getenv migrate KAI_MIGRATE_PASSWORD
\getenv append KAI_APPEND_PASSWORD
\getenv read KAI_READ_PASSWORD
\getenv project KAI_PROJECT_PASSWORD
SELECT format('CREATE ROLE %I', name) FROM unnest(ARRAY['kai_migrate', 'kai_append', 'kai_read', 'kai_project']) AS name
WHERE name NOT IN (SELECT rolname FROM pg_roles) \gexec
ALTER ROLE kai_migrate LOGIN PASSWORD :'migrate';
ALTER ROLE kai_append LOGIN PASSWORD :'append';
ALTER ROLE kai_read LOGIN PASSWORD :'read';
ALTER ROLE kai_project LOGIN PASSWORD :'project';
SELECT format('ALTER DATABASE %I OWNER TO kai_migrate', current_database()) \gexec
ALTER SCHEMA public OWNER TO kai_migrate;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
