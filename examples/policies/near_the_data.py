"""Pods go to nodes that have their dataset on a local disk."""

import numpy as np
from kaicore.policy import Facts, Ints, NoArguments, Nodes, Policy, Work
from pydantic import Field

WANTED, CACHED = "data.example/dataset", "data.example/datasets"


class NearTheData(Policy):
    """Score: points for nodes with the dataset that the pod's label names.

    A node's label lists what it has, with points between: `imagenet.laion`.
    """

    name, version = "near-the-data", "1"
    pod_labels = (WANTED,)
    node_labels = (CACHED,)

    class Arguments(NoArguments):
        """Arguments of the policy."""

        weight: int = Field(800, ge=0, le=1000, description="points of a node that has the dataset")

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the points of each node."""
        dataset = work.labels.get(WANTED, "")
        if not dataset:
            return np.zeros(len(nodes.names), np.int64)
        values, of_node = nodes.domains(CACHED)
        listed = np.char.add(np.char.add(".", values), ".")
        return np.where(np.char.find(listed, f".{dataset}.") >= 0, self.arguments.weight, 0)[of_node]
