"""Check that a folded log has reached the API server's state: no report is made of an older one."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from kaicore.kube.api.client import KubeClient
from kaicore.rules.state.views import PodsView

_PODS_PATH = "/api/v1/pods"


class _Metadata(msgspec.Struct):
    uid: str


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct):
    phase: str = "Pending"


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


class _PodList(msgspec.Struct):
    items: list[_Pod]


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod as the API server has it, as far as a report depends on it."""

    uid: str
    node: str
    phase: str


async def listed_pods(client: KubeClient) -> list[ListedPod]:
    """Return all pods of a cluster.

    Raises:
        ClusterUnavailable: the API server does not answer.
    """
    pods = msgspec.json.decode(await client.get(_PODS_PATH), type=_PodList).items
    return [ListedPod(pod.metadata.uid, pod.spec.node_name, pod.status.phase) for pod in pods]


def has_caught_up(state: PodsView, listed: Iterable[ListedPod]) -> bool:
    """Tell whether a state has each pod where and as the API server has it, and none besides."""
    there = {pod.uid: (pod.node, pod.phase) for pod in listed}
    recorded = {uid: (entry.pod.node_name, entry.pod.phase) for uid, entry in state.pods.items() if not entry.gone}
    return recorded == there
