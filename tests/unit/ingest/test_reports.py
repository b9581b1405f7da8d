"""The format of reports: what is taken, and what is said of what is not."""

from typing import Any

import pytest
from kai_ingest.reports import decode_report, decode_reports, read_pod, read_report
from kaicore.errors import InvalidObject

from tests.given.work.reports import GPU, encode, pod_report, report

GOOD = pod_report("train-0", node_0={"cpu": 8000, GPU: 2})


def changed(value: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**value, **fields}


def containers(*values: Any) -> dict[str, Any]:
    return changed(GOOD, containers=list(values))


def with_zones(*zones: Any) -> dict[str, Any]:
    return containers({"name": "main", "zones": list(zones)})


def with_spans(*spans: Any) -> dict[str, Any]:
    return containers({"name": "main", "spans": list(spans)})


def test_a_report_is_read() -> None:
    read = decode_report(encode(report(GOOD, full=True, instance="0f" * 16)), node="n1")
    assert (read.node, read.instance, read.sequence, read.full) == ("n1", "0f" * 16, 1, True)
    pod = read_pod(read.pods[0], node="n1")
    assert (pod.namespace, pod.name, pod.uid) == ("default", "train-0", "")
    assert pod.containers[0].zones[0].amount == {"cpu": 8000, GPU: 2}


def test_fields_of_a_later_exporter_are_not_looked_at() -> None:
    read = decode_report(encode(report(changed(GOOD, colour="red"), colour="red")), node="n1")
    assert read_pod(read.pods[0], node="n1").name == "train-0"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"report of Node n1: body: Invalid JSON"),
        (b"{", r"report of Node n1: body: Invalid JSON"),
        (b"[" * 100_000, r"report of Node n1: body: Invalid JSON"),
        (b"\xff\xfe", r"report of Node n1: body: Invalid JSON"),
        (b"[]", r"report of Node n1: body: .*: '\[\]'"),
        (encode(report(node="n2")), r"report of Node n1: node: is not the node of the path: 'n2'"),
        (encode(report(version=2)), r"report of Node n1: version: Input should be 1: 2"),
        (encode(report(sequence=0)), r"report of Node n1: sequence: .*greater than or equal to 1: 0"),
        (encode(report(sequence=True)), r"report of Node n1: sequence: .*integer: True"),
        (encode(report(sequence="1")), r"report of Node n1: sequence: .*integer: '1'"),
        (encode(report(observed_at=1.5)), r"report of Node n1: observed_at: .*: '1.5'"),
        (encode(report(observed_at=2**62)), r"report of Node n1: observed_at: .*: 46116860184273879"),
        (encode(report(instance="a b")), r"report of Node n1: instance: .*: 'a b'"),
        (encode(report(pods={})), r"report of Node n1: pods: .*array: '{}'"),
        (encode(report(pods=[0] * 5001)), r"report of Node n1: pods: .*5000"),
        (encode({"node": "n1"}), r"report of Node n1: version: Field required \(and 4 more: instance, sequence, "),
    ],
)
def test_a_report_of_another_form_is_refused_as_a_whole(body: bytes, message: str) -> None:
    with pytest.raises(InvalidObject, match=message):
        decode_report(body, node="n1")


@pytest.mark.parametrize(
    ("pod", "message"),
    [
        (None, r"Pod \?/\?: body: .*: 'None'"),
        ({}, r"Pod None/None: namespace: Field required .*and 2 more: name, containers"),
        (changed(GOOD, name="Train"), r"Pod default/Train: name: .*: 'Train'"),
        (changed(GOOD, name=""), r"Pod default/: name: .*: ''"),
        (changed(GOOD, name="x" * 254), r"name: .*253"),
        (changed(GOOD, namespace="a/b"), r"Pod a/b/train-0: namespace: .*: 'a/b'"),
        (changed(GOOD, uid="a b"), r"Pod default/train-0: uid: .*: 'a b'"),
        (changed(GOOD, containers=7), r"Pod default/train-0: containers: .*: 7"),
        (containers({"name": "a"}, {"name": "a"}), r"Pod default/train-0: containers: a container is named twice"),
        (containers({"name": "a"}, {}), r"Pod default/train-0: containers\[1\]\.name: Field required"),
        (with_zones({"zone": "numa0", "amount": {}}), r"containers\[0\]\.zones\[0\]\.zone: .*: 'numa0'"),
        (with_zones({"zone": "node-01", "amount": {}}), r"zones\[0\]\.zone: .*: 'node-01'"),
        (with_zones({"zone": "node--1", "amount": {}}), r"zones\[0\]\.zone: .*: 'node--1'"),
        (
            with_zones({"zone": "node-0", "amount": {}}, {"zone": "node-0", "amount": {}}),
            r"zones: a zone is named twice",
        ),
        (with_zones({"zone": "node-0", "amount": {"cpu": -1}}), r"zones\[0\]\.amount\.cpu: .*: -1"),
        (
            with_zones({"zone": "node-0", "amount": {"cpu": 2**53 + 1}}),
            r"zones\[0\]\.amount\.cpu: .*: 9007199254740993",
        ),
        (with_zones({"zone": "node-0", "amount": {"cpu": 2**80}}), r"zones\[0\]\.amount\.cpu: .*: 12089258196146"),
        (with_zones({"zone": "node-0", "amount": {"cpu": 1.0}}), r"zones\[0\]\.amount\.cpu: .*: '1.0'"),
        (with_zones({"zone": "node-0", "amount": {"cpu": "8"}}), r"zones\[0\]\.amount\.cpu: .*: '8'"),
        (with_zones({"zone": "node-0", "amount": {"cpu": True}}), r"zones\[0\]\.amount\.cpu: .*: True"),
        (with_zones({"zone": "node-0", "amount": {"c\0pu": 1}}), r"zones\[0\]\.amount\..*: "),
        (
            with_spans({"zones": ["node-0"], "amount": {}}),
            r"spans\[0\]\.zones: a span has two zones or more, each once",
        ),
        (with_spans({"zones": ["node-0", "node-0"], "amount": {}}), r"spans\[0\]\.zones: a span has two zones"),
        (with_spans({"zones": ["node-0", "x"], "amount": {}}), r"spans\[0\]\.zones\[1\]: .*: 'x'"),
    ],
)
def test_an_impossible_pod_is_named_with_field_and_value(pod: Any, message: str) -> None:
    with pytest.raises(InvalidObject, match=f"^report of Node n1: .*{message}"):
        read_pod(pod, node="n1")


def test_error_shows_only_the_beginning_of_a_long_value() -> None:
    with pytest.raises(InvalidObject) as raised:
        read_pod(changed(GOOD, name="x" * 100_000), node="n1")
    assert len(str(raised.value)) < 1000


def test_several_reports_are_checked_one_by_one() -> None:
    first, second = decode_reports(encode({"reports": [report(GOOD), 7]}))
    assert read_report(first).node == "n1"
    with pytest.raises(InvalidObject, match=r"report of Node None: body: .*: 7"):
        read_report(second)
    with pytest.raises(InvalidObject, match="reports: reports: Field required"):
        decode_reports(b"{}")
