"""The policies of one cycle: those that its configuration names, but those that failed, on the cycle's own facts."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from kaicore.policy import Facts, Flags, Ints, Policy
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.policies.book import PolicyGuard
from kaicore.rules.engine.policies.class_policies import NodePolicies
from kaicore.rules.engine.policies.group_policies import GroupPolicies
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.policies.node_facts import NodeFacts
from kaicore.rules.engine.policies.setting import PolicySetting


def guarded(
    policies: Sequence[tuple[PolicySetting, Policy]], guard: PolicyGuard, *, but: frozenset[str]
) -> tuple[GuardedPolicy, ...]:
    """Return the policies of a cycle under guard, but those of some names."""
    return tuple(GuardedPolicy(setting, policy, guard) for setting, policy in policies if setting.name not in but)


def facts_of(cycle_input: CycleInput) -> Facts:
    """Return what policies of a cycle may know; each sees of it the inputs that it declares."""
    inputs = {name: of_nodes[""] for name, of_nodes in cycle_input.policy_inputs.items() if "" in of_nodes}
    return Facts(now_us=cycle_input.now, inputs=MappingProxyType(inputs))


def node_policies(cycle_input: CycleInput, present: Flags) -> NodePolicies | None:
    """Return the policies that place pods; None without any.

    Args:
        cycle_input: what the cycle decides on.
        present: by row, whether it is a node of the shard.
    """
    policies = [one for one in cycle_input.policies if one.setting.places]
    if not policies:
        return None
    columns = cycle_input.columns
    tenants = _tenants(cycle_input, columns) if any(one.policy.tenants for one in policies) else {}
    rows = np.flatnonzero(present[: len(columns.names)])
    nodes = NodeFacts(columns, rows, tenants, cycle_input.policy_inputs)
    return NodePolicies(policies, nodes, columns, facts_of(cycle_input))


def group_policies(cycle_input: CycleInput) -> GroupPolicies | None:
    """Return the policies that decide about groups; None without any."""
    return GroupPolicies(cycle_input, facts_of(cycle_input)) if cycle_input.policies else None


def _tenants(cycle_input: CycleInput, columns: NodeColumns) -> Mapping[str, Ints]:
    """Return how many pods are charged to each row as the cycle begins, by namespace."""
    tenants: dict[str, Ints] = {}
    for workload in cycle_input.workloads.values():
        for member in (*workload.active.values(), *workload.leaving.values()):
            row = columns.rows.get(member.node)
            if row is not None:
                counts = tenants.get(member.pod.namespace)
                if counts is None:
                    counts = tenants[member.pod.namespace] = np.zeros(len(columns.present), np.int64)
                counts[row] += 1
    return tenants
