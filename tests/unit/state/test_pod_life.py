"""The life of a pod, from its events alone, agrees with the fold of the whole log."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.rules.state.pods.pod_life import LifeEvent, LifeStage, PodLife, life_steps

from tests.given.cluster.factory import Cluster, pod
from tests.given.recorded import read_log, recorded_logs

_STAGES = {
    LifeStage.WAITING: {Stage.WAITING},
    LifeStage.PLACED: {Stage.PLACED},
    LifeStage.BOUND: {Stage.BOUND},
    LifeStage.RUNNING: {Stage.BOUND},
    LifeStage.LEAVING: {Stage.WAITING, Stage.PLACED, Stage.BOUND},
    LifeStage.ENDED: {Stage.FINISHED},
    LifeStage.FAILED: {Stage.FINISHED},
}


@pytest.mark.parametrize("path", recorded_logs(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_life_of_each_pod_of_a_recorded_log_agrees_with_its_entry_after_each_event(path: Path) -> None:
    events = read_log(path)
    state = ClusterState(events[0].cluster)
    seen: set[LifeStage] = set()
    lives: dict[str, PodLife] = {}
    for event in events:
        state.fold(event)
        if not event.stream.startswith("pod/"):
            continue
        life = lives.setdefault(event.stream, PodLife())
        life.take(decode_payload(event), at=event.recorded_at, position=event.position)
        entry = state.pods.get(event.stream.removeprefix("pod/"))
        seen.add(life.stage)
        if entry is None:
            assert life.stage is LifeStage.GONE
        else:
            assert entry.stage in _STAGES[life.stage]
            assert (life.node, life.waiting, life.predicted) == (entry.node, entry.waiting, entry.predicted)
    assert seen >= {LifeStage.WAITING, LifeStage.PLACED, LifeStage.BOUND, LifeStage.RUNNING, LifeStage.GONE}


def test_placed_pod_seen_again_before_it_is_bound_does_not_wait() -> None:
    cluster, one = Cluster("c1"), pod("a", cpu=1)
    cluster.add_pod(one)
    about: dict[str, Any] = {"uid": one.uid, "namespace": one.namespace, "name": one.name, "node": "n1"}
    cluster.record(f"pod/{one.uid}", payloads.PodPlaced(**about, cycle="c/1", pod_class="k"))
    again = msgspec.structs.replace(one, resource_version="2", labels={"seen": "again"})
    cluster.record(f"pod/{one.uid}", payloads.PodObserved(again))
    *_, last = life_steps(cluster.events)
    assert (last.part, last.life.stage, last.life.waits_since) == (None, LifeStage.PLACED, 0)
    failed = cluster.record(
        f"pod/{one.uid}", payloads.BindFailed(**about, attempts=1, code=409, reason="Conflict", message="")
    )
    *_, last = life_steps(cluster.events)
    assert (last.part, last.life.waits_since) == (LifeEvent.BIND_FAILED, failed.position)


def test_pod_of_a_failed_eviction_stands_as_it_did_before() -> None:
    cluster, one = Cluster("c1"), pod("a", cpu=1)
    about: dict[str, Any] = {"uid": one.uid, "namespace": one.namespace, "name": one.name, "node": "n1"}
    cluster.add_pod(one)
    cluster.record(f"pod/{one.uid}", payloads.PodBound(**about))
    cluster.record(f"pod/{one.uid}", payloads.EvictionDecided(**about, cycle="c/2", group="g", reason="x"))
    failed = payloads.EvictionFailed(**about, code=429, reason="TooManyRequests", message="")
    cluster.record(f"pod/{one.uid}", failed)
    stages = [step.life.stage for step in life_steps(cluster.events)]
    assert stages == [LifeStage.WAITING, LifeStage.BOUND, LifeStage.LEAVING, LifeStage.BOUND]


def test_pod_seen_finished_twice_finishes_once_and_a_rejection_is_no_run() -> None:
    cluster = Cluster("c1")
    for name, reason in (("ran", ""), ("refused", "TopologyAffinityError")):
        failed = pod(name, cpu=1, node_name="n1", phase="Failed", reason=reason)
        cluster.add_pod(failed)
        cluster.add_pod(msgspec.structs.replace(failed, resource_version="2"))
    assert [step.part for step in life_steps(cluster.events)] == [LifeEvent.FINISHED, None, None, None]
