"""The classes as which pods are decided on where policies place pods, or nodes are reserved.

Policies tell pods of one class apart by their work; reservations, by who pays for them and how long they may run.
Queue, namespace and priority count, and the labels and annotations that a policy declares. Without policies that place
pods, a pod's class is the state's. The class follows from the settings alone, not from the policies' code: so whoever
has no code finds the recorded reasons of a pod, too.
"""

from collections.abc import Callable, Mapping

from kaicore.rules.deciding.run_length import expected_us, limits_of
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.pod_class import PodClass, PolicyWork, with_reservations, with_work
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX, COHORT_PREFIX
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage
from kaicore.rules.state.views import ClusterView, CycleView

#: Labels or annotations.
Values = Mapping[str, str]


def decided_classes(state: CycleView, config: EngineConfig, *, now: int) -> Callable[[PodEntry], PodClass]:
    """Return what returns the class as which a pod is decided on now.

    Args:
        state: not to be changed while the function is used.
        now: microseconds since the epoch.
    """
    for_policies = _classes_for_policies(state, config)
    standing = [(one, window) for _, one in sorted(state.reservations.items()) if (window := one.window(now))]
    if not standing:
        return for_policies
    limit_of = limits_of(state)
    named = any(one.work for one, _ in standing)
    made: dict[tuple[str, str, str, str, int, str], PodClass] = {}

    def class_of(entry: PodEntry) -> PodClass:
        base, queue, runs = for_policies(entry), state.queue_of(entry), limit_of(entry)
        if runs < 0:
            runs = expected_us(state, config, entry, age_us=0)
        key = base.key, *queue, entry.pod.namespace, runs, entry.group if named else ""
        if key not in made:
            queues = queue_names(state, entry)
            kept_off = tuple(
                one.name
                for one, window in standing
                if now + (one.notice_us if runs < 0 else runs) > window.start
                and not one.admits(queues=queues, namespace=entry.pod.namespace, group=entry.group)
            )
            made[key] = with_reservations(base, kept_off) if kept_off else base
        return made[key]

    return class_of


def _classes_for_policies(state: ClusterView, config: EngineConfig) -> Callable[[PodEntry], PodClass]:
    if not config.policies_place:
        return state.class_of
    placing = [one for one in config.policies if one.places]
    labels = sorted({key for one in placing for key in one.pod_labels})
    annotations = sorted({key for one in placing for key in one.pod_annotations})
    tenants = any(one.tenants for one in placing)
    #: By all that makes the work of pods differ, the work; and by the key of a class too, the class with that work.
    works: dict[tuple[object, ...], PolicyWork] = {}
    made: dict[tuple[object, ...], PodClass] = {}
    #: By group that says what the queue of its pods is, of the pod that was looked at last: its labels, annotations and
    #: namespace; whether it has claims; its class, the class that the state has it in, and its own. Most are alike.
    of_groups: dict[str, tuple[Values, Values, str, bool, str, PodClass, PodClass]] = {}
    of_state, groups, workloads = state.class_of, state.groups, state.workload_index.workloads

    def class_of(entry: PodEntry) -> PodClass:
        # Room for a pod that is yet to come has no rules.
        comes = entry.stage is Stage.ABSENT
        pod, known = entry.pod, None if comes else of_groups.get(entry.group)
        if known is not None:
            labelled, annotated, namespace, claims, class_key, like, pod_class = known
            alike = labelled == pod.labels and namespace == pod.namespace
            if alike and (not annotations or annotated == pod.annotations):
                # The state's classes of such pods differ by their claims alone, which most have not.
                claims = claims or bool(pod.claims or pod.resource_claims)
                if of_state(entry) is like if claims else class_key == entry.class_key:
                    return pod_class
        base = of_state(entry)
        workload, group = workloads.get(entry.group), groups.get(entry.group)
        paid = pod if workload is None else workload.group
        place = state.queue_of(entry) if group is None else group.queue
        values = *map(pod.labels.get, labels), *map(pod.annotations.get, annotations)
        preemptible = workload is None or workload.group.preemptible
        differs_by = pod.namespace, place, paid.priority, preemptible, values
        found = made.get((base.key, differs_by))
        if found is None:
            work = works.get(differs_by)
            if work is None:
                own = _found(pod.labels, labels), _found(pod.annotations, annotations)
                queue = queue_name(state, entry)
                work = works[differs_by] = PolicyWork(pod.namespace, queue, paid.priority, preemptible, *own)
            found = made[base.key, differs_by] = with_work(base, work, tenants=tenants)
        if group is not None and workload is not None and not comes:
            claims = bool(pod.claims or pod.resource_claims)
            of_groups[entry.group] = (
                *(pod.labels, pod.annotations, pod.namespace, claims),
                *(entry.class_key, base, found),
            )
        return found

    return class_of


def queue_name(state: ClusterView, entry: PodEntry) -> str:
    """Return the name of the queue that pays for a pod; what its group says, where there is no such queue."""
    name, namespace = state.queue_of(entry)
    number = state.queue_registry.tree.find(name, namespace=namespace)
    return name if number is None else state.queue_registry.tree.queues[number].name


def queue_names(state: ClusterView, entry: PodEntry) -> frozenset[str]:
    """Return the names of the queue that pays for a pod, and of those above it; of Kueue's, also without their kind."""
    name, namespace = state.queue_of(entry)
    tree = state.queue_registry.tree
    number = tree.find(name, namespace=namespace)
    names = [name] if number is None else [tree.queues[above].name for above in tree.paths[number]]
    return frozenset([*names, *(one.removeprefix(CLUSTER_QUEUE_PREFIX).removeprefix(COHORT_PREFIX) for one in names)])


def _found(values: Mapping[str, str], keys: list[str]) -> dict[str, str]:
    return {key: values[key] for key in keys if key in values}
