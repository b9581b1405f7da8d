"""The event log in Postgres."""

from kaicore.ledger.log.postgres.log import PostgresLog

__all__ = ["PostgresLog"]
