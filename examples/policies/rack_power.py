"""The GPUs in use in a rack draw no more than the rack's power."""

import numpy as np
from kaicore.policy import Facts, Flags, NoArguments, Nodes, Policy, Work
from pydantic import Field

RACK, GPU = "topology.example/rack", "nvidia.com/gpu"


class RackPower(Policy):
    """Filter: racks in which one more pod of the class would draw too much."""

    name, version, live = "rack-power", "1", True
    reason = "the rack has no power left"
    node_labels = (RACK,)

    class Arguments(NoArguments):
        """Arguments of the policy."""

        watts_per_gpu: int = Field(700, gt=0, description="draw of a GPU in use")
        watts_per_rack: int = Field(20_000, gt=0, description="power of a rack; nodes without the label have no bound")

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        """Return which nodes may take one more pod."""
        racks, of_node = np.unique(nodes.labels(RACK), return_inverse=True)
        used = np.bincount(of_node, weights=nodes.used(GPU), minlength=len(racks))
        draw = (used[of_node] + work.gpus / 1000) * self.arguments.watts_per_gpu
        return (draw <= self.arguments.watts_per_rack) | (nodes.labels(RACK) == "") | (work.gpus == 0)
