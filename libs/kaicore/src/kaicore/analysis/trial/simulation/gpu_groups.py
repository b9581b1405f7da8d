"""GPUs that are opened for sharing, in a simulation: those of the input, and what the binder would do about them.

A pod of the input that runs with a share names its GPU groups by labels, as KAI-Scheduler's binder writes them. Its
groups are recorded as if a cycle had opened them, before the pod itself.
"""

from collections.abc import Callable, Iterator

from kaicore.kube.gpu_shares import ReservationSettings
from kaicore.kube.gpu_shares import reservation_pod as made_by_binder
from kaicore.rules.events.payloads import GpuClosed, GpuOpened
from kaicore.rules.model.gpu_share import GPU, GPU_GROUP_LABEL, GpuPart, gpu_memory, groups_of, reservation_name
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.mappings import Object, derived_uid
from kaicore.rules.objects.wire import DEFAULT_SCHEDULER
from kaicore.rules.state.cluster_state import ClusterState


def parts_of(pod: Pod, state: ClusterState) -> tuple[GpuPart, ...]:
    """Return the parts of GPUs that a running pod of the input has; none where it has no share or names no groups."""
    node = state.columns.facts[state.columns.row(pod.node_name)] if pod.node_name else None
    if pod.gpu_share is None or node is None:
        return ()
    part = pod.gpu_share.part_of(gpu_memory(node.labels))
    return tuple(GpuPart(group, part, pod.gpu_share.mib) for group in groups_of(pod.labels))


def opened_for(
    parts: tuple[GpuPart, ...], pod: Pod, state: ClusterState, find: Callable[[str], Object | None], *, namespace: str
) -> Iterator[GpuOpened]:
    """Yield what opens the GPUs of a running pod that are not open yet.

    Args:
        parts: of the pod.
        pod: with its node.
        state: as it is now.
        find: returns the reservation pod of a group that is in the input; None where there is none.
        namespace: of reservation pods that are not in the input.
    """
    for part in parts:
        if part.group not in state.shared_gpus.groups:
            there = find(part.group)
            name = reservation_name(pod.node_name, part.group)
            meta = {"namespace": namespace, "name": name} if there is None else there["metadata"]
            yield GpuOpened(pod.node_name, part.group, meta["namespace"], meta["name"], "")


def is_reservation(pod: Object) -> bool:
    """Tell whether a pod of the input holds a GPU for sharing, by its label and what it asks for."""
    labels = pod["metadata"].get("labels") or {}
    limits = [(one.get("resources") or {}).get("limits") or {} for one in pod["spec"].get("containers") or ()]
    return GPU_GROUP_LABEL in labels and any(GPU in one for one in limits)


def reservation_pod(opened: GpuOpened) -> Object:
    """Return the reservation pod that the binder makes for a GPU, as it is once it runs."""
    pod = made_by_binder(ReservationSettings(image=""), opened)
    pod["metadata"]["uid"] = derived_uid("", "Pod", opened.namespace, opened.name)
    pod["spec"]["schedulerName"] = DEFAULT_SCHEDULER
    return pod | {"status": {"phase": "Running"}}


def closed_groups(state: ClusterState) -> list[tuple[GpuClosed, str]]:
    """Return what closes the GPUs of which no pod has a part any more, each with the uid of its reservation pod."""
    return [
        (GpuClosed(group.opened.node, name, "Unused"), group.uid)
        for name, group in sorted(state.shared_gpus.groups.items())
        if not group.parts and not group.closed
    ]
