"""Notices of a log: which events give people to know what, and that they are the same however often they are made."""

from kai_projector.notices import Notice, NoticeKind, notices
from kaicore.rules.engine.config import Action, Backfill, EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import pod
from tests.given.cluster.hierarchy import queue
from tests.given.work.workloads import Workloads

_ALLOCATE = EngineConfig(actions=(Action.ALLOCATE,), backfill=Backfill.EASY, hold_after_us=0)
_HOUR_S, _S = 3600, 1_000_000


def notices_of(made: Workloads, *waits_s: int) -> list[tuple[Notice, str]]:
    """The notices of a log, each with its id."""
    state, found = ClusterState(made.state.cluster), []
    for event in made.events:
        found += [(one, one.as_cloud_event(event).id) for one in notices(state, event, waits_s=waits_s)]
        state.fold(event)
    return found


def test_a_gang_has_one_notice_when_its_minimum_runs_and_one_when_it_is_evicted() -> None:
    made = Workloads("c1").add_node("n", cpu=16, memory=64, gpu=4)
    made.record("queue/org", payloads.QueueObserved(queue("org")))
    made.record("queue/team", payloads.QueueObserved(queue("team", parent="org")))
    labels = {KAI_QUEUE_LABEL: "team", "user": "ada"}
    gang = made.gang("train", 3, least=2, cpu=1, memory=1, labels=labels, group={"queue": "team"})
    made.full(gang)
    made.full(made.add_pod(pod("alone", cpu=1, memory=1)))
    for one in gang[:2]:
        made.record(
            f"pod/{one.uid}",
            payloads.EvictionDecided(
                *(one.uid, one.namespace, one.name, "n", "default/3"),
                group="PodGroup.scheduling.sigs.k8s.io/default/train", reason="Reclaimed", preemptor="Job/b/urgent",
            ),
        )  # fmt: skip
    found = notices_of(made)
    assert [(one.kind, one.name) for one, _ in found] == [
        (NoticeKind.STARTED, "train"),
        (NoticeKind.STARTED, "alone"),
        (NoticeKind.EVICTED, "train"),
    ]
    started, _, evicted = (one for one, _ in found)
    assert (started.queues, started.user, started.namespace) == (("team", "org"), "ada", "default")
    assert "default/train (queue team) runs with 2 pods, on n; `kai why default/train-" in started.text
    assert evicted.text.endswith("is evicted from n: Reclaimed for Job/b/urgent; `kai why default/train-0`")
    assert len({name for _, name in found}) == 3
    assert notices_of(made) == found, "the same ids"


def test_work_that_waits_has_notices_when_its_promise_moves_or_passes_and_after_so_long() -> None:
    made = Workloads("c1")
    for name in "ab":
        made.add_node(name, cpu=64, memory=256, gpu=8)
    began = made.now // _S

    def alone(name: str, hours: int) -> None:
        spec = {"cpu": 1, "memory": 1, "gpu": 8, "active_deadline_s": hours * _HOUR_S, "created_at": began}
        made.add_pod(pod(name, **spec))

    alone("long", 4)
    alone("short", 2)
    made.cycle(_ALLOCATE)
    made.gang("gang", 2, cpu=1, memory=1, gpu=8, created_at=began, group={"created_at": began})
    made.cycle(_ALLOCATE)
    assert notices_of(made) == []
    (long,) = (entry.pod for entry in made.state.pods.values() if entry.pod.name == "long")
    made.delete_pod(long)
    made.cycle(_ALLOCATE)
    made.now += 5 * _HOUR_S * _S
    made.cycle(_ALLOCATE)
    made.cycle(_ALLOCATE)
    found = [one for one, _ in notices_of(made, _HOUR_S)]
    assert {one.name for one in found} == {"gang"}
    assert [one.kind for one in found][:3] == [NoticeKind.MOVED, NoticeKind.LATE, NoticeKind.WAITING]
    moved, late, waiting = found[:3]
    assert "sooner, pods ended before their time" in moved.text
    assert "its start was promised for 20" in late.text
    assert waiting.waited_s == _HOUR_S
    assert "has waited for 3600 s" in waiting.text
