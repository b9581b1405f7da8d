"""Routes of events: pages of the past, and a stream of what comes; plain, or as CloudEvents 1.0."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Header, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from kaicore.analysis.life.traces import (
    EventAnswer,
    EventPage,
    TraceAnswer,
    cloud_event,
    event_answer,
    event_body,
    pod_trace,
)
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import KaiError, UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import FORMER_NAMES, event_types, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.runtime.access.scopes import View, current_caller, current_view
from kaicore.spelling import did_you_mean

from kai_api.answering import AnswerRouter, encoded, redacted
from kai_api.auth import for_namespaces
from kai_api.live import LiveLog

#: Most events in one answer, and most that are looked at for one.
_MOST_EVENTS, _MOST_LOOKED_AT = 1000, 20_000
#: Largest position that Postgres can compare with.
LARGEST_POSITION = 2**63 - 1
#: Seconds of silence after which a stream says how far it is.
_HEARTBEAT_S = 15.0
#: Streams of one caller, and of all, at a time.
_STREAMS_EACH, _STREAMS = 64, 1000
#: Events that one stream spells in its turn, a few milliseconds of work.
_IN_ONE_TURN = 50
#: Milliseconds after which a client that lost its stream asks again.
_RETRY_MS = 2000

BATCH = "application/cloudevents-batch+json"

EventFormat = Literal["json", "cloudevents"]
PositionQuery = Annotated[int, Query(ge=0, le=LARGEST_POSITION)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A caller's selection of events, within his rights."""

    view: View
    streams: frozenset[str]
    subject: str
    namespace: str
    types: frozenset[str]

    def admits(self, event: Event) -> bool:
        """Tell whether an event is wanted, and may be seen."""
        namespace = event.subject.partition("/")[0] if event.stream.startswith("pod/") else ""
        return (
            (self.view.whole or (namespace != "" and self.view.sees(namespace)))
            and self.namespace in ("", namespace)
            and (not self.streams or event.stream in self.streams)
            and self.subject in ("", event.subject)
            and (not self.types or event.type in self.types)
        )

    @property
    def filter(self) -> Filter | None:
        """The part of the selection that the log itself can apply."""
        if not (self.streams or self.subject or self.types):
            return None
        return Filter(
            streams=tuple(sorted(self.streams)) or None,
            subject=self.subject or None,
            types=tuple(sorted(self.types)) or None,
        )


async def _selection(
    stream: Annotated[list[str] | None, Query()] = None,
    subject: str = "",
    namespace: str = "",
    type: Annotated[list[str] | None, Query()] = None,  # noqa: A002
) -> _Wanted:
    wanted = {FORMER_NAMES.get(name, name) for name in type or ()}
    for name in wanted:
        if name not in event_types():
            raise HTTPException(400, f"type: no events are called {name!r}{did_you_mean(name, event_types())}")
    return _Wanted(current_view(), frozenset(stream or ()), subject, namespace, frozenset(names_in_logs(wanted)))


_Asked = Annotated[_Wanted, Depends(_selection)]


def make_events_router(log: EventLog, live: LiveLog) -> APIRouter:  # long: two handlers, one parameter a line
    """Make the routes of events."""
    router = AnswerRouter()
    streams = _Streams()

    @router.get("/v1/clusters/{cluster}/events", responses={200: {"content": {BATCH: {}}}})
    @for_namespaces
    async def events(
        cluster: str,
        request: Request,
        *,
        after: PositionQuery = 0,
        limit: Annotated[int, Query(ge=1, le=_MOST_EVENTS)] = 100,
        wanted: _Asked,
        format: EventFormat | None = None,  # noqa: A002
    ) -> EventPage | Response:
        """Return events in order, those after a position; `next` is the next page's `after`."""
        head = (await log.head(cluster)).position
        page, reached = await _page(log, cluster, wanted, after=after, upto=head, limit=limit)
        following = request.url.include_query_params(after=reached)
        link = f'<{following.path}?{following.query}>; rel="next"'
        as_cloud_events = BATCH in request.headers.get("accept", "") if format is None else format == "cloudevents"
        if as_cloud_events:
            batch = [cloud_event(event, _data(event, wanted.view)) for event in page]
            return Response(msgspec.json.encode(batch), media_type=BATCH, headers={"Link": link})
        items = [event_answer(event) for event in page]
        return encoded(EventPage(cluster=cluster, position=head, next=reached, items=items), {"Link": link})

    @router.get(
        "/v1/clusters/{cluster}/events/stream",
        responses={200: {"description": "Server-sent events", "content": {"text/event-stream": {}}}},
    )
    @for_namespaces
    async def event_stream(
        cluster: str,
        *,
        after: Annotated[int | None, Query(ge=0, le=LARGEST_POSITION)] = None,
        wanted: _Asked,
        format: EventFormat = "json",  # noqa: A002
        last_event_id: Annotated[str, Header()] = "",
    ) -> Response:
        """Send events as they are recorded, as server-sent events; `Last-Event-ID` is a position."""
        if last_event_id:
            if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 19:
                raise HTTPException(400, f"Last-Event-ID: is no position: {last_event_id[:100]!r}")
            after = int(last_event_id)
        if after is not None:
            await live.check(cluster, after)
        spell = _cloud_spelling(wanted.view) if format == "cloudevents" else _plain_spelling(wanted.view)
        source = live.follow(cluster, after=after, idle_s=_HEARTBEAT_S)
        sent = _sent(source, wanted, spell, reached=after or 0, turn=streams.turn)
        return StreamingResponse(
            streams.counted(current_caller().name, sent),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/trace")
    @for_namespaces
    async def trace(cluster: str, namespace: str, name: str) -> TraceAnswer:
        """Return the last pod of a name, from its creation to its end, as an OpenTelemetry trace (OTLP in JSON)."""
        where = Filter(subject=f"{namespace}/{name}")
        story = [event async for event in events_of(log, cluster, where=where) if event.stream.startswith("pod/")]
        if not story:
            raise UnknownSubject(f"the log has never heard of a pod {namespace}/{name}")
        return pod_trace([event for event in story if event.stream == story[-1].stream])

    return router


class _Streams:
    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        #: Held by the stream that spells events.
        self.turn = asyncio.Lock()

    def counted(self, caller: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Return a stream that counts from now on until it ends.

        Raises:
            HTTPException: 429, there are as many as may be.
        """
        if self._of.get(caller, 0) >= _STREAMS_EACH or sum(self._of.values()) >= _STREAMS:
            raise HTTPException(429, "as many streams as may be are open", headers={"Retry-After": "10"})
        return self._counted(caller, stream)

    async def _counted(self, caller: str, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._of[caller] = self._of.get(caller, 0) + 1
        try:
            async for part in stream:
                yield part
        finally:
            self._of[caller] -= 1
            if not self._of[caller]:
                del self._of[caller]


async def _page(
    log: EventLog, cluster: str, wanted: _Wanted, *, after: int, upto: int, limit: int
) -> tuple[list[Event], int]:
    """Return events that are wanted, and how far the log was looked through for them."""
    page: list[Event] = []
    looked_at = 0
    while after < upto and looked_at < _MOST_LOOKED_AT:
        read = await log.read(cluster, after=after, upto=upto, limit=_MOST_EVENTS, where=wanted.filter)
        looked_at += len(read)
        for event in read:
            if wanted.admits(event):
                page.append(event)
                if len(page) == limit:
                    return page, event.position
        after = read[-1].position if len(read) == _MOST_EVENTS else upto
    return page, after


async def _sent(
    source: AsyncIterator[list[Event]],
    wanted: _Wanted,
    spell: Callable[[Event], bytes],
    *,
    reached: int,
    turn: asyncio.Lock,
) -> AsyncIterator[bytes]:
    yield b"retry: %d\n\n" % _RETRY_MS
    try:
        async for events in source:
            if not events:
                # An id without data moves the client's Last-Event-ID past what it did not want, and is no event.
                yield b"id: %d\n: so far\n\n" % reached if reached else b": so far\n\n"
            for begin in range(0, len(events), _IN_ONE_TURN):
                some = events[begin : begin + _IN_ONE_TURN]
                async with turn:
                    parts = [b"id: %d\ndata: %s\n\n" % (one.position, spell(one)) for one in some if wanted.admits(one)]
                    # Other requests come before the next stream.
                    await asyncio.sleep(0)
                reached = some[-1].position
                if parts:
                    yield b"".join(parts)
    except KaiError as error:
        # The client asks again by itself, and gets the problem as a status if it still exists.
        yield b": %s\n\n" % " ".join(str(error).split()).encode()


def _data(event: Event, view: View) -> object:
    body = event_body(event)
    return body if view.whole else redacted(body, view)


def _plain_spelling(view: View) -> Callable[[Event], bytes]:
    def spell(event: Event) -> bytes:
        answer: EventAnswer = event_answer(event)
        if not view.whole:
            answer = msgspec.structs.replace(answer, body=redacted(answer.body, view))
        return msgspec.json.encode(answer)

    return spell


def _cloud_spelling(view: View) -> Callable[[Event], bytes]:
    return lambda event: msgspec.json.encode(cloud_event(event, _data(event, view)))
