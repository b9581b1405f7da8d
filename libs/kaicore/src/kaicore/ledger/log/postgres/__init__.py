"""The event log in Postgres."""

from kaicore.ledger.log.postgres.log import QUESTION_PATIENCE_S, PostgresLog

__all__ = ["QUESTION_PATIENCE_S", "PostgresLog"]
