"""Histories for what-ifs: a cluster of simulated kubelets with a scheduler, run in virtual time, as a log."""

from functools import partial
from typing import Any

from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event, Unit
from kaicore.rules.model.group import GroupSource

from tests.given.cluster.fleets import aligned, fleet
from tests.given.doubles.virtual_storm import VirtualStorm
from tests.given.logs.new_events import as_new

#: Nodes of two zones, of 7 and 8 CPUs for pods, with 4 GPUs each; their kubelets want all of a container in one zone.
PROFILE = fleet(aligned(2, period="10s"))


async def log_of(events: list[Event]) -> MemoryLog:
    """Return a log that has events at the positions and times that they have."""
    now = [0]
    log = MemoryLog(lambda: now[0])
    for event in events:
        now[0] = event.recorded_at
        await log.append(event.cluster, [Unit((as_new(event),))])
    return log


def manifest(name: str, *, seconds: float, cpu: int = 1, gpu: int = 0, owner: str = "") -> dict[str, Any]:
    """Return a pod that holds whole CPUs, and runs for so long; `owner` is the name of its Job."""
    held = {"cpu": str(cpu), "memory": "1Gi", **({"nvidia.com/gpu": str(gpu)} if gpu else {})}
    metadata: dict[str, Any] = {
        "name": name,
        "annotations": {"simulator.kai.scheduler/run-seconds": str(seconds)},
    }
    if owner:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": f"uid-{owner}", "controller": True}
        metadata["ownerReferences"] = [reference]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {
            "schedulerName": "kai-ledger",
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "x", "resources": {"requests": held, "limits": held}}],
        },
    }


def saturated(
    pods: int, *, config: EngineConfig | None = None, cpu: int = 5, gpu: int = 1, seconds: float = 10
) -> VirtualStorm:
    """Return a cluster to which more pods came at once than it has room for, after 40 s: each fills a zone."""
    storm = VirtualStorm(PROFILE, seed=1, config=config or EngineConfig())
    for number in range(pods):
        pod = manifest(f"p{number}", seconds=seconds, cpu=cpu, gpu=gpu, owner=f"job-{number}")
        job = GroupSource("Job.batch", f"uid-job-{number}", "default", f"job-{number}", "1")
        storm.cluster.record(f"group/{job.key}", payloads.GroupSourceObserved(job))
        storm.later(number * 0.1, partial(storm.create, pod))
    storm.run(40)
    return storm
