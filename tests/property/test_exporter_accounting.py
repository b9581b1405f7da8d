"""Nothing is lost and nothing is counted twice between podresources and the log."""

import random
from collections import Counter
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from kai_exporter.ingest_client import encode_report
from kai_exporter.node_pods import NodePods
from kai_ingest.known_pod import reported_placement
from kai_ingest.reports import decode_report, read_pod
from kaicore.kube.wire.podresources import PodResources
from kaicore.rules.model.placement import Placement

from tests.given.cluster.podresources import GPU, answer, container, pod, shuffled

ZONES = 4
CPUS_OF_ZONE = 8
CPUS = {cpu: cpu // CPUS_OF_ZONE for cpu in range(ZONES * CPUS_OF_ZONE)}

_zones = st.lists(st.integers(0, ZONES - 1), min_size=0, max_size=3, unique=True)
_blocks = st.lists(
    st.tuples(
        st.sampled_from(["memory", "hugepages-2Mi"]),
        st.integers(0, 2**40),
        st.lists(st.integers(0, ZONES - 1), min_size=1, max_size=3, unique=True).map(tuple),
    ),
    max_size=4,
)


@st.composite
def _pods(draw: st.DrawFn) -> list[PodResources]:
    pods = []
    for number in range(draw(st.integers(0, 4))):
        containers = [
            container(
                f"c{index}",
                cpus=draw(st.sets(st.sampled_from(sorted(CPUS)), max_size=6)),
                gpus={f"g{number}-{index}-{gpu}": draw(_zones) for gpu in range(draw(st.integers(0, 4)))},
                memory=draw(_blocks),
            )
            for index in range(draw(st.integers(1, 3)))
        ]
        pods.append(pod(f"p{number}", *containers))
    return pods


def _expected(one: PodResources) -> Counter[tuple[str, tuple[int, ...], str]]:
    """By container, zones and resource: one for each CPU of the pod and each device, and the bytes of memory."""
    held: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    seen = set[int]()
    for each in one.containers:
        own = set(each.cpu_ids) - seen
        seen |= own
        for cpu in own:
            held[each.name, (CPUS[cpu],), "cpu"] += 1000
        zones_of: dict[str, set[int]] = {}
        for entry in each.devices:
            for device in entry.device_ids:
                zones_of.setdefault(device, set()).update(node.ID for node in entry.topology.nodes)
        for zones in zones_of.values():
            if zones:
                held[each.name, tuple(sorted(zones)), GPU] += 1
        for block in each.memory:
            held[each.name, tuple(sorted(node.ID for node in block.topology.nodes)), block.memory_type] += block.size
    return +held


def _recorded(placement: Placement) -> Counter[tuple[str, tuple[int, ...], str]]:
    held: Counter[tuple[str, tuple[int, ...], str]] = Counter()
    for each in placement.containers:
        parts: list[tuple[tuple[str, ...], dict[str, int]]] = [((zone.zone,), zone.amount) for zone in each.zones]
        parts += [(span.zones, span.amount) for span in each.spans]
        for zones, amounts in parts:
            for resource, amount in amounts.items():
                key = (each.container, tuple(int(zone.removeprefix("node-")) for zone in zones), resource)
                assert key not in held, "each zone and span once"
                held[key] = amount
    return held


def _through(node: NodePods, *, now: float) -> dict[str, Placement]:
    """The result of the next report at ingest, by pod."""
    sent = node.outgoing(now=now)
    assert sent is not None
    report = decode_report(encode_report(sent, instance="i"), node="n1")
    node.answered(sent, unknown=set(), refused=set(), now=now)
    read = [read_pod(value, node="n1") for value in report.pods]
    return {one.name: reported_placement(one) for one in read}


@settings(deadline=None)
@given(pods=_pods(), seed=st.integers(0, 2**16))
def test_the_record_accounts_for_every_cpu_device_and_byte(pods: list[PodResources], seed: int) -> None:
    node = NodePods("n1", poll_s=1, drift_s=60)
    for now in (1, 2):  # what is empty is believed at the second look
        node.take(answer(*pods), now=now, observed_at=1, numa_node_of_cpu=CPUS)
    recorded = _through(node, now=2)
    assert {name: _recorded(placement) for name, placement in recorded.items()} == {
        one.name: _expected(one) for one in pods
    }
    assert {one.name: [each.name for each in one.containers] for one in pods} == {
        name: [each.container for each in placement.containers] for name, placement in recorded.items()
    }

    random_ = random.Random(seed)
    again = [shuffled(one, random_) for one in pods]
    random_.shuffle(again)
    node.take(answer(*again), now=3, observed_at=3, numa_node_of_cpu=CPUS)
    assert node.outgoing(now=3) is None, "order is no change"
    node.report_everything()
    assert _through(node, now=3) == recorded


@settings(deadline=None)
@given(steps=st.lists(st.tuples(_pods(), st.sampled_from(["taken", "lost", "unknown", "failed"])), max_size=12))
def test_after_any_history_ingest_knows_what_the_kubelet_says(steps: list[tuple[list[PodResources], str]]) -> None:
    """Answers get lost, pods are not known yet, reports are not taken: in the end, all is recorded."""
    node = NodePods("n1", poll_s=1, drift_s=4)
    in_ingest: dict[str, Any] = {}
    now = 0.0
    listed: list[PodResources] = []
    for listed, outcome in [*steps, *[([], "last")] * 12]:
        now += 1
        pods = listed if outcome != "last" else (steps[-1][0] if steps else [])
        node.take(answer(*pods), now=now, observed_at=int(now), numa_node_of_cpu=CPUS)
        sent = node.outgoing(now=now)
        if sent is None:
            continue
        if outcome == "failed":
            node.not_taken(now=now)
        elif outcome == "unknown":
            node.answered(sent, unknown=set(sent.versions), refused=set(), now=now)
        else:
            in_ingest |= {one.name: msgspec.to_builtins(one) for one in sent.pods}
            if outcome != "lost":
                node.answered(sent, unknown=set(), refused=set(), now=now)
    final = {one.name: one for one in (steps[-1][0] if steps else [])}
    truth = NodePods("n1", poll_s=1, drift_s=4)
    for at in (1, 2):
        truth.take(answer(*final.values()), now=at, observed_at=1, numa_node_of_cpu=CPUS)
    sent = truth.outgoing(now=2)
    assert sent is not None
    assert {name: in_ingest.get(name) for name in final} == {one.name: msgspec.to_builtins(one) for one in sent.pods}
    assert node.unaccepted == 0
