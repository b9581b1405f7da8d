"""Reserved starts: nothing delays the first group that waits for room and is owed it (decision 0660)."""

from typing import Any

import pytest
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.engine.decisions import CycleResult, GiveUpReason
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.making_room import PromiseGivenUp, RoomPromised, WouldDelay
from kaicore.rules.model.pod import Pod
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.state.snapshot import decode_state, encode_state
from msgspec.structs import replace

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import OWNER, Workloads

QUEUE_LABEL = "kai.scheduler/queue"
_HOUR_S = 3_600
_ALLOCATE = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.EASY, hold_after_us=0)


class Rooms(Workloads):
    """Nodes of 8 GPUs, with pods that run for hours."""

    def __init__(self, nodes: str = "abcd") -> None:
        super().__init__()
        for name in nodes:
            self.add_node(name, cpu=64, memory=256, gpu=8)

    def pods(self, name: str, count: int = 1, *, hours: int = 0, gpu: int = 8, **spec: Any) -> list[Pod]:
        """A gang, or a pod alone, that declares its limit in hours, 0 for none."""
        now = self.now // 1_000_000
        spec = {"cpu": 1, "memory": 1, "gpu": gpu, "active_deadline_s": hours * _HOUR_S, "created_at": now} | spec
        if count == 1:
            return [self.add_pod(pod(name, owner=OWNER, **spec))]
        return self.gang(name, count, group={"created_at": now}, **spec)

    def end(self, pods: list[Pod]) -> None:
        for one in pods:
            self.delete_pod(one)

    def starts(self, config: EngineConfig = _ALLOCATE) -> list[str]:
        """Run a cycle; return the names of what it starts."""
        return sorted(self.placed(self.cycle(config)))


def reasons(result: CycleResult, name: str) -> list[Any]:
    """The reason why a group or a pod alone waits."""
    own = [one.reasons for one in result.groups if one.group.endswith(f"/{name}")]
    alone = [item.reasons for one in result.pending for item in one.alone]
    return [reason for found in own or alone for reason in found]


def promised(result: CycleResult, name: str) -> RoomPromised:
    (reason,) = (one for one in reasons(result, name) if isinstance(one, RoomPromised))
    return reason


def why_given_up(result: CycleResult, name: str) -> str:
    (reason,) = (one for one in reasons(result, name) if isinstance(one, PromiseGivenUp))
    return reason.cause


@pytest.fixture
def rooms() -> Rooms:
    """Two of four nodes are taken for two and for four hours, and a gang of three pods waits for the first."""
    rooms = Rooms()
    rooms.pods("two-hours", hours=2)
    rooms.pods("four-hours", hours=4)
    assert rooms.starts() == ["four-hours", "two-hours"]
    return rooms


def test_first_group_that_does_not_fit_is_promised_the_end_of_the_first_limit(rooms: Rooms) -> None:
    began = rooms.now
    rooms.pods("gang", 3)
    reason = promised(rooms.cycle(_ALLOCATE), "gang")
    assert abs(reason.starts_at - began - 2 * _HOUR_S * 1_000_000) < 1_000_000
    assert (reason.nodes, reason.unlimited, reason.moved) == (3, 0, "")
    assert "reserved: nodes " in str(reason)
    assert "earliest start 20" in str(reason)


def test_group_starts_before_the_promised_one_only_if_its_limit_ends_before(rooms: Rooms) -> None:
    rooms.pods("gang", 3)
    rooms.cycle(_ALLOCATE)
    rooms.pods("long", hours=3)
    rooms.pods("unlimited")
    rooms.pods("short", hours=1)
    result = rooms.cycle(_ALLOCATE)
    assert list(rooms.placed(result)) == ["short"]
    (held,) = {reason for name in ("long", "unlimited") for reason in reasons(result, name)}
    assert isinstance(held, WouldDelay)
    assert held.group.endswith("default/gang")
    assert f"would delay {held.group}, which can start at 20" in str(held)


def test_group_that_needs_only_what_the_promised_one_leaves_starts(rooms: Rooms) -> None:
    rooms.pods("gang", 3, gpu=6)
    rooms.cycle(_ALLOCATE)
    rooms.pods("beside", gpu=2)
    rooms.pods("too-large", gpu=4)
    assert rooms.starts() == ["beside"]


def test_switched_off_everything_that_fits_starts(rooms: Rooms) -> None:
    off = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.OFF)
    rooms.pods("gang", 3)
    assert not any(isinstance(one, RoomPromised) for one in reasons(rooms.cycle(off), "gang"))
    rooms.pods("long", hours=9)
    assert rooms.starts(off) == ["long"]


def test_promised_group_starts_when_its_room_is_free_and_the_next_one_is_promised(rooms: Rooms) -> None:
    first = rooms.pods("gang", 3)
    rooms.cycle(_ALLOCATE)
    rooms.pods("next", 4)
    assert not any(isinstance(one, RoomPromised) for one in reasons(rooms.cycle(_ALLOCATE), "next")), "one at a time"
    rooms.end([entry.pod for entry in rooms.state.pods.values() if entry.pod.name == "two-hours"])
    result = rooms.cycle(_ALLOCATE)
    assert sorted(rooms.placed(result)) == [one.name for one in first]
    assert promised(result, "next").unlimited == 3


def test_promise_moves_sooner_when_a_pod_ends_before_its_limit(rooms: Rooms) -> None:
    rooms.pods("gang", 4)
    before = promised(rooms.cycle(_ALLOCATE), "gang")
    rooms.end([entry.pod for entry in rooms.state.pods.values() if entry.pod.name == "four-hours"])
    after = promised(rooms.cycle(_ALLOCATE), "gang")
    assert after.starts_at < before.starts_at
    assert after.since == before.since
    assert after.moved == "sooner, pods ended before their time"


def test_promise_is_given_up_when_its_nodes_are_gone(rooms: Rooms) -> None:
    rooms.pods("gang", 4)
    rooms.cycle(_ALLOCATE)
    rooms.record("node/d", payloads.NodeDeleted("uid-d", "d"))
    rooms.pods("long", hours=9)
    result = rooms.cycle(_ALLOCATE)
    assert why_given_up(result, "gang") == GiveUpReason.NO_LONGER_FITS
    assert list(rooms.placed(result)) == ["long"], "nothing is kept any more"


def test_group_of_higher_priority_passes_and_takes_the_promise_over(rooms: Rooms) -> None:
    rooms.pods("gang", 3)
    rooms.cycle(_ALLOCATE)
    rooms.pods("urgent", priority=1000)
    assert rooms.starts() == ["urgent"], "the promise does not bind it"
    rooms.pods("urgent-gang", 4, priority=1000)
    result = rooms.cycle(_ALLOCATE)
    assert promised(result, "urgent-gang").nodes == 4
    assert why_given_up(result, "gang") == GiveUpReason.HIGHER_PRIORITY


def test_room_without_limits_is_held_for_so_long_and_then_given_up() -> None:
    rooms = Rooms()
    rooms.pods("service")
    held = replace(_ALLOCATE, hold_us=_HOUR_S * 1_000_000)
    assert rooms.starts(held) == ["service"]
    rooms.pods("gang", 4)
    assert promised(rooms.cycle(held), "gang").unlimited == 1
    rooms.pods("short", hours=1)
    assert not rooms.starts(held), "no limit tells when the room is needed"
    rooms.now += held.hold_us
    result = rooms.cycle(held)
    assert list(rooms.placed(result)) == ["short"]
    assert why_given_up(result, "gang") == GiveUpReason.EXPIRED
    assert any(isinstance(one, PromiseGivenUp) for one in reasons(rooms.cycle(held), "gang")), "not again at once"


def test_room_without_limits_is_not_held_before_the_group_is_old_enough() -> None:
    rooms = Rooms()
    late = replace(_ALLOCATE, hold_after_us=_HOUR_S * 1_000_000)
    rooms.pods("service")
    assert rooms.starts(late) == ["service"]
    rooms.pods("gang", 4)
    assert not any(isinstance(one, RoomPromised) for one in reasons(rooms.cycle(late), "gang"))
    rooms.now += late.hold_after_us
    assert promised(rooms.cycle(late), "gang").unlimited == 1


def test_held_room_moves_within_a_minute_to_nodes_on_which_less_is_waited_for() -> None:
    rooms = Rooms()
    services = {}
    for name in ("oldest", "older", "young"):
        services[name] = rooms.pods(name)
        rooms.now += _HOUR_S * 1_000_000
        rooms.starts()
    nodes = {name: rooms.state.pods[one.uid].node for name, (one,) in services.items()}
    rooms.pods("gang", 3)
    before = promised(rooms.cycle(_ALLOCATE), "gang")
    assert (before.unlimited, nodes["oldest"] in before.names) == (2, False)
    rooms.end(services["oldest"])
    rooms.pods("urgent", priority=1000)
    assert rooms.starts() == ["urgent"]
    kept = promised(rooms.cycle(_ALLOCATE), "gang")
    assert (kept.names, kept.looked_at) == (before.names, 0), "to look at all that runs costs much"
    rooms.now += 60_000_000
    after = promised(rooms.cycle(_ALLOCATE), "gang")
    assert (after.unlimited, nodes["oldest"] in after.names, nodes["older"] in after.names) == (2, True, False)
    assert (after.since, after.looked_at > after.since + 60_000_000) == (before.since, True)
    assert promised(rooms.cycle(_ALLOCATE), "gang") == after


def test_end_of_a_hold_is_waited_for_only_if_a_group_that_fits_is_held_back() -> None:
    rooms = Rooms()
    rooms.pods("service")
    rooms.cycle(_ALLOCATE)
    rooms.pods("gang", 4)
    since = promised(rooms.cycle(_ALLOCATE), "gang").since
    assert not rooms.cycle(_ALLOCATE).due, "nobody waits for it"
    rooms.pods("short", hours=1)
    assert rooms.cycle(_ALLOCATE).due == since + _ALLOCATE.hold_us


def test_pod_alone_is_promised_a_start_once_it_has_waited_for_long() -> None:
    rooms = Rooms("a")
    rooms.pods("small", gpu=2, hours=9)
    rooms.cycle(_ALLOCATE)
    rooms.pods("whole")
    rooms.pods("younger", created_at=rooms.now // 1_000_000 + 60)
    rooms.now += _ALLOCATE.promise_alone_after_us
    result = rooms.cycle(_ALLOCATE)
    assert not any(isinstance(one, RoomPromised) for one in reasons(result, "whole")), "nothing has passed it over"
    rooms.pods("other", gpu=2, hours=9)
    assert rooms.starts() == ["other"]
    result = rooms.cycle(_ALLOCATE)
    assert (promised(result, "whole").names, promised(result, "whole").unlimited) == ("a", 0)
    assert not any(isinstance(one, RoomPromised) for one in reasons(result, "younger")), "one at a time"
    rooms.pods("last", gpu=2, hours=9)
    assert not rooms.starts()


def test_recorded_configuration_that_says_nothing_of_promises_makes_none() -> None:
    before = EngineConfig(backfill=Backfill.OFF, hold_after_us=0)
    assert not {"backfill", "hold_after_us", "run_time_per_cent"} & before.document().keys()
    assert EngineConfig.recorded(before.document()) == before
    assert EngineConfig.recorded(EngineConfig().document()) == EngineConfig()
    assert EngineConfig().backfill is Backfill.EASY, "what is not said is not the default"


@pytest.mark.parametrize(
    ("hours", "outcome", "late_hours"),
    [(1, {"made": 1, "kept": 1}, 0), (3, {"made": 1, "late": 1}, 1)],
)
def test_start_is_counted_by_the_time_that_was_promised_first(
    rooms: Rooms, hours: int, outcome: dict[str, int], late_hours: int
) -> None:
    rooms.pods("gang", 3)
    rooms.cycle(_ALLOCATE)
    rooms.now += hours * _HOUR_S * 1_000_000
    rooms.end([entry.pod for entry in rooms.state.pods.values() if entry.pod.name == "two-hours"])
    assert len(rooms.starts()) == 3
    assert rooms.state.counters.promises == outcome
    assert rooms.state.counters.promises_late_us // 1_000_000 == pytest.approx(late_hours * _HOUR_S, abs=2)


def test_promises_that_move_and_are_given_up_are_counted_by_reason(rooms: Rooms) -> None:
    rooms.pods("gang", 4)
    first = promised(rooms.cycle(_ALLOCATE), "gang").starts_at
    rooms.end([entry.pod for entry in rooms.state.pods.values() if entry.pod.name == "four-hours"])
    assert promised(rooms.cycle(_ALLOCATE), "gang").first_starts_at == first
    rooms.record("node/d", payloads.NodeDeleted("uid-d", "d"))
    rooms.cycle(_ALLOCATE)
    assert rooms.state.counters.promises == {
        "made": 1,
        "moved/sooner, pods ended before their time": 1,
        f"given up/{GiveUpReason.NO_LONGER_FITS}": 1,
    }
    assert decode_state(encode_state(rooms.state)).counters == rooms.state.counters


def test_start_without_any_time_is_counted_as_such() -> None:
    rooms = Rooms()
    service = rooms.pods("service")
    rooms.cycle(_ALLOCATE)
    rooms.pods("gang", 4)
    rooms.cycle(_ALLOCATE)
    rooms.end(service)
    assert len(rooms.starts()) == 4
    assert rooms.state.counters.promises == {"made": 1, "untimed": 1}


_CONSERVATIVE = replace(_ALLOCATE, backfill=Backfill.CONSERVATIVE)


@pytest.mark.parametrize(
    ("config", "hours", "passes"),
    [
        (_ALLOCATE, 3, True),
        (_ALLOCATE, 5, True),
        (_CONSERVATIVE, 3, True),
        (_CONSERVATIVE, 5, False),
        (_CONSERVATIVE, 0, False),
        (replace(_CONSERVATIVE, most_promises=1), 5, True),
    ],
)
def test_group_passes_if_it_delays_none_of_those_to_which_a_start_is_promised(
    rooms: Rooms, config: EngineConfig, hours: int, passes: bool
) -> None:
    """`gang` leaves 2 GPUs of each of its nodes from two hours on; `whole` needs everything from four hours on."""
    rooms.pods("gang", 3, gpu=6, hours=1)
    rooms.pods("whole", 4, hours=1)
    rooms.cycle(config)
    rooms.pods("small", gpu=2, hours=hours, created_at=rooms.now // 1_000_000 + 2)
    result = rooms.cycle(config)
    assert list(rooms.placed(result)) == (["small"] if passes else [])
    if not passes:
        (held,) = (one for one in reasons(result, "small") if isinstance(one, WouldDelay))
        assert held.group.endswith("default/whole")


def test_starts_are_promised_one_after_the_other_and_kept_when_the_first_group_has_started(rooms: Rooms) -> None:
    began = rooms.now
    rooms.pods("gang", 3, hours=3)
    rooms.pods("whole", 4, hours=1)
    result = rooms.cycle(_CONSERVATIVE)
    hours = [(promised(result, name).starts_at - began) / _HOUR_S / 1e6 for name in ("gang", "whole")]
    assert hours == pytest.approx([2, 5], abs=0.01), "five: when the gang has run for its limit of three"
    rooms.now += 2 * _HOUR_S * 1_000_000
    rooms.end([entry.pod for entry in rooms.state.pods.values() if entry.pod.name == "two-hours"])
    after = rooms.cycle(_CONSERVATIVE)
    assert len(after.placements) == 3
    assert (promised(after, "whole").starts_at - began) / _HOUR_S / 1e6 == pytest.approx(5, abs=0.01)


def test_more_starts_than_may_be_promised_are_given_up(rooms: Rooms) -> None:
    rooms.pods("gang", 3, hours=1)
    rooms.pods("whole", 4, hours=1)
    rooms.cycle(_CONSERVATIVE)
    result = rooms.cycle(_ALLOCATE)
    assert promised(result, "gang")
    assert why_given_up(result, "whole") == GiveUpReason.ANOTHER


def test_promise_stays_on_its_nodes_and_its_gang_starts_where_it_fits_first() -> None:
    rooms = Rooms("ab")
    rooms.pods("two-hours", hours=2)
    (other,) = rooms.pods("four-hours", hours=4)
    rooms.starts()
    rooms.pods("gang", 2, gpu=4)
    before = promised(rooms.cycle(_ALLOCATE), "gang")
    # Its limit is shortened: now this one ends first.
    rooms.see(rooms.state.pods[other.uid].pod, active_deadline_s=_HOUR_S)
    after = promised(rooms.cycle(_ALLOCATE), "gang")
    assert (after.names, after.starts_at, after.moved) == (before.names, before.starts_at, "")
    rooms.end([other])
    assert rooms.starts() == ["gang-0", "gang-1"]


def test_promised_group_that_its_queue_is_not_owed_yet_leaves_room_to_another_queue_that_is() -> None:
    """It would bring its queue over its share, and the other queue would take that back by an eviction."""
    rooms = Rooms("ab")
    rooms.queues(queue("own"), queue("other"))
    config = replace(_ALLOCATE, actions=tuple(Action), fair_share=FairShareConfig(k_milli=0))
    (ending,) = rooms.pods("other-0", labels={QUEUE_LABEL: "other"})
    assert rooms.starts(config) == ["other-0"], "on the first node"
    rooms.pods("own-0", labels={QUEUE_LABEL: "own"})
    assert rooms.starts(config) == ["own-0"]
    rooms.gang("gang", 2, group={"queue": "own"}, cpu=1, gpu=4)
    assert promised(rooms.cycle(config), "gang").names == "a"
    rooms.pods("other-1", labels={QUEUE_LABEL: "other"})
    rooms.end([ending])
    result = rooms.cycle(config)
    assert (rooms.placed(result), rooms.evicted(result)) == ({"other-1": "a"}, {})
    assert promised(result, "gang")
