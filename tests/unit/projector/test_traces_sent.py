"""Spans that events end are sent to a receiver of OpenTelemetry traces, each once; gangs are parents of their pods."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kai_projector import traces
from kai_projector.main import ProjectorMetrics
from kai_projector.traces import MOST_AGE_US, OtlpSender, encoded, ended_spans, read_headers, traces_url
from kaicore.errors import ConfigurationError
from kaicore.interpreter import version
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.service.logs import get_logger
from prometheus_client import CollectorRegistry

from tests.given.cluster.factory import amounts, pod
from tests.given.logs.recorded_history import log_of
from tests.given.processes.waiting import eventually
from tests.given.servers.otel_collector import collecting, collector
from tests.given.servers.ports import free_port
from tests.given.servers.trace_receiver import trace_receiver
from tests.given.work.workloads import Workloads


@pytest.fixture
def shown() -> Workloads:
    """A gang of two pods and a pod of its own come to run."""
    made = Workloads("c1").add_node("n", amounts(cpu=16, memory=64, gpu=4))
    gang, alone = made.gang("train", 2, cpu=2, memory=4), made.add_pod(pod("alone", cpu=1, memory=1))
    made.full(gang, alone)
    made.see(alone, phase="Succeeded")
    return made


async def spans_of(made: Workloads, *, batch: int, now: int) -> list[dict[str, Any]]:
    log, state = await log_of(made.events), ClusterState("c1")
    spans = []
    while page := await log.read("c1", after=state.position, limit=batch):
        state.fold_all(page)
        spans += await ended_spans(log, state, page, now=now)
    return spans


@pytest.mark.parametrize("batch", [1, 7, 1000])
async def test_each_span_is_sent_once_however_events_come_and_a_gang_is_the_parent_of_its_pods(
    shown: Workloads, batch: int
) -> None:
    spans = await spans_of(shown, batch=batch, now=shown.now)
    assert len({(span["traceId"], span["spanId"]) for span in spans}) == len(spans)
    by_name = {span["name"]: span for span in spans if "parentSpanId" not in span}
    gang, root = by_name["gang PodGroup.scheduling.sigs.k8s.io/default/train"], by_name["pod default/train-0"]
    ways = [span for span in spans if span.get("parentSpanId") == gang["spanId"]]
    assert {span["name"] for span in ways} == {"pod default/train-0", "pod default/train-1"}
    assert {span["traceId"] for span in ways} == {gang["traceId"]}
    assert {span["links"][0]["traceId"] for span in ways} >= {root["traceId"]}
    assert gang["traceId"] in [link["traceId"] for link in root["links"]]
    assert {"k8s.pod.name": "train-0", "k8s.namespace.name": "default", "k8s.node.name": "n"}.items() <= (
        attributes(next(span for span in ways if span["name"] == "pod default/train-0")).items()
    )
    assert attributes(gang).keys() == {"kai.event", "kai.position", "kai.group"}, "of no pod"
    steps = [span["name"] for span in spans if span.get("parentSpanId") == by_name["pod default/alone"]["spanId"]]
    assert steps == ["decide", "bind", "start", "run"]


def attributes(span: dict[str, Any]) -> dict[str, str]:
    return {one["key"]: one["value"]["stringValue"] for one in span["attributes"]}


async def test_what_ended_long_ago_is_not_sent(shown: Workloads) -> None:
    assert await spans_of(shown, batch=1000, now=shown.now + MOST_AGE_US + 1_000_000) == []


def _sender(url: str, headers: Mapping[str, str], metrics: ProjectorMetrics) -> OtlpSender:
    return OtlpSender(url, headers, sent=metrics.sent_spans, dropped=metrics.dropped_spans, logger=get_logger())


async def test_a_receiver_gets_all_spans_also_when_it_was_away_and_what_it_refuses_is_counted(
    shown: Workloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_RETRY_S", 0.01)
    spans = await spans_of(shown, batch=1000, now=shown.now)
    registry = CollectorRegistry()
    async with trace_receiver() as receiver:
        receiver.refusals = [503, 429]
        url, headers = traces_url(receiver.url), read_headers("authorization=Bearer x, tenant=a")
        sender = _sender(url, headers, ProjectorMetrics(registry=registry))
        sender.take(encoded("c1", spans), len(spans))
        sending = asyncio.create_task(sender.run())
        await eventually(lambda: registry.get_sample_value("kai_projector_spans_sent_total") == len(spans))
        receiver.refusals = [400]
        sender.take(encoded("c1", spans[:2]), 2)
        await eventually(lambda: registry.get_sample_value("kai_projector_spans_dropped_total") == 2)
        sending.cancel()
    assert set(receiver.spans) == {span["name"] for span in spans}
    start = next(span for span in spans if span["name"] == "gang PodGroup.scheduling.sigs.k8s.io/default/train")
    taken = receiver.spans[start["name"]]
    assert (taken.trace_id.hex(), taken.span_id.hex()) == (start["traceId"], start["spanId"])
    assert str(taken.end_time_unix_nano) == start["endTimeUnixNano"]
    assert (receiver.headers[0]["authorization"], receiver.headers[0]["tenant"]) == ("Bearer x", "a")


@pytest.mark.skipif(not collector(), reason="no OpenTelemetry Collector here (KAI_TEST_COLLECTOR names one)")
async def test_a_collector_has_every_span_as_it_is_meant(shown: Workloads, tmp_path: Path) -> None:
    spans = await spans_of(shown, batch=7, now=shown.now)
    with collecting(tmp_path, port=free_port(), ready=is_open) as collected:
        metrics = ProjectorMetrics(registry=CollectorRegistry())
        sender = _sender(traces_url(collected.url), {}, metrics)
        for span in spans:
            sender.take(encoded("c1", [span]), 1)
        sending = asyncio.create_task(sender.run())
        await eventually(lambda: len(collected.requests()) == len(spans))
        sending.cancel()
        taken = [one for request in collected.requests() for one in request["resourceSpans"]]
    resource = {one["key"]: one["value"]["stringValue"] for one in taken[0]["resource"]["attributes"]}
    assert resource == {"service.name": "kai-ledger", "service.version": version(), "k8s.cluster.name": "c1"}
    assert taken[0]["scopeSpans"][0]["scope"] == {"name": "kai-ledger", "version": version()}
    received = [span for one in taken for scope in one["scopeSpans"] for span in scope["spans"]]
    assert [shape(span) for span in received] == [shape(span) for span in spans]
    there = {(span["traceId"], span["spanId"]) for span in received}
    assert len(there) == len(spans)
    assert {(span["traceId"], span["parentSpanId"]) for span in received if span.get("parentSpanId")} < there


def shape(span: dict[str, Any]) -> dict[str, Any]:
    """The fields of a span that are kept even when empty."""
    return {key: value for key, value in span.items() if value} | {
        "links": [dict(one) for one in span.get("links", [])]
    }


def is_open(url: str) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 1):
        return True
    return False


def test_addresses_and_headers_that_are_none_are_named_without_secrets() -> None:
    assert traces_url("http://tempo:4318/") == "http://tempo:4318/v1/traces"
    with pytest.raises(ConfigurationError, match="'tempo:4318': is no address"):
        traces_url("tempo:4318")
    with pytest.raises(ConfigurationError, match="not of the form name=value") as error:
        read_headers("hunter2")
    assert "hunter2" not in str(error.value)
