"""Shares of GPUs, end to end: from annotated pods to reservation pods, ConfigMaps, and GPUs that are given back.

The webhook is a process of its own, the rights are the chart's, and the nodes are the fleet's.
"""

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import helm_python
import msgspec
import pytest
from kai_cli.upkeep.webhook_certificates import make_certificate, sharing_configuration
from kaicore.errors import ApiStatus
from kaicore.kube.api.client import KubeClient
from kaicore.rules.objects.gpu_sharing import GPU, GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION, RESERVATION_NAMESPACE
from kaicore.rules.state.cluster_state import ClusterState

from scripts import chart
from tests.e2e.cluster import _ACCESS_KINDS as ACCESS_KINDS
from tests.e2e.cluster import Child, Cluster, cluster_for_module, real_nodes
from tests.e2e.live_stack import LiveStack, ours, pod_manifest, running_on
from tests.given.cluster.fleets import fleet, nodes
from tests.given.processes.kai_commands import kai

pytestmark = [pytest.mark.slow, pytest.mark.skipif(real_nodes(), reason="real nodes may have no GPUs")]

Json = dict[str, Any]
RESERVATIONS = f"/api/v1/namespaces/{RESERVATION_NAMESPACE}/pods"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME = "kai-webhook-e2e"

#: One node with two GPUs, one on each zone.


cluster = cluster_for_module(fleet(nodes(1, 2, gpus=1)))


@pytest.fixture(scope="module")
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    asyncio.run(grant(cluster))
    with running_on(cluster, "gpu_sharing: true") as live:
        yield live


async def grant(cluster: Cluster) -> None:
    """Give the accounts what the chart gives them for shares of GPUs."""
    # It would tell of each link to a file outside of the chart.
    helm_python.disable_logging()
    enabled = chart.objects({"spoke": {"gpuSharing": {"enabled": True}}})
    always = chart.objects({})
    of_sharing = [one for one in enabled if one["kind"] in ACCESS_KINDS and one not in always]
    async with cluster.client() as client:
        for document in sorted(of_sharing, key=lambda one: list(ACCESS_KINDS).index(one["kind"])):
            metadata = document["metadata"]
            place = ACCESS_KINDS[document["kind"]].format(namespace=metadata.get("namespace", ""))
            path = f"{place}/{metadata['name']}?fieldManager=kai-e2e&force=true"
            await client.patch(path, document, content_type="application/apply-patch+yaml")


@asynccontextmanager
async def webhook(cluster: Cluster) -> AsyncIterator[None]:
    """Have pods with shares completed by the webhook, as its manifest says, but at its address here."""
    files = make_certificate(["localhost"], days=1)
    for name, content in files.items():
        (cluster.root / name).write_bytes(content)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        flags = ("--tls-cert-file", cluster.root / "tls.crt", "--tls-key-file", cluster.root / "tls.key")
        descriptor = listening.fileno()
        child = Child(
            cluster.root / "webhook.log",
            *("kai_webhook.main", *flags, "--gpu-sharing", "--http-fd", str(descriptor)),
            inherit=(descriptor,),
        )
        document = sharing_configuration(namespace="n", service=NAME, authorities=files["ca.crt"])
        url = f"https://localhost:{listening.getsockname()[1]}/mutate"
        for entry in document["webhooks"]:
            entry["clientConfig"] = {"url": url, "caBundle": base64.b64encode(files["ca.crt"]).decode()}
        try:
            async with cluster.client() as client:
                await client.post(CONFIGURATIONS, document)
                yield
                await client.delete(f"{CONFIGURATIONS}/{NAME}")
        finally:
            child.stop()


def half(name: str) -> Json:
    pod = pod_manifest(name, cpu="1", memory="1Gi")
    pod["metadata"]["annotations"]["gpu-fraction"] = "0.5"
    return pod


def half_of_hami(name: str) -> Json:
    """The same in HAMi's words."""
    pod = pod_manifest(name, cpu="1", memory="1Gi")
    pod["spec"]["containers"][0]["resources"]["limits"] |= {GPU: "1", "nvidia.com/gpumem-percentage": "50"}
    return pod


def running_pods(state: ClusterState) -> int:
    return sum(entry.pod.phase == "Running" for entry in ours(state, "half"))


def closed_again() -> Callable[[ClusterState], bool]:
    """True of a state in which all pods are gone and all GPUs are closed, after there were some."""
    most = 0

    def holds(state: ClusterState) -> bool:
        nonlocal most
        most = max(most, len(state.shared_gpus.groups))
        return most == 2 and not state.shared_gpus.groups and not ours(state, "half")

    return holds


async def items(client: KubeClient, path: str) -> list[Json]:
    return list(msgspec.json.decode(await client.get(path))["items"])


async def told(client: KubeClient, stack: LiveStack, pod: Json) -> Json:
    """The variables that a pod's ConfigMap gives its container."""
    name = f"{pod['metadata']['annotations']['runai/shared-gpu-configmap']}-0"
    path = f"/api/v1/namespaces/{stack.namespace}/configmaps/{name}"
    return dict(msgspec.json.decode(await client.get(path))["data"])


def shows_parts(stack: LiveStack, gpu_of: dict[str, str]) -> None:
    """The command line names each pod's part, and what is free of each GPU."""

    def text(*arguments: str) -> str:
        return kai(*arguments, "--data-dir", str(stack.directory.root)).stdout

    pods = {line.split()[1]: line for line in text("get", "pods").splitlines()}
    nodes = text("get", "nodes")
    for name, gpu in gpu_of.items():
        assert f"0.5 of {gpu}" in pods[name]
        free = 1 - 0.5 * list(gpu_of.values()).count(gpu)
        assert f"{gpu} {free:g} free" in nodes
        others = [
            f"{stack.namespace}/{other} 0.5" for other in sorted(gpu_of) if gpu_of[other] == gpu and other != name
        ]
        why = text("why", f"{stack.namespace}/{name}")
        assert (
            f"holds 0.5 of {gpu}, shared with {', '.join(others) or 'no other pod'}; {free:g} free; reserved by" in why
        )
        audit = text("audit", "node", nodes.splitlines()[1].split()[0], "--gpu", gpu)
        assert f"reserves {gpu}" in audit
        assert audit.count(f"0.5 of {gpu}") == list(gpu_of.values()).count(gpu)


async def test_three_halves_are_on_two_gpus_and_both_are_given_back(cluster: Cluster, stack: LiveStack) -> None:
    pods = f"/api/v1/namespaces/{stack.namespace}/pods"
    async with webhook(cluster), stack.client() as client:
        await stack.create(half("half-0"), half("half-1"), half_of_hami("half-2"))
        state = await stack.until(lambda state: running_pods(state) == 3)
        reserved = {pod["metadata"]["labels"][GPU_GROUP_LABEL]: pod for pod in await items(client, RESERVATIONS)}
        gpus = {group: pod["metadata"]["annotations"][GPU_INDEX_ANNOTATION] for group, pod in reserved.items()}
        assert (len(gpus), len(set(gpus.values()))) == (2, 2)
        assert {pod["spec"]["containers"][0]["resources"]["limits"][GPU] for pod in reserved.values()} == {"1"}
        sharing = [pod for pod in await items(client, pods) if pod["metadata"]["name"].startswith("half")]
        groups = [pod["metadata"]["labels"][GPU_GROUP_LABEL] for pod in sharing]
        assert sorted(groups.count(group) for group in gpus) == [1, 2]
        for pod, group in zip(sharing, groups, strict=True):
            data = await told(client, stack, pod)
            assert (data["NVIDIA_VISIBLE_DEVICES"], data["GPU_PORTION"]) == (gpus[group], "0.50")
        assert len(state.shared_gpus.groups) == 2
        shows_parts(stack, {pod["metadata"]["name"]: gpus[group] for pod, group in zip(sharing, groups, strict=True)})
        for number in range(3):
            await client.delete(f"{pods}/half-{number}", {})
        await stack.until(closed_again())
        assert await items(client, RESERVATIONS) == []
    await stack.check()


async def test_share_that_no_gpu_can_give_is_refused_by_the_api_server(cluster: Cluster, stack: LiveStack) -> None:
    pod = half("absurd")
    pod["metadata"]["annotations"]["gpu-fraction"] = "2"
    async with webhook(cluster), stack.client() as client:
        with pytest.raises(ApiStatus, match="is no number between 0 and 1"):
            await client.post(f"/api/v1/namespaces/{stack.namespace}/pods", pod)
