"""Appending: one short transaction at a time per cluster and process, with every call that waits in it.

Every writer locks the head row first, for as long as the transaction lasts; so there is one order of locks and no
deadlock, and the append that gets the lock sees all that was committed before. While a transaction runs, further
calls queue up and share the next one: a busy process pays for one commit, not for many. Each call still is judged by
itself, against versions as after the calls before it, and one that is refused leaves the others alone.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from weakref import WeakSet

from psycopg import AsyncClientCursor
from psycopg.errors import LockNotAvailable

from kaicore.errors import CorruptLog, IdempotencyConflict, KaiError, LogUnavailable, StaleExpectation
from kaicore.interpreter import end
from kaicore.ledger.connections import Connection, Connections
from kaicore.ledger.log.appending import Call, Known, Tail, Taken
from kaicore.ledger.log.port import Head
from kaicore.ledger.log.postgres.rows import encode_rows
from kaicore.ledger.log.shapes import Shapes
from kaicore.rules.events.envelope import Event, UnitOutcome

#: Channel of the notifications that `kai_append` gives; the payload is the cluster.
CHANNEL = "kai_log"

#: Calls are merged up to so many events, and bytes of their bodies; one call may have more.
_BATCH_EVENTS, _BATCH_BYTES = 2000, 8 << 20

#: Microseconds that the log's time may be ahead of the server's clock, and seconds between two lines that say so.
_AHEAD_US, _SAY_AGAIN_S = 300_000_000, 600.0

#: Both are sent as one message each. A pipeline of prepared statements takes 1.6 times the CPU here, and as much there.
_TAIL = """
BEGIN;
SELECT * FROM kai_lock_head(%(cluster)s);
SELECT id, position, fingerprint FROM event_id WHERE cluster = %(cluster)s AND id = ANY(%(ids)s::uuid[]);
SELECT stream, version FROM stream WHERE cluster = %(cluster)s AND stream = ANY(%(streams)s::text[]);
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
"""
_APPEND = "SELECT kai_append(%(cluster)s, %(rows)s::json, %(position)s, %(hash)s, %(recorded_at)s); COMMIT"
_IS_THERE = """
SELECT EXISTS (SELECT FROM event WHERE cluster = %(cluster)s AND position = %(position)s AND hash = %(hash)s)
    OR EXISTS (SELECT FROM seal WHERE cluster = %(cluster)s AND position >= %(position)s)
"""
_END_STALLED = "SELECT kai_end_stalled(%s)"

_log = logging.getLogger(__name__)

Answer = list[UnitOutcome] | KaiError


@dataclass(slots=True)
class _Waiting:
    call: Call
    answer: asyncio.Future[list[UnitOutcome]]


class Appender:
    """Appends to one cluster's log for all callers of this process."""

    def __init__(
        self,
        cluster: str,
        connections: Connections,
        *,
        clock: Callable[[], int] | None,
        recorded: Callable[[Head], None],
        shapes: Shapes,
    ) -> None:
        """Args:
        clock: microseconds since the epoch; by default the server's clock.
        recorded: is called with the head after each commit.
        shapes: of the database.
        """
        self._cluster = cluster
        self._connections = connections
        self._clock = clock
        self._recorded = recorded
        self._shapes = shapes
        self._queue: deque[_Waiting] = deque()
        #: Where our last append ended, and the connections to servers that have it.
        self._end = Head()
        self._proven: WeakSet[Connection] = WeakSet()
        self._said_ahead_at = -math.inf
        self._worker: asyncio.Task[None] | None = None

    async def append(self, call: Call) -> list[UnitOutcome]:
        """Append a call's units; see `EventLog.append`.

        Cancelled while it waits, the call is dropped; while its transaction runs, that goes on without it.
        """
        waiting = _Waiting(call, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await waiting.answer

    async def close(self, patience_s: float) -> None:
        """Let the transaction under way end, and refuse whatever waits."""
        while self._queue:
            _give(self._queue.popleft(), LogUnavailable("the log is closed"))
        if self._worker is not None:
            await asyncio.wait([self._worker], timeout=patience_s)
            await end(self._worker)

    async def _work(self) -> None:
        while batch := self._next_batch():
            try:
                answers = await self._answers([waiting.call for waiting in batch])
            except BaseException as error:
                for waiting in [*batch, *self._queue]:
                    _give(waiting, _unavailable(f"the append was given up: {error!r}", error))
                self._queue.clear()
                raise
            for waiting, answer in zip(batch, answers, strict=True):
                _give(waiting, answer)

    def _next_batch(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        events = size = 0
        while self._queue:
            call = self._queue[0].call
            if batch and (events + call.size > _BATCH_EVENTS or size + call.body_bytes > _BATCH_BYTES):
                break
            waiting = self._queue.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
                events, size = events + call.size, size + call.body_bytes
        return batch

    async def _answers(self, calls: list[Call]) -> list[Answer]:
        try:
            return await self._connections.run(lambda connection: self._in_turn(connection, calls))
        except LogUnavailable as error:
            return [_unavailable(str(error), error) for _ in calls]
        except KaiError as error:
            # The server refuses what one of the calls contains: find out which, and append the others.
            return [error] if len(calls) == 1 else [answer for call in calls for answer in await self._answers([call])]

    async def _in_turn(self, connection: Connection, calls: list[Call]) -> list[Answer]:
        """Append all that can be; where the head was not to be had, have the session that stalls on it ended."""
        try:
            return await self._transaction(connection, calls)
        except LockNotAvailable:
            await connection.rollback()
            await connection.execute(_END_STALLED, [self._cluster])
            raise

    async def _transaction(self, connection: Connection, calls: list[Call]) -> list[Answer]:
        """Append all that can be; two round trips, the second one only when there is something new.

        What fails leaves a transaction that is under way, which ends as the connection is given back.
        """
        answers: list[Answer] = []
        events: list[Event] = []
        await self._shapes.learn(connection)
        drafts = [one for call in calls for unit in call.units for one in unit.drafts]
        cut = {one.new.id: self._shapes.row(one.new, one.body) for one in drafts}
        cursor = AsyncClientCursor(connection)
        tail, now = await self._tail(cursor, calls)
        if self._end.position and connection not in self._proven:
            await self._check_end(connection)
        if tail.head.recorded_at > now + _AHEAD_US:
            self._say_ahead(tail.head.recorded_at - now)
        for call in calls:
            try:
                outcomes, new = tail.take(call, now=now)
            except (StaleExpectation, IdempotencyConflict) as error:
                answers.append(error)
            else:
                answers.append(outcomes)
                events += new
        if not events:
            await connection.commit()
            return answers
        head = tail.head
        rows = encode_rows(events, cut)
        place = {"position": head.position, "hash": head.hash, "recorded_at": head.recorded_at}
        await cursor.execute(_APPEND, {"cluster": self._cluster, "rows": rows, **place})
        self._end = head
        self._proven.add(connection)
        self._recorded(head)
        return answers

    async def _check_end(self, connection: Connection) -> None:
        """See that the log still has what we appended: its server may have been restored, or replaced by another one.

        Raises CorruptLog: it has not. What this process knows of the log is wrong then.
        """
        end = self._end
        place = {"cluster": self._cluster, "position": end.position, "hash": end.hash}
        ((there,),) = await (await connection.execute(_IS_THERE, place)).fetchall()
        if not there:
            raise CorruptLog(
                f"cluster {self._cluster}: event {end.position} was appended, and is not in the log any more: "
                "the database was restored to an older state, or a server took over that had not all of it"
            )
        self._proven.add(connection)

    def _say_ahead(self, ahead_us: int) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._said_ahead_at >= _SAY_AGAIN_S:
            self._said_ahead_at = now
            _log.warning(
                "cluster %s: the clock of Postgres is %d s behind the log's last event, so every event is recorded "
                "with that one's time until then: was the clock ahead, or is it behind now?",
                self._cluster,
                ahead_us // 1_000_000,
            )

    async def _tail(self, cursor: AsyncClientCursor[Any], calls: list[Call]) -> tuple[Tail, int]:
        """Lock the head; return it with what is known of the calls' ids and streams, and the time."""
        # As text: psycopg takes three times as long to write a list of UUIDs.
        ids = f"{{{','.join(event_id.hex for call in calls for event_id in call.ids())}}}"
        streams = list(set().union(*(call.streams() for call in calls)))
        await cursor.execute(_TAIL, {"cluster": self._cluster, "ids": ids, "streams": streams})
        ((position, hash_, recorded_at),) = await _next(cursor)
        known: dict[UUID, Known | Taken] = {one: Known(at, mark) for one, at, mark in await _next(cursor)}
        tail = Tail(self._cluster, Head(position, hash_, recorded_at), dict(await _next(cursor)), known)
        ((now,),) = await _next(cursor)
        return tail, int(now) if self._clock is None else self._clock()


async def _next(cursor: AsyncClientCursor[Any]) -> list[Any]:
    cursor.nextset()
    return await cursor.fetchall()


def _give(waiting: _Waiting, answer: Answer) -> None:
    if waiting.answer.done():
        return
    if isinstance(answer, KaiError):
        waiting.answer.set_exception(answer)
    else:
        waiting.answer.set_result(answer)


def _unavailable(message: str, cause: BaseException) -> LogUnavailable:
    """Make an error for each caller: a shared one would collect the tracebacks of all."""
    error = LogUnavailable(message)
    error.__cause__ = cause
    return error
