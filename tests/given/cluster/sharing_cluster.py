"""A cluster with shares of GPUs, in the state that a scheduler, a binder and kubelets leave it in."""

from typing import Any

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.model.gpu_share import GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION, GpuShare
from kaicore.rules.model.pod import Pod

from tests.given.cluster.factory import amounts, container, pod
from tests.given.work.workloads import Workloads

ON = EngineConfig(gpu_sharing=True)
ZONE = amounts(cpu=8, memory=32, gpu=2)


class Sharing(Workloads):
    """A cluster with words for shares of GPUs."""

    def share(self, name: str, milli: int = 0, *, mib: int = 0, devices: int = 1, **fields: Any) -> Pod:
        """A pod that asks for parts of GPUs."""
        return self.add_pod(pod(name, gpu_share=GpuShare(milli=milli, mib=mib, devices=devices), **{"cpu": 1} | fields))

    def reservation_pod(self, group: str, index: str = "0", **fields: Any) -> Pod:
        """The reservation pod of a GPU group is seen, and says which GPU it holds."""
        opened = self.state.shared_gpus.groups[group].opened
        given: dict[str, Any] = {"namespace": opened.namespace, "scheduler_name": "default", "phase": "Running"}
        given |= {"labels": {GPU_GROUP_LABEL: group}, "annotations": {GPU_INDEX_ANNOTATION: index}}
        held = container("resource-reservation", gpu=1)
        return self.add_pod(pod(opened.name, held, node_name=opened.node, **given | fields))


class SharingCluster(Sharing):
    """Nodes with two zones of two GPUs each, and a scheduler that gives shares of them."""

    def __init__(self, cluster: str = "c", *, nodes: int = 1) -> None:
        super().__init__(cluster)
        self.add_nodes(nodes, ZONE, ZONE)

    def turn(self) -> None:
        """A cycle; what it placed runs, and the reservation pods are there, with the index of their GPUs."""
        for one in self.cycle(ON).placements:
            self.run(self.state.pods[one.uid].pod)
        for number, (name, group) in enumerate(list(self.state.shared_gpus.groups.items())):
            if group.planned:
                seen = self.reservation_pod(name, annotations={}, phase="Pending")
                self.record(f"node/{seen.node_name}", payloads.NodeCharged(seen.node_name, "", (seen.uid,)))
                self.see(seen, annotations={GPU_INDEX_ANNOTATION: str(number + 2)}, phase="Running")


def of_two_namespaces() -> SharingCluster:
    """One GPU, of which pods `red/notebook` and `blue/notebook` have a part each."""
    made = SharingCluster("c")
    for namespace, milli in (("red", 300), ("blue", 500)):
        made.share("notebook", milli, namespace=namespace, uid=f"uid-{namespace}")
    made.turn()
    return made
