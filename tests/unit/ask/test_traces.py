"""A pod's trace has a span for each step, with ids that follow from the events."""

from itertools import pairwise

import msgspec
from kaicore.analysis.life.traces import pod_trace
from kaicore.rules.events.envelope import span_of, trace_id, traceparent
from kaicore.rules.events.payloads import PodRejected

from tests.given.cluster.factory import Cluster, pod
from tests.given.logs.projected import story

EVENTS = story()


def test_a_pods_trace_has_its_steps_in_order_and_the_ids_that_travel_with_its_events() -> None:
    events = [event for event in EVENTS if event.stream == "pod/uid-a"]
    (part,) = pod_trace(events).resource_spans
    root, *steps = part["scopeSpans"][0]["spans"]
    assert [step["name"] for step in steps] == ["decide", "bind", "start", "run"]
    assert {step["parentSpanId"] for step in steps} == {root["spanId"]}
    assert all(before["endTimeUnixNano"] == after["startTimeUnixNano"] for before, after in pairwise(steps))
    placed = next(event for event in events if event.type == "PodPlaced")
    assert traceparent(placed) == f"00-{steps[0]['traceId']}-{steps[0]['spanId']}-01"
    assert steps[0]["links"][0]["traceId"] == trace_id("c1", placed.correlation)
    assert root["spanId"] == span_of(events[0])
    assert len({span["spanId"] for span in (root, *steps)}) == 5


def test_a_pod_that_its_kubelet_rejects_has_a_step_that_went_wrong() -> None:
    events = [event for event in EVENTS if event.stream == "pod/uid-c"]
    spans = pod_trace(events).resource_spans[0]["scopeSpans"][0]["spans"]
    assert [span["status"] for span in spans if span["name"] == "start"] == [{"code": 2}]
    assert spans[0]["status"] == {"code": 2}


def test_a_rejection_seen_in_the_status_first_is_no_run_that_failed() -> None:
    cluster, one = Cluster("c1"), pod("a", cpu=1, node_name="n1", phase="Failed", reason="TopologyAffinityError")
    cluster.add_pod(msgspec.structs.replace(one, node_name="", phase="Pending", reason=""))
    cluster.add_pod(one)
    reason = {"node": "n1", "reason": one.reason}
    cluster.record(f"pod/{one.uid}", PodRejected(uid=one.uid, namespace=one.namespace, name=one.name, **reason))
    root, *steps = pod_trace(cluster.events).resource_spans[0]["scopeSpans"][0]["spans"]
    assert [(step["name"], step["status"]) for step in steps] == [("start", {"code": 2})]
    assert root["status"] == {"code": 2}
