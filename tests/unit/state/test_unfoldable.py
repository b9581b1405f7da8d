"""Events that decode and make the fold raise: they are quarantined, and leave nothing else behind."""

import pickle

import msgspec
import pytest
from kaicore.analysis.replay.log_states import fold_through
from kaicore.errors import UnfoldableEvent
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events import payloads, quarantine
from kaicore.rules.events.codec import unhashed_event
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.events.quarantine import quarantine_text
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import encode_state

from tests.given.cluster.factory import GI, node, pod, topology
from tests.given.logs.new_events import break_fold_of

ZONE = {"cpu": 8000, "memory": 32 * GI}
BROKEN = payloads.TopologyObserved(topology("n1", {"cpu": 13, "memory": 32 * GI}))


@pytest.fixture(autouse=True)
def _knowing_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_problems", {})
    break_fold_of(BROKEN, monkeypatch)


def log_of(*items: tuple[str, Payload], hashed: bool = True) -> list[Event]:
    events = []
    for position, (stream, payload) in enumerate(items, 1):
        new = NewEvent(derived_id("c", str(position)), stream, payload, "watcher", position)
        event = unhashed_event(new, cluster="c", position=position, version=1, recorded_at=position)
        events.append(msgspec.structs.replace(event, hash=position.to_bytes(32) if hashed else b""))
    return events


EVENTS = (
    ("node/n1", payloads.NodeObserved(node("n1", allocatable={**ZONE, "pods": 110}))),
    ("nrt/n1", payloads.TopologyObserved(topology("n1", ZONE))),
    ("nrt/n1", BROKEN),
    ("pod/uid-a", payloads.PodObserved(pod("a", cpu=1))),
)


def test_state_without_the_event_is_what_is_left_and_says_why() -> None:
    events = log_of(*EVENTS)
    with pytest.raises(UnfoldableEvent, match="event 3 cannot be folded: TopologyObserved on nrt/n1: Overflow"):
        ClusterState("c").fold_all(events)
    state = ClusterState("c").fold_all(events)
    text = quarantine_text(list(state.quarantined.values()))
    assert "event 3 (TopologyObserved on nrt/n1, by watcher) cannot be folded: OverflowError: no such amount" in text
    row = state.columns.row("n1")
    assert state.columns.unschedulable[row]
    assert state.columns.topologies[row] == topology("n1", ZONE)
    (aside,) = log_of(*EVENTS, ("quarantine/3", payloads.EventSetAside(3, "nrt/n1", "", "broken")))[4:]
    state.fold(aside)
    assert state.quarantined == {}
    assert not state.columns.unschedulable[row]


def test_live_state_that_goes_on_as_another_is_bit_for_bit_the_one_folded_anew() -> None:
    events = log_of(*EVENTS)
    live = ClusterState("c").fold_all(events[:2])
    with pytest.raises(UnfoldableEvent):
        live.fold(events[2])
    live.become(ClusterState("c").fold_all(events[:3]))
    live.fold(events[3])
    assert encode_state(live) == encode_state(ClusterState("c").fold_all(events))


@pytest.mark.parametrize("broken", [False, True], ids=["spoilt state", "broken event"])
async def test_an_event_is_quarantined_only_if_a_state_from_the_log_cannot_take_it_either(broken: bool) -> None:
    log = MemoryLog(clock=lambda: 7)
    for position, (stream, payload) in enumerate(EVENTS, 1):
        if broken or payload is not BROKEN:
            new = NewEvent(derived_id("c", str(position)), stream, payload, "watcher", position)
            await log.append("c", [Unit((new,))])
    events = await log.read("c", limit=10)
    live = ClusterState("c").fold_all(events[:1])
    if not broken:
        del live.columns
    await fold_through(log, live, events[1:])
    assert list(live.quarantined) == ([3] if broken else [])
    assert encode_state(live) == encode_state(ClusterState("c").fold_all(events))


def test_event_of_no_log_raises_what_the_fold_raised_every_time() -> None:
    for _ in range(2):
        with pytest.raises(OverflowError):
            ClusterState("c").fold_all(log_of(*EVENTS, hashed=False))


def test_error_is_the_same_after_it_went_to_another_process() -> None:
    error = UnfoldableEvent("c", 3, "TopologyObserved on nrt/n1: no")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
