"""The event log in Postgres."""

from kaicore.log.postgres.log import PostgresLog

__all__ = ["PostgresLog"]
