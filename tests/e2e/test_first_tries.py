"""What a stranger tries first on the cluster that `kai up` brings comes to something."""

from collections.abc import Iterator

import pytest

from tests.e2e.live_stack import LiveStack, finished, pod_manifest, running
from tests.servers import scratch_directory

pytestmark = pytest.mark.slow

PROFILE = """
groups:
  - name: gpu
    count: 1
    taints: [{key: nvidia.com/gpu, value: present, effect: NoSchedule}]
    zones: 2
    perZone: {cpus: 8, memory: 32Gi, devices: {nvidia.com/gpu: 2}}
    kubelet: {topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, kubeReserved: {cpu: "1"}}
  - name: cpu
    count: 1
    zones: 1
    perZone: {cpus: 8, memory: 32Gi}
    kubelet: {kubeReserved: {cpu: "1"}}
"""


@pytest.fixture
def stack() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        (root / "profile.yaml").write_text(PROFILE)
        with running(LiveStack(root, profile=str(root / "profile.yaml"))) as live:
            yield live


async def test_plain_pods_and_deployments_run_and_gpu_pods_do_in_the_playground(stack: LiveStack) -> None:
    plain = {"containers": [{"name": "hello", "image": "busybox"}]}
    labels = {"labels": {"app": "web"}}
    selector = {"matchLabels": {"app": "web"}}
    gpu = pod_manifest("gpu", seconds=1, cpu="1", memory="1Gi", gpu="1")
    del gpu["spec"]["tolerations"]
    gpu["metadata"]["namespace"] = "playground"
    await stack.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hello"}, "spec": plain},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": selector,
                "template": {"metadata": labels, "spec": {**plain, "schedulerName": "kai-ledger"}},
            },
        },
        gpu,
    )
    running_there = lambda item: item["metadata"]["name"] == "hello" and item["status"]["phase"] == "Running"  # noqa: E731
    await stack.seen("/api/v1/namespaces/default/pods", running_there)
    available = lambda item: item["status"].get("availableReplicas") == 2  # noqa: E731
    await stack.seen("/apis/apps/v1/namespaces/default/deployments", available)
    state = await stack.until(finished(1, "gpu"))
    assert state.counters.rejections == {}
