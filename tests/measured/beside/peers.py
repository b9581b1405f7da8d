"""The schedulers that ours is compared with, as their projects ship them, each beside the same API server."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from kaicore.yaml_text import load_yaml, load_yaml_all

from tests.given.servers.ports import free_port
from tests.measured.beside.control_plane import Program
from tests.measured.beside.programs import KAI, KOORDINATOR, VOLCANO, Peer, sources

#: The names under which pods ask for them.
KUBE, TOPOLOGY_AWARE, KAI_SCHEDULER = "default-scheduler", "topo-aware-scheduler", "kai-scheduler"
VOLCANO_SCHEDULER, KOORDINATOR_SCHEDULER = "volcano", "koord-scheduler"

#: The queue of all work where KAI runs. Only queues below another one take work in KAI v0.12.
QUEUE, _ABOVE = "default-queue", "default-parent-queue"

#: As its README has it where the scheduler's own cache is used; its period is the least that is recommended there. What
#: nodes publish is taken over when its fingerprint is that of the pods known there. By default ("Dedicated") those that
#: have ended count until they are deleted, as kubelets before 1.34 listed them; later ones list active pods alone,
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
    """Return KAI's definitions as it ships them.

    Raises:
        FileNotFoundError: they are not in the folder that the user names.
    """
    return _documents(KAI, "deployments/kai-scheduler/crds")


def volcano_definitions() -> list[dict[str, Any]]:
    """Return Volcano's definitions as it ships them.

    Raises:
        FileNotFoundError: they are not in the folder that the user names.
    """
    return _documents(VOLCANO, "config/crd/volcano/bases") + _documents(VOLCANO, "config/crd/jobflow/bases")


def koordinator_definitions() -> list[dict[str, Any]]:
    """Return Koordinator's definitions as it ships them, without NodeResourceTopology, which the nodes' publisher has.

    Raises:
        FileNotFoundError: they are not in the folder that the user names.
    """
    definitions = _documents(KOORDINATOR, "config/crd/bases")
    return [one for one in definitions if one["spec"]["group"] != "topology.node.k8s.io"]


def _documents(peer: Peer, folder: str) -> list[dict[str, Any]]:
    files = sorted((sources(peer) / folder).glob("*.yaml"))
    return [one for file in files for one in load_yaml_all(file.read_text()) if one]


def kai_queues() -> list[dict[str, Any]]:
    """Return the queues that KAI's chart makes where its values name none."""
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
    if scheduler in _RUN:
        _RUN[scheduler](stack, root, kubeconfig)
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


def run_volcanos_controllers(stack: ExitStack, root: Path, kubeconfig: Path) -> None:
    """Run what makes PodGroups, and the pods of Volcano's Jobs, until the stack ends.

    Its admission webhooks are off: what they write into a Job (queue, least available pods) is written in the Job.
    """
    flags = ("--leader-elect=false", "--kubeconfig", str(kubeconfig), "--v=3")
    stack.callback(Program(root, "vc-controller-manager", *flags).stop)


def _run_volcano(stack: ExitStack, root: Path, kubeconfig: Path) -> None:
    """Its scheduler, with the configuration of its chart."""
    config = sources(VOLCANO) / "installer/helm/chart/volcano/config/volcano-scheduler.conf"
    flags = (
        *("--leader-elect=false", "--kubeconfig", str(kubeconfig), "--scheduler-conf", str(config), "--v=3"),
        *("--cache-dumper=false", f"--listen-address=127.0.0.1:{free_port()}"),
    )
    stack.callback(Program(root, "vc-scheduler", *flags).stop)


def _run_koordinator(stack: ExitStack, root: Path, kubeconfig: Path) -> None:
    """Its scheduler, with the configuration of its manifests."""
    shipped = load_yaml((sources(KOORDINATOR) / "config/manager/scheduler-config.yaml").read_text())
    config = load_yaml(shipped["data"]["koord-scheduler-config"])
    config |= {"leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(kubeconfig)}}
    (root / "koordinator.yaml").write_text(yaml.safe_dump(config))
    flags = ("--config", str(root / "koordinator.yaml"), "--secure-port=0", f"--port={free_port()}", "--v=2")
    stack.callback(Program(root, "koord-scheduler", *flags).stop)


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


_RUN = {
    KAI_SCHEDULER: _run_kai,
    VOLCANO_SCHEDULER: _run_volcano,
    KOORDINATOR_SCHEDULER: _run_koordinator,
}
