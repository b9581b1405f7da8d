"""`kai migrate`: bring a database to the schema of this version."""

import os

from kaicore.errors import ConfigurationError
from kaicore.ledger.log.migrate import upgrade


def migrate(*, database_url: str | None = None) -> int:
    """Migrate a database; harmless when it is migrated already.

    Args:
        database_url: postgresql://… of the event log; by default $KAI_DATABASE_URL, which shows no password to a user
            who lists processes.
    """
    url = database_url or os.environ.get("KAI_DATABASE_URL")
    if not url:
        raise ConfigurationError("migrate what? Name --database-url, or set $KAI_DATABASE_URL")
    upgrade(url)
    return 0
