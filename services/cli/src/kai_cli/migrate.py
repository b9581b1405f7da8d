"""`kai migrate`: bring a database to the schema of this version."""

from kaicore.log.migrate import upgrade


def migrate(*, database_url: str) -> int:
    """Migrate a database; harmless when it is migrated already.

    Args:
        database_url: postgresql://… of the event log.
    """
    upgrade(database_url)
    return 0
