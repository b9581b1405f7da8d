"""Shares of a GPU in each dialect's own manifests: they end up on one GPU together."""

from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig

from tests.given.logs.simulating import brief, document_of, world_of

ON = EngineConfig(gpu_sharing=True)

NODE = """---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {nvidia.com/gpu.memory: "80000"}}
status: {allocatable: {cpu: 64, memory: 256Gi, pods: 110, nvidia.com/gpu: 2}}
"""

DEVICES = """---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: n1-gpu}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: n1, generation: 1, resourceSliceCount: 1}
  devices: [{name: gpu-0, allowMultipleAllocations: true, capacity: {memory: {value: 80Gi}}}]
"""


def pod(name: str, limits: str = "{}", *, annotations: str = "{}", claim: str = "") -> str:
    claims = f"resourceClaims: [{{name: gpu, resourceClaimName: {claim}}}], " if claim else ""
    uses = ", claims: [{name: gpu}]" if claim else ""
    return f"""---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, annotations: {annotations}}}
spec: {{{claims}containers: [{{name: main, resources: {{limits: {limits}{uses}}}}}]}}
status: {{}}
"""


def claim(name: str, memory: str) -> str:
    exactly = f"{{deviceClassName: gpu, capacity: {{requests: {{memory: {memory}}}}}}}"
    return f"""---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: {name}}}
spec: {{devices: {{requests: [{{name: gpu, exactly: {exactly}}}]}}}}
"""


def test_pods_of_all_dialects_share_one_gpu(tmp_path: Path) -> None:
    pods = [
        pod("kai", annotations="{gpu-fraction: '0.2'}"),
        pod("hami", "{nvidia.com/gpu: 1, nvidia.com/gpumem: 16000, nvidia.com/gpucores: 10}"),
        pod("koordinator", "{koordinator.sh/gpu-core: 20, koordinator.sh/gpu-memory-ratio: 10}"),
        pod("volcano", "{volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 32000}"),
        pod("whole", "{koordinator.sh/gpu: 100}"),
    ]
    document = document_of(world_of(NODE + "".join(pods), tmp_path, ON), ON)
    assert set(brief(document).values()) == {"n1"}
    parts = {one["name"]: one.get("gpus", []) for one in document["pods"]}
    shares = {name: parts[name] for name in ("kai", "hami", "koordinator", "volcano")}
    assert [[part["part"] for part in one] for one in shares.values()] == [["0.2"], ["0.2"], ["0.2"], ["0.4"]]
    assert len({part["group"] for one in shares.values() for part in one}) == 1
    assert parts["whole"] == []


@pytest.mark.parametrize(
    ("limits", "config", "code"),
    [
        # With sharing off nobody translates.
        ("{nvidia.com/gpu: 1, nvidia.com/gpumem: 16000}", EngineConfig(), "Unsupported"),
        ("{nvidia.com/gpumem: 90000}", ON, "NoGpuToShare"),
    ],
)
def test_share_that_is_not_served_waits_with_its_reason(
    tmp_path: Path, limits: str, config: EngineConfig, code: str
) -> None:
    document = document_of(world_of(NODE + pod("p", limits), tmp_path, config), config)
    assert brief(document)["p"] == f"Pending {code}"


def test_manifest_that_admission_refuses_is_a_problem_of_the_world(tmp_path: Path) -> None:
    world = world_of(NODE + pod("p", "{nvidia.com/gpumem-percentage: 200}"), tmp_path, ON)
    (problem,) = world.problems
    assert "gpumem-percentage]: is more than 100" in str(problem)


def test_claims_with_consumable_capacity_share_a_device_without_reservation_pods(tmp_path: Path) -> None:
    work = "".join(claim(name, "30Gi") + pod(name, claim=name) for name in ("a", "b", "c"))
    document = document_of(world_of(NODE + DEVICES + work, tmp_path))
    assert brief(document) == {
        "a": "n1",
        "b": "n1",
        "c": "Pending DevicesTaken,NoMoveWouldHelp,PodsWithoutController",
    }
