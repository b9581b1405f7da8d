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


class SharingCluster(Workloads):
    """Nodes with two zones of two GPUs each, and a scheduler that gives shares of them."""

    def __init__(self, cluster: str = "c", *, nodes: int = 1) -> None:
        super().__init__(cluster)
        self.add_nodes(nodes, ZONE, ZONE)

    def share(self, name: str, milli: int, **fields: Any) -> Pod:
        """A pod that asks for a part of a GPU."""
        return self.add_pod(pod(name, cpu=1, gpu_share=GpuShare(milli=milli), **fields))

    def turn(self) -> None:
        """A cycle; what it placed runs, and the reservation pods are there, with the index of their GPUs."""
        for one in self.cycle(ON).placements:
            self.run(self.state.pods[one.uid].pod)
        for number, (name, group) in enumerate(list(self.state.shared_gpus.groups.items())):
            if group.planned:
                opened = group.opened
                fields: dict[str, Any] = {"namespace": opened.namespace, "scheduler_name": "default"}
                seen = pod(
                    opened.name,
                    container("resource-reservation", gpu=1),
                    node_name=opened.node,
                    labels={GPU_GROUP_LABEL: name},
                    **fields,
                )
                self.add_pod(seen)
                self.record(f"node/{opened.node}", payloads.NodeCharged(opened.node, "", (seen.uid,)))
                self.see(
                    seen, annotations={GPU_INDEX_ANNOTATION: str(number + 2)}, phase="Running", node_name=opened.node
                )


def of_two_namespaces() -> SharingCluster:
    """One GPU, of which pods `red/notebook` and `blue/notebook` have a part each."""
    made = SharingCluster("c")
    for namespace, milli in (("red", 300), ("blue", 500)):
        made.share("notebook", milli, namespace=namespace, uid=f"uid-{namespace}")
    made.turn()
    return made
