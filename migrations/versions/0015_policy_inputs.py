"""`PolicyInputRecorded`: facts from outside for policies, appended by the API and by people's `kai` commands.

The API appends as a role of its own, `kai_inputs`, which is no other writer. It is made by `deploy/postgres/roles.sql`
or by who runs Postgres, and admitted as other roles of services are, by `kai_admit_roles`.
"""

from alembic import op

revision = "0015"
down_revision = "0014"

STATEMENTS = (
    "INSERT INTO writer_type (writer, type, schema) VALUES ('inputs', 'PolicyInputRecorded', 1)",
    "ALTER FUNCTION kai_admit_roles() RENAME TO kai_admit_services",
    """
    CREATE FUNCTION kai_admit_roles() RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
    BEGIN
        PERFORM kai_admit_services();
        PERFORM kai_admit(rolname, '*', 'inputs') FROM pg_roles WHERE rolname IN ('kai_inputs', 'kai_append');
    END
    $$
    """,
    "REVOKE ALL ON FUNCTION kai_admit_roles() FROM PUBLIC",
    "SELECT kai_admit_roles()",
)


def upgrade() -> None:
    op.execute("SET LOCAL search_path = public, pg_temp")
    for statement in STATEMENTS:
        op.execute(statement)
