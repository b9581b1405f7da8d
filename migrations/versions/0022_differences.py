"""`DifferenceFound`: services that check themselves say what they found; the projector can append nothing else."""

from alembic import op

revision = "0022"
down_revision = "0021"

WRITERS = ("watcher", "ingest", "scheduler", "binder", "projector")

STATEMENTS = (
    "INSERT INTO writer_type (writer, type, schema) VALUES "
    + ", ".join(f"('{writer}', 'DifferenceFound', 1)" for writer in WRITERS),
    """
    CREATE OR REPLACE FUNCTION kai_admit_roles() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        PERFORM kai_admit_services();
        PERFORM kai_admit(rolname, '*', 'inputs') FROM pg_roles WHERE rolname IN ('kai_inputs', 'kai_append');
        PERFORM kai_admit(rolname, '*', 'projector') FROM pg_roles WHERE rolname = 'kai_project';
    END
    $$
    """,
    "SELECT kai_admit_roles()",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
