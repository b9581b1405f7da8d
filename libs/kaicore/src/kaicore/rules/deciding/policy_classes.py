"""The classes as which pods are decided on where policies place pods: these tell pods of one class apart by their work.

Queue, namespace and priority count, and the labels and annotations that a policy declares. Without policies that place
pods, a pod's class is the state's. The class follows from the settings alone, not from the policies' code: so whoever
has no code finds the recorded reasons of a pod, too.
"""

from collections.abc import Callable, Mapping

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.pod_class import PodClass, with_work
from kaicore.rules.engine.policies.setting import PolicyWork
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import ClusterView

#: Of groups that were not looked at yet: no namespace is named like this.
_NO_NUMBER = "", -1


def classes_for_policies(state: ClusterView, config: EngineConfig) -> Callable[[PodEntry], PodClass]:
    """Return what returns the class as which a pod is decided on now.

    Args:
        state: not to be changed while the function is used.
    """
    if not config.policies_place:
        return state.class_of
    placing = [one for one in config.policies if one.places]
    labels = sorted({key for one in placing for key in one.pod_labels})
    annotations = sorted({key for one in placing for key in one.pod_annotations})
    tenants = any(one.tenants for one in placing)
    made: dict[tuple[object, ...], PodClass] = {}
    #: Namespace, queue, priority and whether it may be preempted, each combination with a number.
    numbers: dict[tuple[str, str, int, bool], int] = {}
    #: By group that says what the queue of its pods is, the namespace and the number.
    of_groups: dict[str, tuple[str, int]] = {}
    queues: dict[tuple[str, str], str] = {}

    def class_of(entry: PodEntry) -> PodClass:
        base, pod = state.class_of(entry), entry.pod
        namespace, number = of_groups.get(entry.group, _NO_NUMBER)
        if namespace != pod.namespace:
            figures = figures_of(entry)
            number = numbers.setdefault(figures, len(numbers))
            if entry.group in state.groups:
                of_groups[entry.group] = pod.namespace, number
        key: tuple[object, ...] = base.key, number
        # One by one: for the few that there are, that is faster than all at once.
        for name in labels:
            key += (pod.labels.get(name),)
        for name in annotations:
            key += (pod.annotations.get(name),)
        pod_class = made.get(key)
        if pod_class is None:
            own = _found(pod.labels, labels), _found(pod.annotations, annotations)
            pod_class = made[key] = with_work(base, PolicyWork(*figures_of(entry), *own), tenants=tenants)
        return pod_class

    def figures_of(entry: PodEntry) -> tuple[str, str, int, bool]:
        workload, place = state.workload_index.workloads.get(entry.group), state.queue_of(entry)
        queue = queues.get(place)
        if queue is None:
            queue = queues[place] = queue_name(state, entry)
        if workload is None:
            return entry.pod.namespace, queue, entry.pod.priority, True
        return entry.pod.namespace, queue, workload.group.priority, workload.group.preemptible

    return class_of


def queue_name(state: ClusterView, entry: PodEntry) -> str:
    """Return the name of the queue that pays for a pod; what its group says, where there is no such queue."""
    name, namespace = state.queue_of(entry)
    number = state.queue_registry.tree.find(name, namespace=namespace)
    return name if number is None else state.queue_registry.tree.queues[number].name


def _found(values: Mapping[str, str], keys: list[str]) -> dict[str, str]:
    return {key: values[key] for key in keys if key in values}
