"""Gangs of five dialects on a fleet in racks and blocks; a rack fails. What the API server has is what counts.

`KAI_TEST_TOPOLOGY_NODES` makes the fleet smaller or larger than 96 nodes.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest
from kaicore.kube.api.client import KubeClient
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.yaml_text import load_yaml_all

from tests.e2e.cluster import Json, foreign_kubeconfig
from tests.e2e.live_stack import LiveStack, ours, pod_manifest, running
from tests.given.examples import BEYOND_THE_GATE
from tests.given.processes.kai_commands import kai
from tests.given.servers.servers import scratch_directory

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(foreign_kubeconfig() is not None, reason="the nodes of a real cluster are not ours to fail"),
]

BLOCK, RACK = "example.com/block", "example.com/rack"
#: A node holds one pod of the gangs.
FLEET = f"""
topologyLabels: {{{BLOCK}: 32, {RACK}: 8}}
groups:
  - name: node
    count: {os.environ.get("KAI_TEST_TOPOLOGY_NODES", "96")}
    zones: 1
    perZone: {{cpus: 8, memory: 32Gi}}
    nrt: {{publisher: none}}
    timing: {{terminationSeconds: 100ms}}
"""
#: A node has failed when it has been not ready for a second.
CONFIG = """
replace_on_pod_termination: false
node_not_ready_us: 1000000
"""
NETWORK_SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"


@dataclass(frozen=True)
class Gang:
    """A Job with pods that start together.

    Attributes:
        required: the label of which all pods must have the same value; empty for none.
        group: PodGroup that it belongs to, if any.
        job: of the Job, annotations.
        labels: of its pods.
        annotations: likewise.
        spec: more of its pods' spec.
    """

    name: str
    size: int
    required: str = ""
    group: Json | None = None
    job: Json | None = None
    labels: Json | None = None
    annotations: Json | None = None
    spec: Json | None = None

    def manifests(self) -> Iterator[Json]:
        if self.group is not None:
            yield {"kind": "PodGroup", "metadata": {"name": self.name}, **self.group}
        pod = pod_manifest(self.name, cpu="6", memory="1Gi")
        meta = {"labels": {"gang": self.name, **(self.labels or {})}, "annotations": self.annotations or {}}
        spec = {"template": {"metadata": meta, "spec": pod["spec"] | (self.spec or {})}, "backoffLimit": 1000}
        counts = {"parallelism": self.size, "completions": self.size}
        metadata = {"name": self.name, "annotations": self.job or {}}
        yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec | counts}


GANGS = (
    Gang(
        "kai",
        20,
        BLOCK,
        job={
            "kai.scheduler/batch-min-member": "20",
            "kai.scheduler/topology": "default",
            "kai.scheduler/topology-required-placement": BLOCK,
            "kai.scheduler/topology-preferred-placement": RACK,
        },
    ),
    Gang("kueue", 3, RACK, annotations={"kueue.x-k8s.io/podset-required-topology": RACK}),
    Gang("preferring", 10, annotations={"kueue.x-k8s.io/podset-preferred-topology": RACK}),
    Gang(
        "koordinator",
        6,
        RACK,
        group={
            "apiVersion": "scheduling.sigs.k8s.io/v1alpha1",
            "metadata": {
                "name": "koordinator",
                "annotations": {
                    NETWORK_SPEC: json.dumps({"gatherStrategy": [{"layer": "RackLayer", "strategy": "MustGather"}]})
                },
            },
            "spec": {"minMember": 6},
        },
        labels={"pod-group.scheduling.sigs.k8s.io": "koordinator"},
    ),
    Gang(
        "volcano",
        7,
        RACK,
        group={
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "spec": {"minMember": 7, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}},
        },
        annotations={"scheduling.k8s.io/group-name": "volcano"},
    ),
    Gang(
        "native",
        2,
        RACK,
        group={
            "apiVersion": "scheduling.k8s.io/v1alpha2",
            "spec": {
                "schedulingPolicy": {"gang": {"minCount": 2}},
                "schedulingConstraints": {"topology": [{"key": RACK}]},
            },
        },
        spec={"schedulingGroup": {"podGroupName": "native"}},
    ),
)


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveStack]:
    # A Job waits for long when many of its pods fail, as evicted ones do.
    monkeypatch.setenv("KAI_JOB_BACKOFF_S", "0.1")
    with scratch_directory() as root:
        profile, config = root / "fleet.yaml", root / "config.yaml"
        profile.write_text(FLEET)
        config.write_text(CONFIG)
        settings = ("--scheduler-config", str(config))
        with running(LiveStack(root / "kai", profile=str(profile), flags=settings)) as live:
            yield live


def generated(stack: LiveStack, kind: str) -> list[Json]:
    """The result of `kai topology generate` from the nodes' labels."""
    command = ("topology", "generate", "--live", "--kind", kind, "--labels", f"{BLOCK},{RACK}")
    done = kai(*command, "--data-dir", str(stack.directory.root))
    assert done.returncode == 0, done.stderr
    return list(load_yaml_all(done.stdout))


async def placed(client: KubeClient) -> dict[str, list[str]]:
    """The nodes of each gang's pods, as the API server has them."""
    nodes: dict[str, list[str]] = {gang.name: [] for gang in GANGS}
    for item in msgspec.json.decode(await client.get("/api/v1/pods"))["items"]:
        gang = item["metadata"].get("labels", {}).get("gang")
        if gang in nodes and item["spec"].get("nodeName") and "deletionTimestamp" not in item["metadata"]:
            nodes[gang].append(item["spec"]["nodeName"])
    return nodes


async def labels_of_nodes(client: KubeClient) -> dict[str, dict[str, str]]:
    items = msgspec.json.decode(await client.get("/api/v1/nodes"))["items"]
    return {item["metadata"]["name"]: item["metadata"]["labels"] for item in items}


def all_run(failed: frozenset[str] = frozenset()) -> Callable[[ClusterState], bool]:
    """All pods of all gangs are bound, on none of these nodes."""

    def condition(state: ClusterState) -> bool:
        counts = Counter(
            entry.pod.labels.get("gang")
            for entry in ours(state)
            if entry.pod.node_name and entry.pod.node_name not in failed and entry.pod.deletion_at is None
        )
        return all(counts[gang.name] == gang.size for gang in GANGS)

    return condition


async def fail(stack: LiveStack, client: KubeClient, nodes: list[str]) -> None:
    """Kubelets stop, and what the node controller finds after a while is found at once."""
    fleet = stack.running.services["e2e-fleet"]
    async with aiohttp.ClientSession(raise_for_status=True, headers=await stack.admin_headers()) as session:
        for node in nodes:
            async with session.post(f"{fleet}/simulator/nodes/{node}/kubelet", json={"running": False}):
                pass
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    for node in nodes:
        await client.patch(
            f"/api/v1/nodes/{node}/status",
            {"status": {"conditions": [unknown]}},
            content_type="application/strategic-merge-patch+json",
        )


def assert_as_required(nodes: dict[str, list[str]], labels: dict[str, dict[str, str]]) -> None:
    for gang in GANGS:
        assert len(set(nodes[gang.name])) == gang.size, gang.name
        if gang.required:
            assert len({labels[node][gang.required] for node in nodes[gang.name]}) == 1, gang.name


@BEYOND_THE_GATE
async def test_gangs_of_all_dialects_keep_their_domains_when_a_rack_fails(stack: LiveStack) -> None:
    topologies = [item for kind in ("kai", "kueue", "koordinator", "volcano") for item in generated(stack, kind)]
    await stack.create(*topologies)
    await stack.until(lambda state: len(state.network_topologies.topologies()) == 4)
    for gang in GANGS:
        await stack.create(*gang.manifests())
    await stack.until(all_run())
    async with stack.client() as client:
        labels = await labels_of_nodes(client)
        before = await placed(client)
        assert_as_required(before, labels)
        assert len({labels[node][RACK] for node in before["kai"]}) == 3, "20 nodes are three racks at least"
        assert len({labels[node][RACK] for node in before["preferring"]}) == 2
        # The rack fails that has the fewest pods of the largest gang, and others beside.
        (*_, (rack, _)) = Counter(labels[node][RACK] for node in before["kai"]).most_common()
        failed = frozenset(name for name, its in labels.items() if its[RACK] == rack)
        lost = {gang: sorted(failed.intersection(nodes)) for gang, nodes in before.items()}
        await fail(stack, client, sorted(failed))
        state = await stack.until(all_run(failed))
        after = await placed(client)
        assert_as_required(after, labels)
        assert not failed.intersection(*[set(nodes) for nodes in after.values()])
    reasons = state.counters.evictions_decided
    # Where no room is left in what a gang requires, all of it goes, those on failed nodes with it: NoReplacement alone.
    assert set(reasons) <= {"NodeFailed", "NoReplacement", "Consolidated"}, reasons
    assert reasons.keys() & {"NodeFailed", "NoReplacement"}, reasons
    assert sum(reasons.values()) >= sum(map(len, lost.values())), reasons
    await stack.check()
