"""The binder's work for the hub: it renews the lease, makes the objects of dispatches, and clears them.

    hub's log ──▶ HubState ──▶ terms to make ──▶ API server        (while the lease holds)
                          └──▶ terms to clear ──▶ API server ──▶ DispatchReturned
    a pod of a dispatch is to be bound ──▶ DispatchStarted, conditional ──▶ the bind

Objects of a dispatch are made, looked at and deleted by the mark that they carry.

The log accepts only one of `DispatchStarted` and the hub's `DispatchReleased`. So a pod is bound here, or the dispatch
is another cluster's, whatever clocks say. The lease bounds how long the hub waits to know that.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from uuid import UUID

import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject, KaiError, LogUnavailable
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.ledger.bus.leases import lease_clock
from kaicore.ledger.bus.port import Bus
from kaicore.ledger.feed import EventFeed
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.snapshots import restored_hub
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import (
    DispatchArrived,
    DispatchFinished,
    DispatchReturned,
    DispatchStarted,
    HubPayload,
    LeaseRenewed,
)
from kaicore.rules.hub.cluster_side import DISPATCH_MARK, HeldLease, Term, held_entry, is_here, to_clear, to_make
from kaicore.rules.hub.hub_state import HUB, DispatchEntry, DispatchStage, HubState, dispatch_stream, lease_stream
from kaicore.rules.hub.steps import dispatch_unit
from kaicore.rules.objects.dispatched import Manifest, ending_of, mark_of, marked
from kaicore.runtime.process_context import end_all, run_together
from kaicore.runtime.service import ServiceContext

from kai_binder.writes.attempt import ACTOR

_NOT_FOUND, _CONFLICT, _UNAUTHORIZED = 404, 409, 401


class Refusal(KaiError):
    """The API server will not take an object, as often as it is asked."""


class DispatchObjects:
    """The objects of all dispatches on one API server."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._paths = ObjectPaths(client)

    async def make(self, manifest: Manifest, mark: str) -> None:
        """Create an object that carries a mark; one that is there with this mark stays as it is.

        Raises:
            Refusal: the API server refuses it, or has another object of the name.
            ClusterUnavailable: it does not answer.
        """
        subject = f"{manifest['kind']} {manifest['metadata']['name']}"
        try:
            made = marked(manifest, DISPATCH_MARK, mark, scheduler_name=EngineConfig().scheduler_name)
            await self._client.post(await self._paths.collection(manifest), made)
        except InvalidObject as error:
            raise Refusal(str(error)) from error
        except ApiStatus as error:
            if error.code == _UNAUTHORIZED:
                raise
            if error.code != _CONFLICT:
                raise Refusal(f"{subject}: {error.message}") from error
            there = await self._get(manifest)
            if there is not None and mark_of(there, DISPATCH_MARK) != mark:
                raise Refusal(f"{subject}: is in the cluster already, and is none of this dispatch's") from error

    async def clear(self, manifests: list[Manifest], mark: str) -> None:
        """Delete objects that carry a mark, what they own included.

        Raises:
            ClusterUnavailable: the API server does not answer.
        """
        for manifest in manifests:
            try:
                there = await self._get(manifest)
            except InvalidObject:
                continue
            if there is None or mark_of(there, DISPATCH_MARK) != mark:
                continue
            options = {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": {"uid": there["metadata"]["uid"]},
            }
            try:
                await self._client.delete(await self._paths.object(manifest), options)
            except ApiStatus as error:
                if error.code not in (_NOT_FOUND, _CONFLICT):
                    raise

    async def ending(self, manifests: list[Manifest], mark: str) -> str:
        """Return how objects ended; empty while they go on.

        Raises:
            ApiStatus: the API server does not let us look.
            ClusterUnavailable: it does not answer.
        """
        documents = [await self._get(manifest) for manifest in manifests]
        return ending_of(
            [one if one is not None and mark_of(one, DISPATCH_MARK) == mark else None for one in documents]
        )

    async def _get(self, manifest: Manifest) -> Manifest | None:
        body = await self._client.find(await self._paths.object(manifest))
        document: Manifest | None = None if body is None else msgspec.json.decode(body)
        return document


#: Seconds between two looks at what is to be done, and at how dispatches that run are.
_LOOK_S, _ENDINGS_S = 1.0, 10.0
#: The same, at most, whether there is a hub at last.
_MOST_LOOK_S = 5.0
#: Seconds between two looks whether the hub's log is folded, at the start.
_CATCH_UP_S = 0.2
#: Seconds between two looks whether the pods of what is cleared are gone.
_GONE_S = 0.1
_FORBIDDEN = 403

_manifests = msgspec.json.Decoder(list[Manifest])


class NotPermitted(ClusterUnavailable):
    """A pod of a dispatch may not be bound now: the lease has run out, or the objects are not all made."""


class HubSide:
    """One binder's part in what the hub decides."""

    def __init__(
        self,
        *,
        cluster: str,
        log: EventLog,
        bus: Bus | None,
        client: KubeClient,
        context: ServiceContext,
        clock: Callable[[], int],
        pods_of: Callable[[Term], int],
        lease_s: float,
    ) -> None:
        """Args:
        log: the hub's, and the cluster's.
        bus: brings events sooner; None to read from the log alone.
        clock: microseconds since the epoch.
        pods_of: returns how many pods of a term the cluster's log knows of.
        lease_s: how long the lease lasts; it is renewed three times as often.
        """
        self._cluster, self._log, self._bus, self._context = cluster, log, bus, context
        self._clock, self._pods_of = clock, pods_of
        self._lease_s, lease_us = lease_s, int(lease_s * 1e6)
        self._lease = HeldLease(lease_us, lease_us // 6)
        self._objects = DispatchObjects(client)
        self._feed: EventFeed | None = None
        self._moved = asyncio.Condition()
        self._state = HubState()
        self._made: set[Term] = set()
        self._working: dict[Term, asyncio.Task[None]] = {}
        self._changed, self._registered = asyncio.Event(), asyncio.Event()
        self._ended: set[Term] = set()
        self._folded = False

    async def run(self) -> None:
        """Work for the hub until cancelled; do nothing while the cluster is none of the hub's."""
        try:
            await run_together(asyncio.Event(), self._follow(), self._keep_lease(), self._work(), self._watch_endings())
        finally:
            await end_all(self._working.values())
            if self._feed is not None:
                await self._feed.close()

    async def admit(self, mark: str) -> None:
        """Let a pod be bound now; records that its dispatch starts, where it is the first.

        Args:
            mark: of the pod; empty for one of no dispatch, of which the hub is not asked.

        Raises:
            NotPermitted: not now; the same pod may be asked about again.
            ApiStatus: the dispatch is not this cluster's, or no more.
        """
        if not mark:
            return
        term = Term.read(mark)
        if not self._folded or not self._holds():
            raise NotPermitted(f"dispatch {mark}: no lease from the hub", reason="LeaseOver")
        entry = None if term is None else held_entry(self._state, self._cluster, term)
        if term is not None and entry is not None and entry.stage is DispatchStage.GIVEN:
            if term not in self._made:
                raise NotPermitted(f"dispatch {mark}: its objects are not all made", reason="NotMade")
            started = DispatchStarted(dispatch=term.dispatch, term=term.number, cluster=self._cluster)
            try:
                await self._record(entry, started)
            except LogUnavailable as error:
                raise NotPermitted(f"dispatch {mark}: {error}", reason="LeaseOver") from error
            entry = held_entry(self._state, self._cluster, term)
        if entry is None:
            raise ApiStatus(_FORBIDDEN, "NotGiven", f"the hub has not given dispatch {mark} to this cluster")
        if entry.stage is not DispatchStage.STARTED or not self._holds():
            raise NotPermitted(f"dispatch {mark}: no lease from the hub", reason="LeaseOver")

    def pods_ended(self, marks: Iterable[str]) -> None:
        """Pods of dispatches have ended or are gone: the dispatches may have, too."""
        self._ended |= {term for mark in marks if (term := Term.read(mark)) is not None}

    def _holds(self) -> bool:
        return self._lease.holds(boot_us())

    async def _follow(self) -> None:
        head: int | None = None
        feed = self._feed = await self._opened_feed()
        while True:
            with suppress(LogUnavailable):
                head = (await self._log.head(HUB)).position if head is None else head
            self._fold(await feed.next_batch(timeout_s=_LOOK_S if self._folded else _CATCH_UP_S))
            async with self._moved:
                self._moved.notify_all()
            if head is not None and self._state.position >= head:
                self._no_more_to_fold()

    def _no_more_to_fold(self) -> None:
        if not self._folded:
            self._folded = True
            self._changed.set()

    async def _opened_feed(self) -> EventFeed:
        """Return the feed of what follows the newest snapshot of the hub's state, as soon as there is a hub.

        Before, a feed would be woken by each append to any cluster's log. Most clusters never have a hub.
        """
        pause_s = _LOOK_S
        while True:
            with suppress(LogUnavailable):
                if not (await self._log.head(HUB)).position:
                    self._no_more_to_fold()
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 1.1, _MOST_LOOK_S)
                    continue
                self._state = await restored_hub(self._log)
                return EventFeed(self._log, self._bus, HUB, after=self._state.position)
            await asyncio.sleep(_LOOK_S)

    def _fold(self, events: list[Event]) -> None:
        for event in events:
            self._state.fold(event)
            if event.type != LeaseRenewed.__name__:
                self._changed.set()
        entry = self._state.clusters.get(self._cluster)
        if entry is not None and not entry.removed:
            self._registered.set()
        else:
            self._registered.clear()
            self._lease.given_up()

    # The lease.

    async def _keep_lease(self) -> None:
        stream = lease_stream(self._cluster)
        while True:
            await self._registered.wait()
            asked_at = boot_us()
            renewed = LeaseRenewed(cluster=self._cluster, holder=self._context.name, lease_us=self._lease.lease_us)
            event = NewEvent(
                id=derived_id(HUB, stream, str(asked_at), str(self._clock())),
                stream=stream,
                payload=renewed,
                actor=f"{ACTOR}/{self._cluster}",
                occurred_at=self._clock(),
                subject=self._cluster,
            )
            pause_s = self._lease_s / 3
            try:
                await self._log.append(HUB, [Unit((event,))])
            except LogUnavailable:
                pause_s = min(pause_s, _LOOK_S)
            else:
                if self._registered.is_set():
                    self._lease.renewed(asked_at=asked_at)
                    self._changed.set()
            await asyncio.sleep(pause_s)

    # Objects.

    async def _work(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S if self._registered.is_set() else None):
                    await self._changed.wait()
            self._changed.clear()
            if not self._folded:
                continue
            for term in [term for term, task in self._working.items() if task.done()]:
                self._finished(term, self._working.pop(term))
            clearing = set(to_clear(self._state, self._cluster)) | {
                term for term in self._made if not is_here(self._state, self._cluster, term)
            }
            for term in clearing - self._working.keys():
                self._working[term] = asyncio.create_task(self._clear(term))
            if self._holds():
                for term in to_make(self._state, self._cluster):
                    if term not in self._made and term not in self._working:
                        self._working[term] = asyncio.create_task(self._make(term))

    def _finished(self, term: Term, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, KaiError):
            self._context.log.warning("dispatch: tried again", dispatch=str(term), error=str(error))
        elif error is not None:
            raise error

    def _manifests(self, entry: DispatchEntry) -> list[Manifest]:
        return _manifests.decode(entry.submitted.manifests)

    async def _make(self, term: Term) -> None:
        entry = held_entry(self._state, self._cluster, term)
        if entry is None:
            return
        manifests = self._manifests(entry)
        try:
            for manifest in manifests:
                if not self._holds():
                    return
                await self._objects.make(manifest, str(term))
        except Refusal as error:
            self._context.log.warning("dispatch refused", dispatch=str(term), error=str(error))
            await self._objects.clear(manifests, str(term))
            await self._record(entry, self._returned(term, refusal=str(error)))
            return
        self._made.add(term)
        self._context.log.info("dispatch made", dispatch=str(term))
        arrived = DispatchArrived(
            dispatch=term.dispatch,
            term=term.number,
            objects=tuple(f"{one['kind']} {_name(one)}" for one in manifests),
        )
        stream = dispatch_stream(term.dispatch)
        event = NewEvent(
            id=derived_id(self._cluster, stream, str(term.number), "arrived"),
            stream=stream,
            payload=arrived,
            actor=ACTOR,
            occurred_at=self._clock(),
            subject=term.dispatch,
            cause=UUID(hex=entry.given_event),
            correlation=stream,
        )
        await self._log.append(self._cluster, [Unit((event,))])
        self._changed.set()

    async def _clear(self, term: Term) -> None:
        """Have nothing of a term on the API server any more, and say so."""
        entry = self._state.dispatches[term.dispatch]
        await self._objects.clear(self._manifests(entry), str(term))
        while self._pods_of(term):  # noqa: ASYNC110  # the projection's fold sets no event
            await asyncio.sleep(_GONE_S)
        self._made.discard(term)
        if term in to_clear(self._state, self._cluster):
            await self._record(self._state.dispatches[term.dispatch], self._returned(term))
            self._context.log.info("dispatch cleared", dispatch=str(term))

    def _returned(self, term: Term, *, refusal: str = "") -> DispatchReturned:
        return DispatchReturned(dispatch=term.dispatch, term=term.number, cluster=self._cluster, refusal=refusal)

    async def _watch_endings(self) -> None:
        """Look at dispatches that run: at those of which a pod has ended, and from time to time at all."""
        loop = asyncio.get_running_loop()
        looked_at = 0.0
        while True:
            await self._registered.wait()
            await asyncio.sleep(_LOOK_S)
            ended, self._ended = self._ended, set()
            if loop.time() - looked_at >= _ENDINGS_S:
                looked_at = loop.time()
                ended |= {Term(entry.name, entry.term) for entry in self._state.of_cluster(self._cluster)}
            for term in sorted(ended):
                entry = held_entry(self._state, self._cluster, term)
                if entry is None or entry.stage is not DispatchStage.STARTED:
                    continue
                with suppress(ApiStatus, ClusterUnavailable, LogUnavailable):
                    if outcome := await self._objects.ending(self._manifests(entry), str(term)):
                        finished = DispatchFinished(
                            dispatch=term.dispatch, term=term.number, cluster=self._cluster, outcome=outcome
                        )
                        await self._record(entry, finished)

    async def _record(self, entry: DispatchEntry, payload: HubPayload) -> None:
        """Append the next event of a dispatch, and fold up to it; one that is stale is decided again.

        Raises:
            LogUnavailable: it is not known whether it was appended.
        """
        unit = dispatch_unit(entry, payload, actor=f"{ACTOR}/{self._cluster}", now=self._clock())
        (outcome,) = await self._log.append(HUB, [unit])
        last = outcome.positions[-1] if outcome.positions else (await self._log.head(HUB)).position
        async with self._moved:
            await self._moved.wait_for(lambda: self._state.position >= last)


def _name(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{metadata.get('namespace') or 'default'}/{metadata['name']}"


def boot_us() -> int:
    """Return microseconds of a clock that is never set, and that goes on while the machine sleeps."""
    return int(lease_clock() * 1e6)
