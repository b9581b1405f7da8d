-- The role of a cluster that dials in from elsewhere (docs/how-to/several-clusters.md), for psql as a superuser in the
-- log's own database, after `kai migrate`; run again, it sets the password anew. Its watcher, ingest and binder connect
-- as it: it may append their event types to the log of its own cluster, and in the hub's log speak for that cluster.
--   KAI_SPOKE_PASSWORD=… psql -d kai -v cluster=west -f spoke-role.sql
\set ON_ERROR_STOP on
\getenv password KAI_SPOKE_PASSWORD
SELECT 'kai_spoke_' || :'cluster' AS role \gset
SELECT format('CREATE ROLE %I', :'role') WHERE :'role' NOT IN (SELECT rolname FROM pg_roles) \gexec
ALTER ROLE :"role" LOGIN PASSWORD :'password';
ALTER ROLE :"role" SET idle_in_transaction_session_timeout = '5s';
SELECT kai_admit_spoke(:'role', :'cluster');
