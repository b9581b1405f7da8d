"""`kai simulate` without the process around it: 10,000 pods on 1,000 nodes of a fleet, without and with kubelets."""

import asyncio
import time
from collections.abc import Iterator

from kai_fleet.offline import OfflineKubelets
from kaicore.analysis.trial.simulation import Located, read_world, simulate
from kaicore.rules.engine.config import EngineConfig

from tests.measured.bench.figures import Figure, figure

_PODS = 10_000


def _found() -> list[Located]:
    objects = [Located("fleet", item) for item in OfflineKubelets("bench1000").objects()]
    for number in range(_PODS):
        limits = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": str(1 + number % 2)}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": "default"},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        objects.append(Located(f"pod {number}", pod))
    return objects


def figures() -> Iterator[Figure]:
    objects = _found()
    for kubelets in (False, True):
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            world = read_world(objects, scheduler_name="kai-ledger")
            model = OfflineKubelets("bench1000") if kubelets else None
            asyncio.run(simulate(world, EngineConfig(), kubelets=model))
            seconds.append(time.perf_counter() - began)
        yield figure(f"simulate: 1000 nodes, {_PODS} pods{', kubelets' if kubelets else ''}", seconds, "s")
