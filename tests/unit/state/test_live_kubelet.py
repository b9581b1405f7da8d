"""The accounts of the run on real kubelets: what they were denied for must not be promised again."""

import msgspec
import pytest
from kaicore.rules.deciding.decide import decide
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.codec import decode_payload, encode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import CycleCompleted, PlacementObserved, PodRejected
from kaicore.rules.model.placement import ContainerPlacement, ZoneAmount
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.agreement import MissCause

from tests.given.logs.live_kubelet import CLUSTER, ZONES, Checkpoints, cpus_by_zone, recorded_events, second_run


def with_init_containers(event: Event, checkpoints: Checkpoints) -> Event:
    """The observation that the exporter would have reported if it had read `cpu_manager_state` then."""
    payload = decode_payload(event)
    assert isinstance(payload, PlacementObserved)
    given = checkpoints.entries[payload.node].get(payload.uid, {})
    shown = {item.container for item in payload.placement.containers}
    taken = frozenset().union(*(cpus for name, cpus in given.items() if name in shown))
    init = tuple(
        ContainerPlacement(
            name,
            zones=tuple(
                ZoneAmount(zone, {"cpu": amount}) for zone, amount in cpus_by_zone(cpus - taken).items() if amount
            ),
        )
        for name, cpus in sorted(given.items())
        if name not in shown
    )
    placement = msgspec.structs.replace(
        payload.placement,
        containers=(*payload.placement.containers, *init),
        init=tuple(item.container for item in init),
    )
    reported = msgspec.structs.replace(payload, placement=placement)
    return msgspec.structs.replace(event, body=msgspec.Raw(encode_payload(reported)))


@pytest.mark.parametrize("files", [False, True], ids=["predicted again", "from cpu_manager_state"])
def test_accounts_at_the_denials_are_the_kubelets(*, files: bool) -> None:
    """Pods that were observed by then, with zones that the kubelet had not freed yet."""
    state, checkpoints, denials, compared = ClusterState(CLUSTER), Checkpoints(), [], 0
    for event in recorded_events():
        for _ in checkpoints.advance(event.occurred_at):
            pass
        if event.type == "PodRejected":
            denied = decode_payload(event)
            assert isinstance(denied, PodRejected)
            denials.append(denied.name)
            for entry in state.charges.held_on(denied.node):
                given = checkpoints.entries[denied.node].get(entry.pod.uid)
                if entry.observed is not None and given is not None:
                    charged = dict.fromkeys(ZONES, 0)
                    for zone, resource, amount in entry.zone_charge.amounts:
                        charged[ZONES[zone]] += amount if resource == "cpu" else 0
                    assert charged == cpus_by_zone(frozenset().union(*given.values())), entry.pod.name
                    compared += 1
        reported = files and event.type == "PlacementObserved"
        state.fold(with_init_containers(event, checkpoints) if reported else event)
    assert denials == ["b-nic-74", "b-g2-33", "b-g2-62", "b-cpu-28"]
    assert compared == 6 + 4 + 5 + 4


def test_the_nine_contradictions_are_told_apart_by_cause() -> None:
    """Seven by ends that the API reported later, two by reports that showed half of an admission."""
    state, names = ClusterState(CLUSTER), {}
    for event in recorded_events():
        state.fold(event)
        names[event.stream.removeprefix("pod/")] = event.subject.removeprefix("default/")
    causes = {names[uid]: (miss.cause, miss.released) for uid, miss in state.misses.explained.items()}
    early, half = MissCause.RELEASED_EARLIER, MissCause.HALF_READ
    assert causes == {
        "a-g1-33": (half, ()),
        "a-two-23": (early, ("default/a-burst-5",)),
        "a-two-29": (early, ("default/a-burst-5",)),
        "b-g1-43": (half, ()),
        "b-init-55": (early, ("default/b-init-21",)),
        "b-init-59": (early, ("default/b-init-21",)),
        "b-nic-63": (early, ("default/b-g1-34",)),
        "b-nic-64": (early, ("default/b-g1-34",)),
        "b-g2-87": (early, ("default/b-init-18",)),
    }
    assert state.misses.open == {}
    assert sum(sum(by_cause.values()) for by_cause in state.counters.misses.values()) == 9 + 4


def test_of_1090_pods_the_denied_one_would_have_waited_and_each_miss_has_its_cause() -> None:
    state, names, events = ClusterState(CLUSTER), {}, second_run()
    at, started = next(
        (cycle.input_position, cycle.now)
        for cycle in map(decode_payload, (event for event in events if b'"default/539"' in bytes(event.body)))
        if isinstance(cycle, CycleCompleted) and cycle.cycle == "default/539"
    )
    for event in events:
        state.fold(event)
        names[event.stream.removeprefix("pod/")] = event.subject.removeprefix("default/")
        if event.position == at:
            placed = decide(state, EngineConfig(), shard="default", now=started, actor="test").result.placements
            assert "b-cpu-231" not in [one.name for one in placed]
    by_cause: dict[str, list[str]] = {}
    for uid, miss in state.misses.explained.items():
        by_cause.setdefault(miss.cause, []).append(names[uid])
    assert len(by_cause.pop(MissCause.RELEASED_EARLIER)) == 19
    hedged = ["b-cpu-503", "b-cpu-777", "b-g4-377", "b-init-154", "b-init-986"]
    assert {cause: sorted(pods) for cause, pods in by_cause.items()} == {MissCause.NOT_OBSERVED_YET: hedged}
