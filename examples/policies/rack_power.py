"""The GPUs in use in a rack draw no more than its power, of which `kai policy input rack-watts` records figures."""

import numpy as np
from kaicore.policy import Facts, Flags, NoArguments, Nodes, Policy, Work
from pydantic import Field

RACK, GPU, WATTS = "topology.example/rack", "nvidia.com/gpu", "rack-watts"
#: Stands for no figure.
NONE = 2**62


class RackPower(Policy):
    """Filter: racks in which one more pod of the class would draw too much."""

    name, version, live = "rack-power", "3", True
    reason = "the rack has no power left"
    node_labels, within, inputs = (RACK,), RACK, (WATTS,)

    class Arguments(NoArguments):
        """Arguments of the policy."""

        watts_per_gpu: int = Field(700, gt=0, description="draw of a GPU in use")
        watts_per_rack: int = Field(20_000, gt=0, description="power of a rack, where no input tells another one")

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        """Return which nodes may take one more pod; those without the label have no bound."""
        racks, of_node = nodes.domains(RACK)
        used = np.bincount(of_node, weights=nodes.used(GPU), minlength=len(racks))
        draw = (used[of_node] + work.gpus / 1000) * self.arguments.watts_per_gpu
        # The least figure that is recorded for a node of a rack, else the one of the cluster, else the argument.
        least = np.full(len(racks), NONE)
        np.minimum.at(least, of_node, nodes.inputs(WATTS, NONE))
        watts = np.where(least < NONE, least, facts.input(WATTS, self.arguments.watts_per_rack))
        return (draw <= watts[of_node]) | (racks == "")[of_node] | (work.gpus == 0)
