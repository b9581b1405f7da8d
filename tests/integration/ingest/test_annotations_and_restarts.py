"""Ingest on Postgres: order of reports, annotations, restarts, readiness and tokens."""

from collections.abc import Sequence
from typing import Any

import pytest
from kai_ingest.authentication import NODE_NAME, KubernetesTokens, ReviewedToken, ReviewedUser
from kai_ingest.projection import IngestProjection
from kaicore.errors import LogUnavailable
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads, quarantine
from kaicore.rules.events.envelope import Event, Unit, UnitOutcome
from kaicore.rules.model.placement import OBSERVED_ANNOTATION, ContainerPlacement, ZoneAmount

from tests.given.cluster.factory import amounts, pod, topology
from tests.given.processes.ingest_service import Facts, Observations, RunningIngest, running_ingest
from tests.given.work.ingest_facts import annotated, decided, gone, seen
from tests.given.work.reports import pod_report, report


async def test_an_old_report_does_not_undo_a_newer_one(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("a"))
    new, old = pod_report("a", node_1={"cpu": 1}), pod_report("a", node_0={"cpu": 1})
    assert (await ingest.post(report(new, sequence=5)))[0] == 200
    status, answer = await ingest.post(report(old, sequence=4))
    assert (status, answer["status"]) == (409, "superseded")
    assert (await ingest.post(report(new, sequence=1, instance="two")))[0] == 200
    assert (await ingest.post(report(old, sequence=6)))[0] == 409
    assert await observed.summary() == ["a node-1:cpu=1"]
    assert ingest.counted("reports_total", result="superseded") == 2


async def test_a_report_before_the_watchers_fact_is_taken_when_it_is_repeated(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    content = pod_report("a", node_0={"cpu": 1000})
    _, answer = await ingest.post(report(content))
    assert [(one["namespace"], one["name"]) for one in answer["unknown"]] == [("default", "a")]
    await facts.append(seen("a"))
    _, answer = await ingest.post(report(content, sequence=2))
    assert answer["unknown"] == []
    assert await observed.summary() == ["a node-0:cpu=1000"]


async def test_a_pod_made_anew_is_another_pod(ingest: RunningIngest, facts: Facts, observed: Observations) -> None:
    content = pod_report("a", node_0={"cpu": 1000})
    await facts.append(seen("a", uid="u1"))
    await ingest.post(report(content, observed_at=5_000_000))
    await facts.append(gone("a", "u1"), seen("a", uid="u2", created_at=6))
    _, answer = await ingest.post(report(content, observed_at=6_500_000, sequence=2))
    assert "observed_at: 6500000: before pod u2 was there" in answer["unknown"][0]["detail"]
    _, answer = await ingest.post(report(content, observed_at=7_000_000, sequence=3))
    assert answer["unknown"] == []
    assert [payload.uid for payload in await observed.payloads()] == ["u1", "u2"]


async def test_that_a_pod_holds_nothing_is_recorded_where_that_is_news(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(seen("plain"), *decided(pod("surprise", cpu=1), "n1"), seen("shrunk"))
    await ingest.post(report(pod_report("shrunk", node_0={"cpu": 1000})))
    empty = [pod_report(name, node_0={}) for name in ("plain", "surprise", "shrunk")]
    for sequence in (2, 3):
        await ingest.post(report(*empty, sequence=sequence, observed_at=10_000_000_000 + sequence))
    assert await observed.summary() == ["shrunk node-0:cpu=1000", "shrunk", "surprise"]


async def test_time_from_binding_to_observation_is_measured(ingest: RunningIngest, facts: Facts) -> None:
    await facts.append(*decided(pod("a", cpu=1), "n1"))
    for sequence, zone in enumerate(("node_0", "node_1"), start=1):
        await ingest.post(report(pod_report("a", **{zone: {"cpu": 1000}}), observed_at=2**60, sequence=sequence))
    assert ingest.counted("observation_lag_seconds_count") == 1


# Annotations.

RECORD = '[{"zone":"node-0","amount":{"cpu":"1"}}]'


async def test_an_annotation_is_an_observation(ingest: RunningIngest, facts: Facts, observed: Observations) -> None:
    await facts.append(annotated("a", RECORD))
    (payload,) = await observed.reach(1)
    assert (payload.source, payload.node, payload.uid) == ("annotation", "n1", "uid-a")
    assert payload.placement.containers == (ContainerPlacement("", zones=(ZoneAmount("node-0", {"cpu": 1000}),)),)
    await facts.append(
        annotated("a", RECORD, labels={"x": "y"}), annotated("a", '[{"zone":"node-1","amount":{"cpu":1}}]')
    )
    await observed.reach(2)
    assert await observed.summary() == ["a node-0:cpu=1000", "a node-1:cpu=1000"]
    assert (await observed.events())[0].cause is not None


async def test_an_annotation_never_overrides_an_exporter(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    """Not our own record, which comes back through the pod, and no other."""
    await facts.append(seen("a"))
    await ingest.post(report(pod_report("a", node_0={"cpu": 1000})))
    other = '[{"zone":"node-1","amount":{"cpu":"1"}}]'
    await facts.append(annotated("a", RECORD), annotated("a", other), annotated("b", RECORD))
    await observed.reach(2)
    assert await observed.summary() == ["a node-0:cpu=1000", "b node-0:cpu=1000"]
    await ingest.post(report(pod_report("b", node_1={"cpu": 1000}), sequence=2))
    assert (await observed.summary())[2:] == ["b node-1:cpu=1000"], "but an exporter overrides an annotation"


async def test_malformed_annotations_are_named_once_and_ignored(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    texts = ["[", "{}", '[{"zone":"node-0","amount":{"cpu":"-1"}}]', '[{"zone":"","amount":{}}]', "[" * 9999]
    for number, text in enumerate(texts):
        await facts.append(annotated(f"bad-{number}", text), annotated(f"bad-{number}", text, labels={"x": "y"}))
    await facts.append(annotated("empty", ""), annotated("good", RECORD))
    await observed.reach(1)
    assert await observed.summary() == ["good node-0:cpu=1000"]
    fields = [f"Pod default/bad-{number}: metadata.annotations[{OBSERVED_ANNOTATION}" for number in range(len(texts))]
    assert [line.startswith(field) for line, field in zip(sorted(ingest.lines()), fields, strict=True)] == [True] * 5
    assert ingest.counted("refused_total", reason="annotation") == len(texts)


async def test_annotation_about_zones_that_come_later_is_recorded_then(
    ingest: RunningIngest, facts: Facts, observed: Observations
) -> None:
    await facts.append(
        ("nrt/n1", payloads.TopologyObserved(topology("n1"))), annotated("a", RECORD), annotated("b", RECORD, node="n2")
    )
    await observed.reach(1)
    await facts.append(("nrt/n1", payloads.TopologyObserved(topology("n1", amounts(cpu=1)))))
    await observed.reach(2)
    assert await observed.summary() == ["b node-0:cpu=1000", "a node-0:cpu=1000"]


# Restarts and outages.


@pytest.mark.parametrize("snapshots", [True, False])
async def test_a_restart_knows_what_was_recorded(
    log: PostgresLog, cluster_name: str, facts: Facts, observed: Observations, snapshots: bool
) -> None:
    await facts.append(seen("a"), seen("b"), annotated("c", RECORD))
    async with running_ingest(log, cluster_name, snapshot_events=1 if snapshots else 10**9) as first:
        await first.post(report(pod_report("a", node_0={"cpu": 1000})))
        await observed.reach(2)
        if not snapshots:
            first.ingest.save_snapshot = _nothing  # type: ignore[method-assign]
    await facts.append(seen("d"))
    async with running_ingest(log, cluster_name) as second:
        names = [pod_report(name, node_0={"cpu": 1000}) for name in "abd"]
        await second.post(report(*names, instance="two"))
        assert second.counted("unchanged_pods_total") == 1
        await facts.append(annotated("e", RECORD))
        await observed.reach(5)
        assert sorted(await observed.summary()) == [f"{name} node-0:cpu=1000" for name in "abcde"]
        assert second.lines() == []


async def _nothing() -> None:
    pass


class _AnswersLost:
    """A log that appends and loses its answers."""

    def __init__(self, log: PostgresLog) -> None:
        self._log = log
        self.losing = True

    async def append(self, cluster: str, units: Sequence[Unit], **kwargs: Any) -> list[UnitOutcome]:
        outcomes = await self._log.append(cluster, units, **kwargs)
        if self.losing:
            raise LogUnavailable("the answer was lost")
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


async def test_an_answer_that_was_lost_is_no_second_observation(
    log: PostgresLog, cluster_name: str, facts: Facts, observed: Observations
) -> None:
    unreliable: Any = _AnswersLost(log)
    await facts.append(seen("a"))
    async with running_ingest(unreliable, cluster_name) as ingest:
        content = pod_report("a", node_0={"cpu": 1000})
        status, answer = await ingest.post(report(content))
        assert (status, answer["error"]) == (503, "the answer was lost")
        unreliable.losing = False
        assert (await ingest.post(report(content, sequence=2)))[0] == 200
    assert await observed.summary() == ["a node-0:cpu=1000"]


async def test_until_the_log_is_read_reports_wait(log: PostgresLog, cluster_name: str) -> None:
    async with running_ingest(log, cluster_name, load=False) as ingest:
        status, answer = await ingest.post(report())
        assert (status, answer["error"]) == (503, "the log is still being read: not yet")
        assert (await ingest.get("/readyz"))[0] == 503
        assert (await ingest.get("/healthz"))[0] == 200


async def test_health_and_metrics_are_served(ingest: RunningIngest, facts: Facts) -> None:
    await facts.append(seen("a"))
    await ingest.post(report(pod_report("a", node_0={"cpu": 1000})))
    assert (await ingest.get("/readyz"))[0] == 200
    status, text = await ingest.get("/metrics")
    assert status == 200
    for line in ("kai_ingest_projection_pods 1.0", "kai_ingest_reporting_nodes 1.0", "kai_ingest_unobserved_pods 0.0"):
        assert line in text
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert (await ingest.get(path))[0] == 404


async def test_report_with_a_reviewed_token_is_taken(log: PostgresLog, cluster_name: str) -> None:
    async def review(token: str, audiences: Sequence[str]) -> ReviewedToken:
        if token == "down":
            raise LogUnavailable("no answer")
        name = "system:serviceaccount:kai-system:kai-exporter"
        return ReviewedToken(token != "bad", "", ReviewedUser(name, {NODE_NAME: [token]}), list(audiences))

    authenticator = KubernetesTokens(
        review, audience="a", service_accounts=frozenset({"kai-system:kai-exporter"}), clock=lambda: 0.0
    )
    async with running_ingest(log, cluster_name, authenticator=authenticator) as ingest:
        answers = [(await ingest.post(report(), token=token))[0] for token in ("n1", "n2", "bad", "down")]
    assert answers == [200, 403, 401, 503]


async def test_event_that_makes_the_fold_raise_is_passed_over_and_reports_are_taken(
    log: PostgresLog,
    cluster_name: str,
    facts: Facts,
    observed: Observations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observe = IngestProjection._observed

    def observing(self: IngestProjection, payload: payloads.PodObserved, event: Event) -> None:
        observe(self, payload, event)
        if payload.pod.name == "poison":
            raise ZeroDivisionError("pods")

    monkeypatch.setattr(IngestProjection, "_observed", observing)
    await facts.append(seen("a"))
    for process, name in enumerate("ab"):
        monkeypatch.setattr(quarantine, "_of_readers", {})
        async with running_ingest(log, cluster_name) as ingest:
            if not process:
                await facts.append(seen("poison"), seen("b"))
            _, answer = await ingest.post(report(pod_report(name, node_0={"cpu": 1000}), sequence=1 + process))
            assert answer["unknown"] == []
            assert list(ingest.ingest.projection.pods) == ["uid-a", "uid-b"]
            status, said = await ingest.get("/readyz")
            assert status == 200
            # The first one's snapshot is beyond it.
            assert ("cannot be folded: PodObserved on pod/uid-poison" in said) == (process == 0)
            assert f"kai_quarantined_events {1 - process}.0" in (await ingest.get("/metrics"))[1]
    assert len(await observed.summary()) == 2
