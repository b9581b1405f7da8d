"""Work for a cluster of GPU nodes with aligning kubelets: Jobs of one to four pods, by a seed."""

import random
from dataclasses import dataclass
from typing import Any

RACK = "cloud.provider.com/topology-rack"

#: Eight nodes in two racks; a container's CPUs, GPUs and memory are of one zone of two, or its pod is rejected. Without
#: a memory manager no exporter tells memory by zones, and NodeResourceTopologyMatch then lets no Guaranteed pod in.
FLEET = """
topologyLabels: {cloud.provider.com/topology-rack: 4}
groups:
  - name: gpu
    count: 8
    zones: 2
    perZone: {cpus: 18, memory: 64Gi, devices: {nvidia.com/gpu: 4}}
    kubelet:
      topologyManagerPolicy: single-numa-node
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {cpu: "2", memory: 2Gi}
    nrt: {publisher: rte, delay: 1s, jitter: 500ms, period: 60s}
    timing: {startupDelay: 300ms, startupJitter: 300ms, terminationSeconds: 300ms}
"""

#: Read by us alone: kube-scheduler knows of no KAI Topology.
TOPOLOGY = {
    "apiVersion": "kai.scheduler/v1alpha1",
    "kind": "Topology",
    "metadata": {"name": "fabric"},
    "spec": {"levels": [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]},
}

#: GPUs of a pod, CPUs, pods of the Job, and how often it comes of a hundred.
_SHAPES = ((1, 2, 1, 40), (2, 4, 1, 22), (3, 6, 1, 10), (4, 8, 1, 10), (2, 4, 2, 8), (4, 8, 2, 5), (1, 2, 4, 5))


@dataclass(frozen=True, slots=True)
class Arrival:
    """A Job that comes.

    Attributes:
        after_s: seconds after the one before.
    """

    after_s: float
    manifest: dict[str, Any]


def arrivals(seed: int, *, jobs: int, every_s: float, schedulers: tuple[str, ...], queue: str = "") -> list[Arrival]:
    """Return Jobs of schedulers by turns; the same for the same arguments.

    Args:
        seed: of all that is random.
        jobs: how many.
        every_s: seconds from one to the next, the mean.
        schedulers: names of them.
        queue: KAI's, which all Jobs and pods name; empty for none.
    """
    rng = random.Random(seed)
    weights = [shape[3] for shape in _SHAPES]
    made = []
    for number in range(jobs):
        gpus, cpus, pods, _ = rng.choices(_SHAPES, weights)[0]
        pod = _pod(schedulers[number % len(schedulers)], gpus, cpus, seconds=round(rng.uniform(10, 40), 1))
        job = _job(f"job-{number:03}", pods, pod)
        if queue:
            for metadata in (job["metadata"], pod["metadata"]):
                metadata["labels"] = {"kai.scheduler/queue": queue}
        made.append(Arrival(rng.expovariate(1 / every_s), job))
    return made


def agents(namespace: str, nodes: list[str]) -> list[dict[str, Any]]:
    """Return a pod for each node as DaemonSets have them everywhere, already on its node, which asks for nothing.

    NodeResourceTopologyMatch never looks again at a node on which nothing runs ("cannot find any pod for node").
    """
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"namespace": namespace, "name": f"agent-{node}"},
            "spec": {
                "schedulerName": "daemonset-controller",
                "nodeName": node,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "agent", "image": "x"}],
            },
        }
        for node in nodes
    ]


def _pod(scheduler: str, gpus: int, cpus: int, *, seconds: float) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": "4Gi", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
    return {
        "metadata": {"annotations": {"simulator.kai.scheduler/run-seconds": str(seconds)}},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        },
    }


def _job(name: str, pods: int, template: dict[str, Any]) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 100, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
