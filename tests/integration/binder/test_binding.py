"""Decisions made so, one after the other on a node, with one outcome each."""

import asyncio
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from kai_binder.projection.open_work import SNAPSHOT_SCHEMA, BinderProjection, PodTerms
from kai_binder.writes.attempt import outcome_unit
from kaicore.errors import LogUnavailable
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import quarantine
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.events.payloads import BindFailed, DifferenceFound, Payload, PodBound, PodPlaced
from kaicore.rules.model.placement import OBSERVED_ANNOTATION, PREDICTED_ANNOTATION

from tests.given.doubles.unreliable import UnreliableLog
from tests.given.logs.new_events import new_event
from tests.given.processes.service_task import PATIENCE_S, killed_process
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS, Api, Json, simulated
from tests.integration.binder.conftest import Scene, placement

BINDINGS = {"verb": "create", "resource": "pods", "subresource": "binding"}


async def pods(scene: Scene, *names: str) -> list[Json]:
    return [await scene.api.pod(name) for name in names]


async def test_a_decision_is_carried_out_with_its_prediction(scene: Scene) -> None:
    a, b = await pods(scene, "a", "b")
    binder = scene.start()
    await scene.decide((a, "n1"), predicted=placement(cpus=2))
    await scene.decide((b, "n2"))
    outcomes = await scene.outcomes(2)
    assert outcomes["a"] == PodBound(uid=a["metadata"]["uid"], namespace="default", name="a", node="n1", attempts=1)
    bound = await scene.api.get(f"{PODS}/a")
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {PREDICTED_ANNOTATION: '[{"zone":"node-0","amount":{"cpu":"2"}}]'}
    unaligned = await scene.api.get(f"{PODS}/b")
    assert (unaligned["spec"]["nodeName"], unaligned["metadata"].get("annotations")) == ("n2", None)
    assert binder.metric("binds_total", outcome="bound") == 2
    assert binder.metric("bind_seconds_count") == 2


async def test_placement_that_no_cycle_decided_is_not_carried_out(scene: Scene) -> None:
    forged, decided = await pods(scene, "forged", "decided")
    binder = scene.start()
    meta = forged["metadata"]
    payload = PodPlaced(meta["uid"], "default", "forged", "n1", "default/1", "class")
    event = new_event(f"pod/{meta['uid']}", payload=payload, subject="default/forged")
    await scene.log.append(scene.cluster, [Unit((event,))])
    await scene.decide((decided, "n1"))
    assert list(await scene.outcomes(1)) == ["decided"]
    assert "nodeName" not in (await scene.api.get(f"{PODS}/forged"))["spec"]
    assert binder.metric("refused_decisions_total") == 1


async def test_decision_that_makes_the_fold_raise_is_passed_over_and_the_rest_is_carried_out(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold = PodTerms.fold

    def folded(self: PodTerms, payload: Payload) -> None:
        if isinstance(payload, PodPlaced) and payload.name == "poison":
            raise ZeroDivisionError("terms")
        fold(self, payload)

    monkeypatch.setattr(PodTerms, "fold", folded)
    a, poison, b, c = await pods(scene, "a", "poison", "b", "c")
    for process, decisions in enumerate((((a, "n1"), (poison, "n1"), (b, "n1")), ((c, "n1"),))):
        # The next process knows nothing of it, and meets it in the log.
        monkeypatch.setattr(quarantine, "_of_readers", {})
        binder = scene.start()
        await scene.decide(*decisions)
        assert set(await scene.outcomes(2 + process)) == {"a", "b", "c"} - ({"c"} if not process else set())
        assert binder.health.ready
        report = binder.health.report()
        assert "[!]quarantine: cluster" in report
        assert "cannot be folded: PodPlaced on pod/" in report
        assert "by test: ZeroDivisionError: terms: it counts for nothing here" in report
        assert binder.registry.get_sample_value("kai_quarantined_events") == 1
        await binder.kill()
    assert "nodeName" not in (await scene.api.get(f"{PODS}/poison"))["spec"]


async def test_decisions_made_before_the_binder_started_are_carried_out(scene: Scene) -> None:
    for name in ("a", "b"):
        await scene.decide((await scene.api.pod(name), "n1"))
    scene.start()
    assert set(await scene.outcomes(2)) == {"a", "b"}


@pytest.mark.parametrize("concurrency", [1, 64])
async def test_pods_of_a_node_are_bound_in_the_order_of_decisions(scene: Scene, concurrency: int) -> None:
    # Every third binding takes long, some have to be tried again: no other pod overtakes them on their node.
    scene.api.faults(**BINDINGS, kind="latency", every=3, seconds=0.01)
    scene.api.faults(**BINDINGS, kind="internal-error", after=2, every=7, times=5)
    scene.api.faults(**BINDINGS, kind="lost-answer", after=5, every=9, times=3)
    made = await pods(scene, *(f"p{number}" for number in range(40)))
    decisions = [(pod, f"n{number % 4}") for number, pod in enumerate(made)]
    scene.start(concurrency=concurrency)
    await scene.decide(*decisions[:20])
    await scene.decide(*decisions[20:])
    await scene.outcomes(40)
    bound = sorted(await scene.api.items(PODS), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
    for node in ("n0", "n1", "n2", "n3"):
        expected = [pod["metadata"]["name"] for pod, chosen in decisions if chosen == node]
        assert [pod["metadata"]["name"] for pod in bound if pod["spec"]["nodeName"] == node] == expected


#: By the pod whose binding meets it: what goes wrong, and how often.
FAULTS = {
    "busy": ("too-many-requests", 2),
    "failing": ("internal-error", 3),
    "hanging-up": ("reset", 3),
    "losing-the-answer": ("lost-answer", 1),
    "conflicting-over-something-else": ("conflict", 2),
    "not-taking-our-credentials": ("unauthorized", 4),
}


async def test_an_api_server_that_fails_is_asked_again(scene: Scene) -> None:
    for name, (kind, times) in FAULTS.items():
        scene.api.faults(**BINDINGS, name=name, kind=kind, times=times)
    made = await pods(scene, *FAULTS)
    scene.start()
    await scene.decide(*((pod, f"n{number}") for number, pod in enumerate(made)))
    outcomes = await scene.outcomes(len(FAULTS))
    assert {(type(outcome), outcome.attempts > 1) for outcome in outcomes.values()} == {(PodBound, True)}
    nodes = [(await scene.api.get(f"{PODS}/{name}"))["spec"]["nodeName"] for name in FAULTS]
    assert nodes == [f"n{number}" for number in range(len(FAULTS))]


async def test_a_binding_that_is_never_taken_is_given_up(scene: Scene) -> None:
    scene.api.faults(**BINDINGS, name="a", kind="internal-error")
    a, b = await pods(scene, "a", "b")
    binder = scene.start(give_up_s=0.05)
    await scene.decide((a, "n1"), (b, "n1"))
    outcomes = await scene.outcomes(2)
    assert isinstance(outcomes["a"], BindFailed)
    assert (outcomes["a"].code, outcomes["a"].reason, outcomes["a"].gone) == (500, "InternalError", False)
    assert isinstance(outcomes["b"], PodBound)
    assert binder.metric("retries_total", code="500") == outcomes["a"].attempts


async def test_pod_that_is_bound_already_is_a_success(scene: Scene) -> None:
    a, b = await pods(scene, "a", "b")
    for name in ("a", "b"):
        await scene.api.post(f"{PODS}/{name}/binding", {"metadata": {"name": name}, "target": {"name": "n1"}})
    binder = scene.start()
    await scene.decide((a, "n1"), (b, "n2"))
    outcomes = await scene.outcomes(2)
    assert isinstance(outcomes["a"], PodBound)
    failed = await scene.failure("b", count=2)
    assert (failed.code, failed.reason, failed.gone) == (409, "Conflict", False)
    assert 'already assigned to node "n1"' in failed.message
    assert binder.metric("binds_total", outcome="already") == 1
    assert binder.metric("binds_total", outcome="failed") == 1


async def test_binding_of_a_pod_that_is_gone_fails_also_where_another_has_its_name(scene: Scene) -> None:
    gone, replaced = await pods(scene, "gone", "replaced")
    for name in ("gone", "replaced"):
        await scene.api.delete_pod(name)
    await scene.api.pod("replaced")
    scene.start()
    await scene.decide((gone, "n1"), (replaced, "n1"))
    outcomes = await scene.outcomes(2)
    assert [(outcomes[name].gone, outcomes[name].code) for name in ("gone", "replaced")] == [(True, 404), (True, 409)]
    assert "nodeName" not in (await scene.api.get(f"{PODS}/replaced"))["spec"]


async def test_a_pod_that_went_while_it_was_tried_has_no_outcome(scene: Scene) -> None:
    a, b = await pods(scene, "a", "b")
    scene.api.faults(**BINDINGS, name="a", kind="internal-error")
    binder = scene.start()
    await scene.decide((a, "n1"), (b, "n1"))
    await scene.api.delete_pod("a")
    await scene.deleted(a)
    assert set(await scene.outcomes(1)) == {"b"}
    assert binder.metric("binds_total", outcome="dropped") == 1


async def test_pod_that_is_placed_again_after_a_failure_is_bound(scene: Scene) -> None:
    (pod,) = await pods(scene, "a")
    scene.api.faults(**BINDINGS, kind="internal-error", times=8)
    scene.start(give_up_s=0.01)
    await scene.decide((pod, "n1"))
    await scene.failure()
    scene.api.server.faults.clear()
    await scene.decide((pod, "n2"))
    assert isinstance((await scene.outcomes(2))["a"], PodBound)
    assert (await scene.api.get(f"{PODS}/a"))["spec"]["nodeName"] == "n2"


async def test_two_binders_at_once(scene: Scene) -> None:
    scene.api.faults(**BINDINGS, kind="latency", every=2, seconds=0.002)
    made = await pods(scene, *(f"p{number}" for number in range(40)))
    first, second = scene.start(), scene.start()
    for start in range(0, 40, 10):
        await scene.decide(*((pod, f"n{index % 3}") for index, pod in enumerate(made[start : start + 10])))
    await scene.bound(40)
    for binder in (first, second):
        await binder.stop()
    await scene.outcomes(40)


async def test_of_two_outcomes_the_first_counts(scene: Scene) -> None:
    """Another binder had given up, and said so, when this one comes to its own end."""
    (pod,) = await pods(scene, "a")
    scene.api.faults(**BINDINGS, kind="latency", seconds=0.2)
    binder = scene.start()
    await scene.decide((pod, "n1"))
    await scene.api.struck()
    projection = BinderProjection()
    (*_, decision) = [projection.fold(event) for event in await scene.log.read(scene.cluster)]
    failed = BindFailed(pod["metadata"]["uid"], "default", "a", "n1", 500, "InternalError")
    await scene.log.append(scene.cluster, [outcome_unit(decision, failed, now=0)])  # type: ignore[arg-type]
    await scene.until_pod("a", lambda shown: shown["spec"].get("nodeName"))
    await binder.stop()
    assert (await scene.outcomes(1))["a"] == failed


async def test_binders_that_are_ended_anywhere_bind_each_pod_once(scene: Scene) -> None:
    scene.api.faults(**BINDINGS, kind="lost-answer", every=5)
    made = await pods(scene, *(f"p{number}" for number in range(60)))
    await scene.decide(*((pod, f"n{number % 5}") for number, pod in enumerate(made)))
    for wanted in range(10, 60, 10):
        binder = scene.start(concurrency=4, snapshot_events=7)
        await scene.outcomes(wanted)
        await binder.kill()
    scene.start()
    await scene.bound(60)


async def test_a_snapshot_is_only_a_cache(scene: Scene) -> None:
    a, b, c = await pods(scene, "a", "b", "c")
    binder = scene.start(snapshot_events=1)
    await scene.decide((a, "n1"))
    await scene.outcomes(1)
    await binder.stop()
    await scene.decide((b, "n1"))
    binder = scene.start()
    await scene.outcomes(2)
    await binder.stop()
    snapshot = await scene.log.load_snapshot(scene.cluster, name="binder", schema=SNAPSHOT_SCHEMA)
    assert snapshot is not None
    broken = type(snapshot)("binder", snapshot.position, SNAPSHOT_SCHEMA, b"nonsense")
    await scene.log.save_snapshot(scene.cluster, broken)
    await scene.decide((c, "n1"))
    scene.start()
    assert set(await scene.outcomes(3)) == {"a", "b", "c"}


async def test_an_api_server_that_is_away(log: PostgresLog, cluster_name: str, tmp_path: Path) -> None:
    async with simulated(data_dir=tmp_path) as api:
        port = int(api.server.http_url.rpartition(":")[2])
        scene = Scene(api, log, cluster_name)
        made = await pods(scene, "a", "b")
        binder = scene.start()
        await scene.decide((made[0], "n1"))
        await scene.outcomes(1)
    await scene.decide((made[1], "n1"))
    async with simulated(data_dir=tmp_path, http_port=port) as api:
        assert isinstance((await scene.outcomes(2))["b"], PodBound)
        assert (await api.get(f"{PODS}/b"))["spec"]["nodeName"] == "n1"
        await binder.stop()


class AwayForOutcomes(UnreliableLog):
    """Does not answer the first appends of outcomes: neither takes the first one, nor says that it took the second."""

    calls = 0

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        if not isinstance(units[0].events[0].payload, PodBound):
            return await super().append(cluster, units, expect=expect)
        self.calls += 1
        if self.calls == 1:
            raise LogUnavailable("away")
        outcomes = await super().append(cluster, units, expect=expect)
        if self.calls == 2:
            raise LogUnavailable("the answer was lost")
        return outcomes


async def test_outcome_waits_for_a_log_that_does_not_answer(api: Api, cluster_name: str) -> None:
    log = AwayForOutcomes()
    async with Scene(api, log, cluster_name) as scene:
        a, b = await pods(scene, "a", "b")
        await scene.decide((a, "n1"), (b, "n1"))
        binder = scene.start()
        assert set(await scene.outcomes(2)) == {"a", "b"}
        await binder.stop()
        assert set(await scene.outcomes(2)) == {"a", "b"}
        assert log.calls > 2


async def test_observed_placements_are_written_on_pods(scene: Scene) -> None:
    a, b, c = await pods(scene, "a", "b", "c")
    await scene.observe(a, cpus=1)
    await scene.observe(a, cpus=2)
    await scene.observe(b, source="annotation")
    await scene.api.delete_pod("c")
    await scene.api.pod("c")
    await scene.observe(c)
    binder = scene.start()
    text = '[{"zone":"node-0","amount":{"cpu":"2"}}]'
    await scene.until_pod("a", lambda pod: pod["metadata"].get("annotations") == {OBSERVED_ANNOTATION: text})
    await scene.observe(a, cpus=3)
    await scene.until_pod("a", lambda pod: '"3"' in pod["metadata"]["annotations"][OBSERVED_ANNOTATION])
    await binder.stop()
    for name in ("b", "c"):
        assert "annotations" not in (await scene.api.get(f"{PODS}/{name}"))["metadata"]
    assert binder.metric("side_writes_total", kind="annotation", result="refused") == 1
    assert binder.metric("waiting_side_writes") == 0


#: Snapshots so often that a kill meets some.
_FLAGS = ("--concurrency", "4", "--snapshot-events", "20")


@pytest.mark.slow
async def test_binders_that_are_killed_while_they_bind_lose_no_decision(
    api: Api, log: EventLog, cluster_name: str, database_url: str, tmp_path: Path
) -> None:
    scene = Scene(api, log, cluster_name)
    # So slow that a kill always hits bindings under way, taken but not answered among them.
    api.faults(**BINDINGS, kind="latency", seconds=0.01)
    api.faults(**BINDINGS, kind="lost-answer", every=4)
    made = await pods(scene, *(f"p{number}" for number in range(30)))
    await scene.decide(*((pod, f"n{number % 6}") for number, pod in enumerate(made)))
    for wanted in (10, 20):
        async with killed_process("binder", api, cluster_name, database_url, tmp_path, *_FLAGS):
            await scene.outcomes(wanted)
    async with killed_process("binder", api, cluster_name, database_url, tmp_path, *_FLAGS) as process:
        await scene.bound(30)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0
    bound = sorted(await api.items(PODS), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
    for node in range(6):
        names = [pod["metadata"]["name"] for pod in bound if pod["spec"]["nodeName"] == f"n{node}"]
        assert names == [f"p{number}" for number in range(node, 30, 6)]


async def test_decision_that_is_lost_in_memory_is_found_and_carried_out(scene: Scene) -> None:
    a, b = await pods(scene, "a", "b")
    scene.api.faults(**BINDINGS, kind="internal-error", times=1_000_000)
    binder = scene.start(check_s=0.01)
    await scene.decide((a, "n1"))
    await scene.api.struck()
    binder._binder._projection.tasks.clear()
    scene.api.server.faults.clear()

    async def found() -> list[Event]:
        await scene.decide((b, "n2"))
        return await scene.log.read(scene.cluster, where=Filter(types=("DifferenceFound",)))

    (event, *_) = await eventually(found, every_s=0.02)
    difference = decode_payload(event)
    assert isinstance(difference, DifferenceFound)
    assert (difference.check, difference.parts[0].split("/")[1]) == ("binder", "tasks")
    # Each decision about b has an outcome of its own.
    await eventually(lambda: scene.outcomes(2), lambda outcomes: set(outcomes) == {"a", "b"})
