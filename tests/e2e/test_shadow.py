"""A shadow of a scheduler that knows nothing of zones: it writes nothing, and tells which rejections it avoids."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import Stage
from kaicore.yaml_text import load_yaml_all

from tests.e2e.cluster import Cluster, cluster_of, foreign_kubeconfig
from tests.e2e.live_stack import LiveStack, pod_manifest, running
from tests.given.cluster.fleets import TWO_ALIGNED_NODES
from tests.unit.docs.test_migration_guides import manifests

GPU = "nvidia.com/gpu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(foreign_kubeconfig() is not None, reason="only the simulated API server tells who wrote"),
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("KAI_DEFAULT_SCHEDULER", "true")
    monkeypatch.setenv("KAI_DEMONSTRATION", "true")
    with cluster_of(TWO_ALIGNED_NODES) as made:
        yield made


@pytest.fixture
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    """Read-only: the watcher's account is the only one that it has."""
    with running(LiveStack(cluster.root / "kai", cluster, shadow="*")) as live:
        yield live


def pod(name: str, *, node: str = "", **requests: str) -> dict[str, Any]:
    manifest = pod_manifest(name, memory="1Gi", **requests)
    manifest["spec"]["schedulerName"] = "default-scheduler"
    if node:
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return manifest


def half_free(state: ClusterState) -> bool:
    """gpu-0 publishes one free GPU in each of its zones: nothing else tells what others' pods hold there."""
    row = state.columns.rows.get("gpu-0")
    topology = None if row is None else state.columns.topologies[row]
    return topology is not None and all(zone.resources[GPU].available == 1 for zone in topology.zones)


def over(*names: str) -> Any:
    """All of these run, or were rejected."""

    def condition(state: ClusterState) -> bool:
        entries = {entry.pod.name: entry for entry in state.pods.values()}
        ended = (Stage.BOUND, Stage.FINISHED)
        return all(
            name in entries and entries[name].stage in ended and entries[name].pod.phase != "Pending" for name in names
        )

    return condition


async def test_a_shadow_writes_nothing_and_tells_which_rejections_it_avoids(cluster: Cluster, stack: LiveStack) -> None:
    await stack.create(pod("a", node="gpu-0", cpu="1", gpu="3"), pod("b", node="gpu-0", cpu="1", gpu="3"))
    await stack.create(pod("busy", node="gpu-1", cpu="6"))
    await stack.until(lambda state: over("a", "b", "busy")(state) and half_free(state))
    # On gpu-0 two GPUs are free, in two zones; gpu-1 has more of its CPUs in use, and four free GPUs in a zone.
    await stack.create(pod("moved", cpu="1", gpu="2"), pod("stuck", node="gpu-0", cpu="1", gpu="2"))
    await stack.until(over("moved", "stuck"))
    report = await asyncio.to_thread(stack.ask, "shadow", "report")
    assert (report["pods"], report["scheduler"]) == (5, "default-scheduler")
    rejections = report["rejections"]
    assert (rejections["observed"], rejections["avoided"], rejections["waits"]) == (2, 1, 1)
    assert rejections["byReason"] == {"TopologyAffinityError": 2}
    assert report["predictions"]["missed"] == report["predictions"]["falseAlarms"] == 0
    moved, stuck = sorted(report["rejected"], key=lambda one: str(one["name"]))
    assert (moved["node"], moved["chosen"], stuck["choice"]) == ("gpu-0", "gpu-1", "would wait")
    assert moved["predicted"]
    trajectory = report["trajectory"]
    assert trajectory["alternatives"][0]["result"]["rejections"] < trajectory["recorded"]["rejections"]
    # The shadow's decisions are replayed and shown, and the hash chain has them.
    replayed = await asyncio.to_thread(stack.ask, "replay")
    assert replayed["decisions"] >= 4
    why = await asyncio.to_thread(stack.ask, "why", f"{stack.namespace}/moved")
    assert any("a shadow would have put it on gpu-1" in note for note in why["notes"])
    await gangs_of_other_schedulers_are_decided_on_as_they_are(stack)
    # No secret is where it does not belong.
    assert len(stack.secrets()) >= 4
    assert stack.leaks() == []
    async with stack.log() as log:
        bodies = b"".join(bytes(event.body) for event in await log.read("e2e", limit=100_000))
    assert [name for name, secret in stack.secrets().items() if secret.encode() in bodies] == []
    # Of the accounts of ours only the watcher was used, and only to read.
    async with cluster.client() as admin:
        counted = msgspec.json.decode(await admin.get("/simulator/rights"))
    ours = [use for use in counted["allowed"] if "kai-system" in use["user"]]
    assert {use["user"] for use in ours} == {"system:serviceaccount:kai-system:kai-watcher"}
    assert {use["verb"] for use in ours} <= {"get", "list", "watch"}


async def gangs_of_other_schedulers_are_decided_on_as_they_are(stack: LiveStack) -> None:
    """The work of two migration guides: nobody binds it here, and the shadow would start all of it."""
    for guide in ("volcano", "koordinator"):
        await stack.create(*load_yaml_all(manifests(guide)))

    def decided(state: ClusterState) -> bool:
        chosen = Counter(
            state.pods[uid].pod.scheduler_name for uid, choice in state.shadows.choices.items() if choice.node
        )
        return chosen["volcano"] == chosen["koord-scheduler"] == 2

    await stack.until(decided)
