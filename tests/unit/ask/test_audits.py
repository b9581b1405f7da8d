"""Audits of placements, nodes and groups on recorded logs and small ones, held against the folded state."""

import asyncio
from collections.abc import Iterable
from functools import cache

import pytest
from kai_cli.history.audit import node_text
from kaicore.analysis.ask.audits.audit_answers import GroupAudit, Span
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import UnknownMoment, UnknownSubject
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.port import Head
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.rules.state.cluster_state import ClusterState

from tests.given.cluster.factory import amounts, node, pod, topology
from tests.given.logs.ledger import Ledger
from tests.given.logs.projected import projected
from tests.given.recorded import DEMO, read_log

_HOUR_US = 3600 * 1_000_000


def inquiry_into(events: Iterable[Event]) -> tuple[Inquiry, str]:
    every = list(events)
    log, cluster = MemoryLog(lambda: 0), every[0].cluster
    inside = log._cluster(cluster)
    inside.events += every
    inside.tail.head = Head.at(every[-1])
    return Inquiry(log), cluster


@cache
def recorded(name: str) -> list[Event]:
    return read_log(DEMO / f"{name}.jsonl.xz")


@pytest.mark.parametrize("name", ["demo", "demo-blind"])
def test_holdings_of_every_node_are_those_of_the_folded_state_at_any_position(name: str) -> None:
    events = recorded(name)
    inquiry, cluster = inquiry_into(events)
    nodes = sorted({event.subject for event in events if event.type == "NodeObserved"})
    audits = {one: asyncio.run(inquiry.audit_node(cluster, one, Span())) for one in nodes}
    state = ClusterState(cluster)
    for event in events:
        state.fold(event)
        if event.position % 23 and event.position != len(events):
            continue
        for one, audit in audits.items():
            holding = {
                held.uid for held in audit.holdings if held.since <= event.position < (held.until or len(events) + 1)
            }
            assert holding == set(state.charges.on_node.get(one, ())), (event.position, one)
    rejected = [event for event in events if event.type == "PodRejected"]
    assert sum(len(audit.rejections) for audit in audits.values()) == len(rejected)


def test_a_later_beginning_leaves_out_what_had_ended_by_then() -> None:
    inquiry, cluster = inquiry_into(recorded("demo"))
    whole = asyncio.run(inquiry.audit_node(cluster, "gpu-0", Span()))
    part = asyncio.run(inquiry.audit_node(cluster, "gpu-0", Span(since="830")))
    assert [one for one in whole.holdings if not one.until or one.until >= 830] == part.holdings
    first = part.holdings[0]
    assert first.decided is not None
    assert (first.decided.cycle, first.decided.engine) == ("default/2", "12")
    assert first.decided.cycle_position < first.decided.position == first.since
    assert [one.provenance for one in first.records] == ["predicted", "observed"]


def test_every_decision_of_a_group_is_told_with_its_rules_and_nothing_of_others() -> None:
    events = recorded("demo")
    inquiry, cluster = inquiry_into(events)
    audit = asyncio.run(inquiry.audit_group(cluster, "default", "gpu-nic-cpu-locality", Span()))
    decided = [event for event in events if event.type in {"PodPlaced", "EvictionDecided"}]
    own = [event.position for event in decided if event.subject.startswith("default/gpu-nic-cpu-locality-")]
    assert [one.position for one in audit.events if one.what in {"PodPlaced", "EvictionDecided"}] == own
    assert all(one.decided is not None and one.decided.config == audit.configs[0] for one in _decisions(audit))
    (evicted,) = (one for one in audit.events if one.what == "EvictionDecided")
    assert (evicted.reason, evicted.preemptor) == ("Consolidated", "Job.batch/default/three-of-four-gpus")
    assert audit.engines == ["12"]
    other = asyncio.run(inquiry.audit_group(cluster, "default", "three-of-four-gpus", Span()))
    assert [one.position for one in other.evicted_for_it] == [evicted.position]


def _decisions(audit: GroupAudit) -> list:  # type: ignore[type-arg]
    return [one for one in audit.events if one.decided is not None]


def placement(zone: str, provenance: Provenance = Provenance.PREDICTED, *, gpu: int = 1) -> Placement:
    return Placement(provenance, (ContainerPlacement("main", (zone,), (ZoneAmount(zone, amounts(gpu=gpu)),)),))


class Story(Ledger):
    """Nodes and pods with observations by hand."""

    def __init__(self) -> None:
        super().__init__(hashes=True)
        zone = amounts(cpu=16, memory=64, gpu=4)
        for name in ("n0", "n1"):
            self.record(f"node/{name}", payloads.NodeObserved(node(name, cpu=32, memory=128, gpu=8)), subject=name)
            self.record(f"nrt/{name}", payloads.TopologyObserved(topology(name, zone, zone)), subject=name)

    def place(self, name: str, on: str) -> None:
        self.see(name)
        ids = (f"uid-{name}", "default", name, on)
        self._about(name, payloads.PodPlaced(*ids, "s/1", "class", placement("node-0")))
        self.record(f"node/{on}", payloads.NodeCharged(on, "s/1", (ids[0],)))
        self._about(name, payloads.PodBound(*ids))
        self.see(name, node_name=on, phase="Running")

    def see(self, name: str, **fields: object) -> None:
        self._about(name, payloads.PodObserved(pod(name, cpu=1, gpu=1, **fields)))

    def observe(self, name: str, on: str, zone: str, *, gpu: int = 1) -> None:
        observed = placement(zone, Provenance.OBSERVED, gpu=gpu)
        self._about(name, payloads.PlacementObserved(f"uid-{name}", "default", name, on, observed))

    def miss(self, name: str, on: str, zone: str) -> None:
        self.observe(name, on, zone)
        observed = placement(zone, Provenance.OBSERVED)
        missed = payloads.PredictionMissed(
            f"uid-{name}", "default", name, on, "single-numa-node", "zones", placement("node-0"), observed
        )
        self._about(name, missed)

    def _about(self, name: str, payload: payloads.Payload) -> None:
        self.record(f"pod/uid-{name}", payload, subject=f"default/{name}")


@pytest.fixture
def story() -> Story:
    """On n0 one pod as predicted and one on another zone; on n1 one that nobody observes, hours later."""
    shown = Story()
    shown.place("good", "n0")
    shown.observe("good", "n0", "node-0")
    shown.place("bad", "n0")
    shown.miss("bad", "n0", "node-1")
    shown.place("dark", "n1")
    shown.now += 2 * _HOUR_US
    shown.see("good", node_name="n0", phase="Succeeded")
    return shown


def test_agreement_is_told_by_node_policy_cause_and_hour(story: Story) -> None:
    inquiry, cluster = inquiry_into(story)
    audit = asyncio.run(inquiry.audit_placements(cluster, Span()))
    assert (audit.counts.predicted, audit.counts.observed, audit.counts.exact, audit.counts.different) == (3, 2, 1, 1)
    n0, n1 = audit.nodes
    assert (n0.counts.exact, n0.counts.different, n0.unexplained, n0.silent) == (1, 1, 1, False)
    assert (n1.counts.predicted, n1.counts.observed, n1.unobserved, n1.disagrees) == (1, 0, 1, False)
    assert (audit.silent, audit.disagreeing, audit.ok) == (["n1"], ["n0"], False)
    (miss,) = audit.misses
    assert (miss.node, miss.policy, miss.cause, miss.count, miss.explained) == (
        "n0",
        "single-numa-node",
        "zones",
        1,
        False,
    )
    assert [one.policy for one in audit.policies] == ["single-numa-node"]
    assert [one.counts.predicted for one in audit.hours] == [3]
    alone = asyncio.run(inquiry.audit_placements(cluster, Span(), node="n1"))
    assert (alone.counts.predicted, alone.silent, alone.disagreeing) == (1, ["n1"], [])


def test_accuracy_is_counted_once_for_audit_counters_and_read_model_in_the_hour_of_the_decision() -> None:
    shown = Story()
    shown.now = shown.now // _HOUR_US * _HOUR_US
    decided = shown.now
    for name in ("corrected", "disbelieved", "unseen"):
        shown.place(name, "n0")
    shown.observe("corrected", "n0", "node-1")
    shown.now += _HOUR_US
    shown.observe("corrected", "n0", "node-0")
    # The pod asks for one GPU.
    shown.observe("disbelieved", "n0", "node-0", gpu=3)
    shown.see("corrected", node_name="n0", phase="Succeeded")
    inquiry, cluster = inquiry_into(shown)
    audit = asyncio.run(inquiry.audit_placements(cluster, Span()))
    assert [(one.hour, one.counts) for one in audit.hours] == [(time_text(decided), audit.counts)]
    counts = audit.counts
    assert (counts.predicted, counts.observed, counts.exact, counts.same_zones, counts.different) == (3, 1, 1, 0, 0)
    assert asyncio.run(inquiry.cluster(cluster)).tally["agreement"] == {"exact": 1}
    hours = {at: (row.agreed, row.contradicted) for at, row in projected(shown.events).decisions.items()}
    assert {at: agreed for at, agreed in hours.items() if any(agreed)} == {decided: (1, 0)}


def test_an_audit_of_a_span_leaves_out_observations_of_what_was_placed_before() -> None:
    shown = Story()
    shown.place("before", "n0")
    first = len(shown.events) + 1
    shown.place("inside", "n1")
    shown.observe("before", "n0", "node-0")
    shown.observe("inside", "n1", "node-0")
    inquiry, cluster = inquiry_into(shown)
    audit = asyncio.run(inquiry.audit_placements(cluster, Span(since=str(first))))
    assert (audit.counts.predicted, audit.counts.observed, audit.counts.exact) == (1, 1, 1)
    assert {one.node: one.counts.observed for one in audit.nodes} == {"n0": 0, "n1": 1}


def test_only_what_was_counted_since_the_beginning_of_the_span_is_told(story: Story) -> None:
    inquiry, cluster = inquiry_into(story)
    end = len(story.events)
    audit = asyncio.run(inquiry.audit_placements(cluster, Span(since=str(end))))
    # The miss was open before, and found its cause by the passing of time in the span.
    assert (audit.counts.predicted, audit.counts.observed) == (0, 0)
    assert [one.count for one in audit.misses] == [1]
    before = asyncio.run(inquiry.audit_placements(cluster, Span(until=str(end - 1))))
    assert (before.open_misses, before.misses, before.silent) == (1, [], [])


def test_time_in_which_nothing_told_what_a_pod_held_is_a_gap() -> None:
    shown = Story()
    shown.see("foreign", node_name="n0", phase="Running")
    shown.record("node/n0", payloads.NodeCharged("n0", "", ("uid-foreign",)))
    since = len(shown.events) - 1
    shown.place("ours", "n0")
    shown.observe("foreign", "n0", "node-1")
    inquiry, cluster = inquiry_into(shown)
    audit = asyncio.run(inquiry.audit_node(cluster, "n0", Span()))
    (gap,) = audit.gaps
    assert (gap.pod, gap.since, gap.until) == ("default/foreign", since, len(shown.events))
    foreign, ours = audit.holdings
    assert (foreign.decided, foreign.records[0].zones) == (None, {"node-1": {"nvidia.com/gpu": "1"}})
    assert ours.records[0].provenance == "predicted"


def test_audit_of_a_node_says_when_it_was_suspect_by_which_events_and_why_no_more() -> None:
    shown = Story()
    for failures, reason in (((7, 9, 11), "Probed"), ((20,), "FollowsWork")):
        found = payloads.NodeSuspected("n0", "devices", "c", failures, probe_after_us=1, problems=("Xid",))
        shown.record("suspect/n0", found)
        shown.record("suspect/n0", payloads.NodeCleared("n0", "devices", reason, "c"))
    inquiry, cluster = inquiry_into(shown)
    audit = asyncio.run(inquiry.audit_node(cluster, "n0", Span()))
    assert [one.partition("Z: ")[2] for one in audit.suspicions] == [
        "suspect for devices (failures: events 7, 9, 11; it reports Xid)",
        "cleared for devices: its probe lasted",
        "suspect for devices (failures: events 20; it reports Xid)",
        "cleared for devices: the failures follow the work, not the node",
    ]
    assert audit.suspicions[-1] in node_text(audit)


@pytest.mark.parametrize(
    ("span", "problem"),
    [
        (Span(since="9999"), "beyond the log's end"),
        (Span(since="9", until="3"), "the range is empty"),
        (Span(until="yesterday"), "is no moment of a log"),
    ],
)
def test_a_part_that_the_log_does_not_have_is_refused(story: Story, span: Span, problem: str) -> None:
    inquiry, cluster = inquiry_into(story)
    for question in (
        inquiry.audit_placements(cluster, span),
        inquiry.audit_node(cluster, "n0", span),
        inquiry.audit_group(cluster, "default", "good", span),
    ):
        with pytest.raises(UnknownMoment, match=problem):
            asyncio.run(question)


def test_names_that_the_log_has_never_heard_of_are_answered_with_a_close_one(story: Story) -> None:
    inquiry, cluster = inquiry_into(story)
    for question, close in (
        (inquiry.audit_placements(cluster, Span(), node="n00"), "no node n00; did you mean 'n0'"),
        (inquiry.audit_node(cluster, "n00", Span()), "no node n00; did you mean 'n0'"),
        (inquiry.audit_group(cluster, "default", "darkk", Span()), "did you mean 'default/dark'"),
    ):
        with pytest.raises(UnknownSubject, match=close):
            asyncio.run(question)
