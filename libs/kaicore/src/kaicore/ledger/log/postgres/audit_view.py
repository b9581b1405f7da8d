"""A cluster's log as it lies in the tables, for `kaicore.ledger.log.audit`. Nothing is assumed about its validity."""

from collections.abc import AsyncIterator, Mapping

from psycopg import sql

from kaicore.ledger.log import partitions
from kaicore.ledger.log.audit import MOST_FINDINGS, Finding, RecordedErasure, recorded_erasures
from kaicore.ledger.log.chain import GENESIS
from kaicore.ledger.log.partitions import Seal
from kaicore.ledger.log.port import Head
from kaicore.ledger.log.postgres.connections import Connection
from kaicore.ledger.log.postgres.rows import COLUMNS, to_events
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import FieldsErased

#: Events fetched at a time.
_PAGE = 2000

_EVENTS = sql.SQL("SELECT {} FROM event WHERE cluster = %s ORDER BY position").format(sql.SQL(COLUMNS))

_ERASURES = "SELECT position, body::text FROM event WHERE cluster = %s AND type = %s ORDER BY position"

_WRONG_IDS = """
    SELECT event.position, found.position
    FROM event LEFT JOIN event_id AS found ON found.cluster = event.cluster AND found.id = event.id
    WHERE event.cluster = %(cluster)s AND (
        found.position IS DISTINCT FROM event.position
        OR found.fingerprint <> substring(sha256(convert_to(event.stream || chr(10) || event.type, 'UTF8')) FOR 8)
    )
    ORDER BY event.position LIMIT %(limit)s
"""

_STRAY_IDS = """
    SELECT stray.position, stray.id FROM event_id AS stray
    WHERE stray.cluster = %(cluster)s AND stray.position > %(after)s AND NOT EXISTS (
        SELECT FROM event WHERE event.cluster = stray.cluster AND event.id = stray.id
        AND event.position = stray.position
    )
    ORDER BY stray.position LIMIT %(limit)s
"""


class PostgresAuditView:
    """The view of a log in Postgres that an audit reads (`kaicore.ledger.log.audit.AuditView`).

    Its connection sees one state of the database.
    """

    def __init__(self, connection: Connection, cluster: str) -> None:
        self._connection = connection
        self._cluster = cluster

    async def head(self) -> Head:
        """See `AuditView.head`."""
        rows = await self._connection.execute(
            "SELECT position, hash, recorded_at FROM log_head WHERE cluster = %s", [self._cluster]
        )
        row = await rows.fetchone()
        return Head(*row) if row else Head(0, GENESIS, 0)

    async def seals(self) -> list[Seal]:
        """See `AuditView.seals`."""
        return await partitions.seals(self._connection, self._cluster)

    @property
    def whole(self) -> bool:
        """See `AuditView.whole`."""
        return True

    async def erasures(self) -> dict[int, RecordedErasure]:
        """See `AuditView.erasures`."""
        rows = await self._connection.execute(_ERASURES, [self._cluster, FieldsErased.__name__])
        return recorded_erasures((position, text.encode()) for position, text in await rows.fetchall())

    async def pages(self) -> AsyncIterator[list[Event]]:
        """See `AuditView.pages`."""
        async with self._connection.cursor("audit_events") as cursor:
            await cursor.execute(_EVENTS, [self._cluster], binary=True)
            while rows := await cursor.fetchmany(_PAGE):
                yield to_events(self._cluster, rows)

    async def differences(self, *, after: int, versions: Mapping[str, tuple[int, int]]) -> list[Finding]:
        """See `AuditView.differences`."""
        findings = await self._differing_versions(versions, retired=after > 0)
        scope = {"cluster": self._cluster, "after": after, "limit": MOST_FINDINGS}
        wrong = await self._connection.execute(_WRONG_IDS, scope)
        for position, noted in await wrong.fetchall():
            if noted is None:
                findings.append(Finding(position, "its id is not in the table of ids"))
            elif noted != position:
                findings.append(Finding(position, f"its id stands for event {noted} in the table of ids"))
            else:
                findings.append(Finding(position, "its id has another fingerprint in the table of ids"))
        stray = await self._connection.execute(_STRAY_IDS, scope)
        for position, event_id in await stray.fetchall():
            findings.append(Finding(position, f"has not the id {event_id} that the table of ids has for it"))
        return findings

    async def _differing_versions(self, versions: Mapping[str, tuple[int, int]], *, retired: bool) -> list[Finding]:
        # They show in no event: where an event is missing, that is found where it was.
        findings: list[Finding] = []
        unseen = set(versions)
        async with self._connection.cursor("audit_streams") as cursor:
            await cursor.execute("SELECT stream, version FROM stream WHERE cluster = %s", [self._cluster])
            while rows := await cursor.fetchmany(_PAGE):
                for stream, version in rows:
                    unseen.discard(stream)
                    if stream not in versions and retired:
                        continue
                    if version != versions.get(stream, (0, 0))[0]:
                        findings.append(_differing(stream, versions, version))
        findings += [_differing(stream, versions, 0) for stream in unseen]
        return sorted(findings, key=str)[:MOST_FINDINGS]


def _differing(stream: str, versions: Mapping[str, tuple[int, int]], version: int) -> Finding:
    last, position = versions.get(stream, (0, 0))
    where = f"version {last} at event {position}" if position else "no event"
    return Finding(0, f"stream {stream} ends with {where}, and the table of streams says {version}")
