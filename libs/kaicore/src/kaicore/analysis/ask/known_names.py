"""Names of objects that can be explained, for questions that misspell one."""

from kaicore.analysis.ask.listing import queues_of
from kaicore.rules.state.views import ClusterView


def known_names(state: ClusterView, kind: str, namespace: str) -> set[str]:
    """Return the objects of a kind that can be explained, by name: to be compared with an unknown name.

    Args:
        state: of the cluster.
        kind: Pod (`namespace/name`, of all namespaces), Node, a queue's, or that of a group or an owner.
        namespace: of groups and owners.
    """
    match kind:
        case "Pod":
            return {entry.pod.subject for entry in state.pods.values()}
        case "Node":
            return {name for name, row in state.columns.rows.items() if state.columns.facts[row] is not None}
        case "Queue" | "ClusterQueue" | "Cohort" | "LocalQueue":
            return {queue.name.rpartition("/")[2] if "/" in queue.name else queue.name for queue in queues_of(state)}
        case _:
            pods = (entry.pod for entry in state.pods.values() if entry.pod.namespace == namespace)
            owners = {pod.owner.name for pod in pods if pod.owner is not None}
            return owners | {group.name for group in state.groups.values() if group.namespace == namespace}
