"""Queries over a cluster's log. Each reads along one index and stops at its limit."""

from typing import Any

from psycopg import sql

from kaicore.ledger.log.port import Filter
from kaicore.ledger.log.postgres.rows import COLUMNS

_COLUMNS = sql.SQL(COLUMNS)

#: The position of the first event recorded at a time or after; along a cluster's log time never goes back.
_FIRST_SINCE = """
    SELECT position FROM event WHERE cluster = %(cluster)s AND recorded_at >= {} ORDER BY recorded_at, position LIMIT 1
"""


def select_events(
    cluster: str, *, after: int, upto: int | None, limit: int, where: Filter
) -> tuple[sql.Composed, dict[str, Any]]:
    """Return a query for `COLUMNS` of the events that a filter lets through, and its parameters.

    Where several streams or types are wanted, each is read by itself, `limit` events at most, and then merged: an index
    gives events of one stream in order of position, but not those of several.
    """
    parameters: dict[str, Any] = {"cluster": cluster, "after": after, "limit": limit}
    conditions = ["cluster = %(cluster)s", "position > %(after)s"]
    if upto is not None:
        parameters["upto"] = upto
        conditions.append("position <= %(upto)s")
    # Bounds of time select partitions, and as bounds of position the part of an index.
    if where.since is not None:
        parameters["since"] = where.since
        conditions += ["recorded_at >= %(since)s", f"position >= ({_FIRST_SINCE.format('%(since)s')})"]
    if where.until is not None:
        parameters["until"] = where.until
        conditions += [
            "recorded_at < %(until)s",
            f"position < coalesce(({_FIRST_SINCE.format('%(until)s')}), 9223372036854775807)",
        ]
    if where.subject is not None:
        parameters["subject"] = where.subject
        conditions.append("subject = %(subject)s")
        if where.subject:
            # Lets the planner use the index, which has no events without a subject.
            conditions.append("subject <> ''")
    each = ""
    if where.streams is not None:
        parameters["each"] = list(dict.fromkeys(where.streams))
        each = "stream"
    if where.types is not None:
        if each or where.subject is not None:
            parameters["types"] = list(where.types)
            conditions.append("type = ANY(%(types)s)")
        else:
            parameters["each"] = list(dict.fromkeys(where.types))
            each = "type"
    return _query(conditions, each), parameters


def _query(conditions: list[str], each: str) -> sql.Composed:
    order = sql.SQL("ORDER BY position LIMIT %(limit)s")
    if each:
        conditions = [*conditions, f"event.{each} = one.name"]
    # The text is put together from constants of this module; values go as parameters.
    events = sql.SQL("SELECT {} FROM event WHERE {} {}").format(
        _COLUMNS,
        sql.SQL(" AND ".join(conditions)),
        order,
    )
    if not each:
        return events
    return sql.SQL("SELECT {} FROM unnest(%(each)s::text[]) AS one (name) CROSS JOIN LATERAL ({}) AS found {}").format(
        _COLUMNS, events, order
    )
