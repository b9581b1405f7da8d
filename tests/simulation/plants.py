"""Faults of the code that are planted on purpose, to see that the simulation finds them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager as Context
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

from kai_binder import binder
from kai_binder.hub_side import HubSide
from kai_binder.projection.gpu_groups import GpuGroups
from kai_binder.writes import lanes
from kai_binder.writes.attempt import Attempt, outcome_unit
from kai_hub import main as hub_routes
from kai_scheduler.scheduler import Scheduler
from kai_webhook.main import KnownTopologies
from kaicore.analysis.ask.projections.rows import RowChanges
from kaicore.analysis.ask.projections.store import Generation
from kaicore.analysis.replay.past_states import KeptState
from kaicore.analysis.trial.dispatching import HubLog
from kaicore.errors import LogUnavailable
from kaicore.kube.api.reflector_core import ReflectorCore
from kaicore.ledger.bus.wire import from_message
from kaicore.ledger.feed import EventFeed, EventSource
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import EventLog
from kaicore.rules.engine.placement.gpu_supply import GpuSupply
from kaicore.rules.events.envelope import Event, NewEvent, Unit, UnitOutcome, derived_id
from kaicore.rules.events.payloads import DispatchSubmitted
from kaicore.rules.hub.hub_state import dispatch_stream
from kaicore.rules.state.cluster_state import ClusterState

from tests.simulation import kubelets
from tests.simulation.log import NetworkLog
from tests.simulation.views import MemoryViews

_append, _network_append = MemoryLog.append, NetworkLog.append
_hold, _release = GpuSupply.hold, GpuGroups._release


def _unconditional() -> Context[Any]:
    """The log takes units whatever they expect of streams: two decisions about one node are both taken."""

    async def append(
        self: MemoryLog, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        return await _append(self, cluster, [Unit(unit.events) for unit in units], expect=expect)

    return patch.object(MemoryLog, "append", append)


def _unfenced() -> Context[Any]:
    """The log takes calls whatever they expect: a watcher that another has replaced goes on, and so does a leader."""

    async def append(
        self: MemoryLog, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        del expect
        return await _append(self, cluster, units)

    return patch.object(MemoryLog, "append", append)


def _false_acknowledgement() -> Context[Any]:
    """An append that is not answered counts as done, at the log's end."""

    async def append(
        self: NetworkLog, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        try:
            return await _network_append(self, cluster, units, expect=expect)
        except LogUnavailable:
            position = len(self._log.events(cluster))
            outcomes = []
            for unit in units:
                outcomes.append(UnitOutcome(tuple(range(position + 1, position + 1 + len(unit.events)))))
                position += len(unit.events)
            self._witness.acknowledged(self._process, cluster, units, outcomes)
            return outcomes

    return patch.object(NetworkLog, "append", append)


def _blind_feed() -> Context[Any]:
    """Readers take whatever the bus brings, without a look at what is missing."""

    def from_bus(self: EventFeed) -> list[Event]:
        if self._subscription is None or self._cursor is None:
            return []
        events = [from_message(message) for message in self._subscription.take(500)]
        taken = [event for event in events if event is not None and event.position > self._cursor.position]
        if taken:
            self._deliver(EventSource.BUS, taken, self._cursor.at(taken[-1]))
        return taken

    return patch.object(EventFeed, "_from_bus", from_bus)


def _no_catching_up() -> Context[Any]:
    """A scheduler begins its next cycle without its own last decisions."""

    async def catch_up(self: Scheduler, position: int, own: Sequence[Event]) -> None:
        del self, position, own

    return patch.object(Scheduler, "_catch_up", catch_up)


def _free_outcomes() -> Context[Any]:
    """Outcomes have ids of their own, so that a decision may have two."""
    numbers = iter(range(1 << 30))

    def unit(task: Any, outcome: Any, *, now: int) -> Unit:
        (event,) = outcome_unit(task, outcome, now=now).events
        fields = {name: getattr(event, name) for name in NewEvent.__struct_fields__}
        return Unit((NewEvent(**(fields | {"id": derived_id("planted", str(next(numbers)))})),))

    return _both(patch.object(binder, "outcome_unit", unit), patch.object(lanes, "outcome_unit", unit))


def _no_missed_deletions() -> Context[Any]:
    """A list says nothing of what is gone since the last one."""
    take_page = ReflectorCore.take_page

    def take(self: ReflectorCore[Any], data: bytes) -> list[Any]:
        return [change for change in take_page(self, data) if not getattr(change, "missed", False)]

    return patch.object(ReflectorCore, "take_page", take)


def _early_outcomes() -> Context[Any]:
    """The binder tells that it has bound a pod before it asks the API server to."""
    ask = binder.Binder._ask

    async def early(self: binder.Binder, what: Any, task: Any) -> Any:
        attempt = Attempt(task, patience_s=0)
        attempt.done()
        assert attempt.outcome is not None
        await self._outbox.put([outcome_unit(task, attempt.outcome, now=self._clock())])
        return await ask(self, what, task)

    return patch.object(binder.Binder, "_ask", early)


def _unasked() -> Context[Any]:
    """A binder binds pods of dispatches without a word to the hub."""

    async def admit(self: HubSide, mark: str) -> None:
        del self, mark

    return patch.object(HubSide, "admit", admit)


def _twice_counted() -> Context[Any]:
    """Read models are written wherever they are: of two projectors each counts what the other has counted."""

    async def save(
        self: MemoryViews, cluster: str, before: Generation, changes: RowChanges, *, position: int, recorded_at: int
    ) -> None:
        if (made := self.made(cluster, before.number)) is not None:
            self.write(cluster, before._replace(position=position, recorded_at=recorded_at), made[1], changes)

    return patch.object(MemoryViews, "save", save)


def _skipping_webhook() -> Context[Any]:
    """A webhook goes on at the log's end, whatever it has not read of it."""
    catch_up = KnownTopologies.catch_up

    async def skip(self: KnownTopologies, log: EventLog) -> None:
        if self.book is None:
            await catch_up(self, log)
            return
        self._position = (await log.head(self._cluster)).position

    return patch.object(KnownTopologies, "catch_up", skip)


def _stale_answers() -> Context[Any]:
    """The API answers from what it has folded, whatever the log says by now."""
    current = KeptState.current

    async def kept(self: KeptState) -> ClusterState:
        return self._state or await current(self)

    return patch.object(KeptState, "current", kept)


def _submitted_again() -> Context[Any]:
    """A dispatch is submitted whatever there is of its name."""

    async def submit(hub: HubLog, submitted: DispatchSubmitted, *, actor: str) -> bool:
        return await hub.try_append(dispatch_stream(submitted.dispatch), submitted, subject="", actor=actor)

    return patch.object(hub_routes, "submit_dispatch", submit)


def _first_gpu() -> Context[Any]:
    """The program of a reservation pod names a GPU of its node, whichever the kubelet gave to it."""

    def own(environment: Mapping[str, str], *, driver: Callable[[], list[str]]) -> str:
        del environment
        return f"{driver()[0].rpartition('-')[0]}-0"

    return patch.object(kubelets, "own_gpu", own)


def _halved_parts() -> Context[Any]:
    """A pod's part of a GPU counts as half of it, in cycles and in the state."""

    def hold(self: GpuSupply, group: str, milli: int, *, sign: int = 1) -> None:
        _hold(self, group, milli // 2, sign=sign)

    return patch.object(GpuSupply, "hold", hold)


def _lost_reservations() -> Context[Any]:
    """To a binder the end of one pod is that of all that share its GPU: it lets the reservation pod go."""

    def release(self: GpuGroups, uid: str) -> None:
        for group in self._groups.get(uid, ()):
            gpu = self.opened.get(group)
            if gpu is not None and uid in gpu.holders:
                gpu.holders[:] = [uid]
        _release(self, uid)

    return patch.object(GpuGroups, "_release", release)


@contextmanager
def _both(one: Context[Any], other: Context[Any]) -> Iterator[None]:
    with one, other:
        yield


PLANTS: dict[str, Callable[[], Context[Any]]] = {
    "": nullcontext,
    "unconditional-append": _unconditional,
    "no-fencing": _unfenced,
    "false-acknowledgement": _false_acknowledgement,
    "blind-feed": _blind_feed,
    "no-catching-up": _no_catching_up,
    "free-outcomes": _free_outcomes,
    "missed-deletions": _no_missed_deletions,
    "early-outcomes": _early_outcomes,
    "unasked-hub": _unasked,
    "twice-counted": _twice_counted,
    "skipping-webhook": _skipping_webhook,
    "stale-answers": _stale_answers,
    "submitted-again": _submitted_again,
    "first-gpu": _first_gpu,
    "halved-parts": _halved_parts,
    "lost-reservations": _lost_reservations,
}
