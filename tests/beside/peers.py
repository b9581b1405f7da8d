"""The schedulers that ours is compared with, as their projects ship them, each beside the same API server."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.beside.control_plane import Program
from tests.beside.programs import KAI, sources
from tests.ports import free_port

#: The names under which pods ask for them.
KUBE, TOPOLOGY_AWARE, KAI_SCHEDULER = "default-scheduler", "topo-aware-scheduler", "kai-scheduler"

#: The queue of all work where KAI runs. Only queues below another one take work in KAI v0.12.
QUEUE, _ABOVE = "default-queue", "default-parent-queue"

#: As its README has it where the scheduler's own cache is used; its period is the least that is recommended there. What
#: nodes publish is taken over when its fingerprint is that of the pods known there. By default ("Dedicated") those that
#: have ended count until they are deleted, as kubelets before 1.34 told of them; later ones tell of active pods alone,
#: so it is "Shared": pods that run.
TOPOLOGY_AWARE_CONFIG: dict[str, Any] = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
    "profiles": [
        {
            "schedulerName": TOPOLOGY_AWARE,
            "plugins": {"multiPoint": {"enabled": [{"name": "NodeResourceTopologyMatch"}]}},
            "pluginConfig": [
                {
                    "name": "NodeResourceTopologyMatch",
                    "args": {
                        "scoringStrategy": {"type": "LeastAllocated"},
                        "cacheResyncPeriodSeconds": 5,
                        "cache": {"informerMode": "Shared"},
                    },
                }
            ],
        }
    ],
}


def kai_definitions() -> list[dict[str, Any]]:
    """Return KAI's definitions as it ships them, in Go's module cache.

    Raises:
        FileNotFoundError: there is no Go to fetch them with.
    """
    folder = sources(KAI) / "deployments/kai-scheduler/crds"
    return [one for file in sorted(folder.glob("*.yaml")) for one in yaml.safe_load_all(file.read_text()) if one]


def kai_queues() -> list[dict[str, Any]]:
    """Return the queues that KAI's chart makes where it is told of none."""
    boundless = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    resources = dict.fromkeys(("cpu", "memory", "gpu"), boundless)
    return [
        {
            "apiVersion": "scheduling.run.ai/v2",
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"resources": resources, **({"parentQueue": parent} if parent else {})},
        }
        for name, parent in ((_ABOVE, ""), (QUEUE, _ABOVE))
    ]


def run_peer(stack: ExitStack, root: Path, kubeconfig: Path, scheduler: str) -> None:
    """Run what schedules the pods of a name, until the stack ends; KAI's definitions have to be there."""
    if scheduler == KAI_SCHEDULER:
        _run_kai(stack, root, kubeconfig)
        return
    flags = ["--leader-elect=false", "--secure-port=0", "--v=2"]
    name = "kube-scheduler"
    if scheduler == TOPOLOGY_AWARE:
        name = "topology-aware-scheduler"
        config = {**TOPOLOGY_AWARE_CONFIG, "clientConnection": {"kubeconfig": str(kubeconfig)}}
        (root / "topology-aware.yaml").write_text(yaml.safe_dump(config))
        flags += ["--config", str(root / "topology-aware.yaml")]
    else:
        flags += ["--kubeconfig", str(kubeconfig)]
    stack.callback(Program(root, name, *flags).stop)


def _run_kai(stack: ExitStack, root: Path, kubeconfig: Path) -> None:
    """All of its services that whole GPUs take. Webhooks check what people write; nobody here writes wrong things."""
    services = {
        "kai-podgrouper": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
        "kai-binder": ("--metrics-bind-address=0", "--health-probe-bind-address=0"),
        "kai-podgroupcontroller": (
            "--metrics-bind-address=0",
            "--health-probe-bind-address=0",
            "--enable-podgroup-webhook=false",
        ),
        "kai-queuecontroller": ("--metrics-listen-address=0", "--enable-webhook=false"),
        "kai-scheduler": (f"--listen-address=127.0.0.1:{free_port()}", f"--plugin-server-port={free_port()}"),
    }
    for name, flags in services.items():
        stack.callback(Program(root, name, *flags, environment={"KUBECONFIG": str(kubeconfig)}).stop)
