"""Pods of two tenants are never on one node."""

import numpy as np
from kaicore.policy import Facts, Flags, NoArguments, Nodes, Policy, Work
from pydantic import Field


class NotBeside(Policy):
    """Filter: nodes with pods of the other namespace, both ways."""

    name, version, live, tenants = "not-beside", "1", True, True
    within = ""  # A charge changes the answer about its own node.
    reason = "a tenant runs there that is kept apart from this one"

    class Arguments(NoArguments):
        """Arguments of the policy."""

        apart: list[tuple[str, str]] = Field([], description="pairs of namespaces that are kept apart")

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        """Return which nodes have none of the other's pods."""
        allowed = np.ones(len(nodes.names), np.bool_)
        for one, other in self.arguments.apart:
            if work.namespace in (one, other):
                allowed &= nodes.pods_of(other if work.namespace == one else one) == 0
        return allowed
