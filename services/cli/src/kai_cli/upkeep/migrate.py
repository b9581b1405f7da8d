"""`kai migrate`: bring a database to the schema of this version."""

import os

from kaicore.errors import ConfigurationError
from kaicore.ledger.log.migrate import admit_roles, upgrade


def migrate(*, database_url: str | None = None) -> int:
    """Migrate a database and admit the roles of services; harmless when both is done already.

    Args:
        database_url: postgresql://… of the event log; by default $KAI_DATABASE_URL, which shows no password to a user
            who lists processes.
    """
    url = database_url or os.environ.get("KAI_DATABASE_URL")
    if not url:
        raise ConfigurationError("migrate what? Name --database-url, or set $KAI_DATABASE_URL")
    upgrade(url)
    admit_roles(url)
    return 0
