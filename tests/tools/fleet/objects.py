"""Pods as an API server would send them, and small fleets."""

from typing import Any

import msgspec
from kai_fleet.node.pod_conversion import PodObject
from kai_fleet.profiles.nodes import NodeSpec, expand
from kai_fleet.profiles.profile import parse_profile

_decode = msgspec.json.Decoder(PodObject).decode

#: Two zones of 8 CPUs, 32 GiB and 4 GPUs; everything static, nothing takes time.
GROUP = """
  - name: node
    count: {count}
    zones: 2
    perZone: {{cpus: 8, memory: 32Gi, devices: {{nvidia.com/gpu: 4}}}}
    kubelet:
      topologyManagerPolicy: {policy}
      topologyManagerScope: {scope}
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {{cpu: "1", memory: 1Gi}}
    nrt: {{publisher: {publisher}, delay: {delay}, jitter: 0, period: {period}}}
    timing: {{terminationSeconds: 0{timing}}}
    lag: {lag}
"""
#: Nothing is late.
NO_LAG = "{status: 0, podresources: 0, sync: 0}"


def small_fleet(
    count: int = 1,
    *,
    policy: str = "restricted",
    scope: str = "container",
    publisher: str = "rte",
    delay: str = "20ms",
    period: str = "0",
    timing: str = "",
    lag: str = NO_LAG,
) -> list[NodeSpec]:
    text = "groups:" + GROUP.format(
        count=count,
        policy=policy,
        scope=scope,
        publisher=publisher,
        delay=delay,
        period=period,
        timing=timing and f", {timing}",
        lag=lag,
    )
    return expand(parse_profile(text, source="test"))


def pod_json(
    name: str, *, node: str = "node-0", uid: str = "", amounts: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    """A pod with one container, or with `containers`; `metadata`, `status` and other fields of `spec` as given."""
    requests = {"cpu": "2", "memory": "1Gi"} if amounts is None else amounts
    metadata = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", **more.pop("metadata", {})}
    status = more.pop("status", {"phase": "Pending"})
    container = {"name": "main", "image": "pause", "resources": {"requests": requests, "limits": requests}}
    spec = {"nodeName": node, "containers": [container], "restartPolicy": "Never", **more}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def pod_object(name: str, **arguments: Any) -> PodObject:
    return _decode(msgspec.json.encode(pod_json(name, **arguments)))
