"""GPUs that are opened for sharing, as answers: who holds which part, what is free, which pod reserves each."""

from collections.abc import Iterable

from kaicore.analysis.life.why_answers import GpuPartAnswer, PartHolder, SharedGpuAnswer
from kaicore.rules.model.gpu_share import GPU_GROUP_LABEL, WHOLE, GpuPart, gpus_text
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.shared_gpus import GpuGroup
from kaicore.rules.state.views import FleetView, PodsView


def part_answers(state: PodsView, entry: PodEntry) -> list[GpuPartAnswer]:
    """Return the parts of GPUs that a pod holds; of a reservation pod the GPU that it reserves."""
    if not entry.charged:
        return []
    groups = state.shared_gpus.groups
    parts = [
        GpuPartAnswer(
            group=part.group, gpu=groups[part.group].index if part.group in groups else "", part=gpus_text(part.milli)
        )
        for part in entry.gpus
    ]
    if state.shared_gpus.is_reservation(entry.pod.uid):
        name = entry.pod.labels[GPU_GROUP_LABEL]
        parts.append(GpuPartAnswer(group=name, gpu=groups[name].index, reserves=True))
    return parts


def shared_gpus_of(state: FleetView, parts: Iterable[GpuPart], uid: str) -> list[SharedGpuAnswer]:
    """Return the GPUs of which a pod has parts.

    Args:
        state: as of the answer; it may know a group no more.
        parts: of the pod.
        uid: the pod's; it is not named as a holder.
    """
    groups = state.shared_gpus.groups
    return [
        _shared(state, groups[part.group], part=gpus_text(part.milli), uid=uid)
        if part.group in groups
        else SharedGpuAnswer(group=part.group, part=gpus_text(part.milli), free="0", remark="not opened any more")
        for part in parts
    ]


def shared_gpus_on(state: FleetView, node: str) -> list[SharedGpuAnswer]:
    """Return the GPUs of a node that are opened for sharing, by index, those without one last."""
    groups = [group for group in state.shared_gpus.groups.values() if group.opened.node == node]
    return [_shared(state, group) for group in sorted(groups, key=_by_index)]


def _by_index(group: GpuGroup) -> tuple[bool, int, str, str]:
    number = int(group.index) if group.index.isdecimal() else 0
    return not group.index, number, group.index, group.opened.group


def _shared(state: FleetView, group: GpuGroup, *, part: str = "", uid: str = "") -> SharedGpuAnswer:
    opened, supply = group.opened, state.columns.gpus
    holders = sorted(
        (state.pods[holder].pod.subject, gpus_text(held.milli))
        for holder, held in group.parts.items()
        if holder != uid and holder in state.pods
    )
    remark = "its reservation pod is not there any more"
    if group.closed:
        remark = f"closed: {group.closed}"
    elif group.planned:
        remark = "its reservation pod is not there yet"
    elif group.uid:
        remark = "" if supply.is_offered(opened.group) else "its reservation pod is being deleted"
    return SharedGpuAnswer(
        group=opened.group,
        gpu=group.index,
        part=part,
        free=gpus_text(WHOLE - supply.used(opened.group)) if supply.is_offered(opened.group) else "0",
        held_by=[PartHolder(pod=subject, part=held) for subject, held in holders],
        reservation=f"{opened.namespace}/{opened.name}" if group.uid else "",
        remark=remark,
    )
