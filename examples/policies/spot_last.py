"""Nodes that the cloud may take back at any time come last."""

import numpy as np
from kaicore.policy import Facts, Ints, NoArguments, Nodes, Policy, Work
from pydantic import Field

SPOT = "cloud.example/spot"


class SpotLast(Policy):
    """Score: points for nodes that are not labelled as spot nodes."""

    name, version = "spot-last", "1"
    node_labels = (SPOT,)

    class Arguments(NoArguments):
        """Arguments of the policy."""

        weight: int = Field(500, ge=0, le=1000, description="points of a node that stays")

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return the points of each node."""
        return np.where(nodes.labels(SPOT) == "true", 0, self.arguments.weight)
