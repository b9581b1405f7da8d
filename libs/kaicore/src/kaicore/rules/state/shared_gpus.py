"""GPUs that are opened for sharing, folded from the log: by GPU group the node, the reservation pod, and the parts.

A cycle opens a GPU (`GpuOpened`): from then on a planned pod holds it, charged like any other. Once the watcher has
seen the real reservation pod, that one is charged in its place, with the zones that were predicted. Parts are to be had
as long as the reservation holds the GPU and the group is not closed (`GpuClosed`).

A GPU is *exposed* when pods share it and no reservation pod holds it: that pod was deleted, evicted or has failed, or
its successor got another GPU. The kubelet may give such a GPU away. Until it is held again, or its pods are over, its
parts and the whole GPUs of its node are not to be had, and its pods count as misplaced.

A GPU *ends* when all pods that share it are on their way out. So is its reservation pod then: it counts as being
released, and no more parts are to be had.
"""

from collections.abc import Collection, Mapping

import msgspec

from kaicore.rules.engine.placement.gpu_supply import PLANNED, GpuSupply, Reservation, planned_pod
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.payloads import GpuClosed, GpuOpened
from kaicore.rules.model.gpu_share import GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION, GpuPart
from kaicore.rules.model.placement import ContainerPlacement
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.charges.node_charges import NodeCharges
from kaicore.rules.state.pods.pod_entry import PodEntry


class GpuGroup(msgspec.Struct):
    """A GPU that was opened for sharing.

    Attributes:
        uid: of the pod that holds the GPU: of the planned one, until the real one was seen; empty once it is gone.
        index: of the GPU that its pods share, as the first reservation pod found it; empty until it is known.
        found: the GPU of the reservation pod that there is now; empty until it is known.
        closed: why it was closed; empty as long as parts are to be had.
        parts: what pods hold of it, by uid.
    """

    opened: GpuOpened
    uid: str
    index: str = ""
    found: str = ""
    closed: str = ""
    parts: dict[str, GpuPart] = msgspec.field(default_factory=dict)

    @property
    def planned(self) -> bool:
        """True until the reservation pod was seen."""
        return self.uid.startswith(PLANNED)

    @property
    def astray(self) -> bool:
        """True while no reservation pod is known to hold the GPU that was shared first."""
        return bool(self.index) and self.found != self.index

    @property
    def exposed(self) -> str:
        """Say why the GPU that pods share is not held; empty where it is, or is shared by none."""
        if not self.parts or not self.astray:
            return ""
        pod = f"reservation pod {self.opened.namespace}/{self.opened.name}"
        holder = f"{pod} holds GPU {self.found}" if self.found else f"no {pod} holds it"
        return f"it shares GPU {self.index} of {self.opened.node}, and {holder}: the kubelet may give it to others"


class SharedGpus:
    """All of them (`groups`: by the group's name)."""

    def __init__(self, columns: NodeColumns, pods: Mapping[str, PodEntry], charges: NodeCharges) -> None:
        """Args:
        columns: of the state; their opened GPUs are written by this class only.
        charges: of the state, for reservation pods that end.
        """
        self.groups: dict[str, GpuGroup] = {}
        self._columns = columns
        self._pods = pods
        self._charges = charges
        #: By uid of pods that wait for or hold a reservation.
        self._by_uid: dict[str, str] = {}
        #: Groups that are exposed, and why; and those of which that has changed since `take_turned`.
        self._exposed: dict[str, str] = {}
        self._turned: set[str] = set()
        columns.gpus.reservation_of = self.reservation

    @property
    def _supply(self) -> GpuSupply:
        return self._columns.gpus

    def open(self, opened: GpuOpened) -> Pod | None:
        """Take over a decision; returns the planned pod, None where the group is known already."""
        if opened.group in self.groups:
            return None
        pod = planned_pod(opened.namespace, opened.name, opened.group)
        self.groups[opened.group] = GpuGroup(opened, pod.uid)
        self._by_uid[pod.uid] = opened.group
        return pod

    def close(self, closed: GpuClosed) -> str:
        """Take over that a GPU is closed; returns the uid of the planned pod if that still holds it."""
        group = self.groups.get(closed.group)
        if group is None or group.closed:
            return ""
        group.closed = closed.reason
        self._supply.close(closed.group)
        return group.uid if group.planned else ""

    def reserved_by(self, pod: Pod) -> GpuGroup | None:
        """Return the group that a pod is the reservation of; None for any other pod."""
        if pod.gpu_share is not None or not self.groups:
            return None
        group = self.groups.get(pod.labels.get(GPU_GROUP_LABEL, ""))
        if group is None:
            return None
        opened = group.opened
        same = (opened.namespace, opened.name, opened.node) == (pod.namespace, pod.name, pod.node_name)
        return group if same else None

    def seen(self, group: GpuGroup, pod: Pod) -> None:
        """Take over the real reservation pod of a group."""
        known = group.found if group.uid == pod.uid else ""
        group.found = "" if pod.finished else pod.annotations.get(GPU_INDEX_ANNOTATION, known)
        if group.found and not (group.index and group.parts):
            group.index = group.found
        self._by_uid.pop(group.uid, None)
        group.uid = pod.uid
        self._by_uid[pod.uid] = group.opened.group
        self._look(group)

    def exposed_by(self, parts: tuple[GpuPart, ...]) -> str:
        """Say why GPUs that a pod shares are not held; empty where they are."""
        groups = (self.groups.get(part.group) for part in parts)
        return "; ".join(text for group in groups if group is not None and (text := group.exposed))

    def observed(self, parts: tuple[GpuPart, ...]) -> list[ContainerPlacement]:
        """Return what was observed of the pods that hold the GPUs of parts; those are left out that were not yet."""
        groups = (self.groups.get(part.group) for part in parts)
        entries = (self._pods.get(group.uid) for group in groups if group is not None)
        return [one for entry in entries if entry is not None and entry.observed for one in entry.observed.lasting]

    def sharers(self, uid: str) -> list[str]:
        """Return the pods that share the GPU which a reservation pod holds, by uid, in order."""
        group = self.groups.get(self._by_uid.get(uid, ""))
        return [] if group is None else sorted(one for one in group.parts if one in self._pods)

    @property
    def exposed(self) -> list[GpuGroup]:
        """The GPUs that pods share although no reservation pod holds them, by the group's name."""
        return [self.groups[name] for name in sorted(self._exposed)]

    def take_turned(self) -> list[GpuGroup]:
        """Return the groups that have become exposed, are it no more, or for another reason, once each."""
        if not self._turned:
            return []
        turned, self._turned = self._turned, set()
        return [self.groups[name] for name in sorted(turned) if name in self.groups]

    def is_reservation(self, uid: str) -> bool:
        """Tell whether a pod, by its uid, is a reservation."""
        return uid in self._by_uid

    def concerns(self, entry: PodEntry) -> bool:
        """Tell whether a pod has a part of a GPU, or is a reservation."""
        return bool(entry.gpus) or entry.pod.uid in self._by_uid

    def left_by(self, uids: Collection[str]) -> list[GpuGroup]:
        """Return the groups that pods share, and none does once the pods with these uids are gone, by name."""
        left = (name for name, group in self.groups.items() if group.parts and group.parts.keys() <= set(uids))
        return [self.groups[name] for name in sorted(left)]

    def update(self, before: PodEntry, after: PodEntry, held: str, holds: str) -> None:
        """Bring parts up to date after an event changed a pod's entry.

        Args:
            before: a copy of the entry as it was before the event.
            held: the node that the pod was charged to; empty for none.
            holds: the node that it is charged to now; empty for none.
        """
        uid = after.pod.uid
        for part in before.gpus if held else ():
            self._hold(uid, part, sign=-1, leaving=before.leaving)
        for part in after.gpus if holds else ():
            self._hold(uid, part, sign=1, leaving=after.leaving)
        if held or holds:
            for group in sorted({part.group for part in (*before.gpus, *after.gpus)}):
                self._settle(group)
        name = self._by_uid.get(uid)
        if name is not None:
            self._offer(name, after, held=bool(holds))

    def restore(self, groups: list[GpuGroup]) -> None:
        """Put groups back as a snapshot has them, once the pods are there."""
        self.groups = {group.opened.group: group for group in groups}
        self._by_uid = {group.uid: group.opened.group for group in groups if group.uid}
        for entry in self._pods.values():
            for part in entry.gpus if entry.charged else ():
                self._supply.hold(part.group, part.milli)
                if entry.leaving:
                    self._supply.leave(part.group)
        for name, group in self.groups.items():
            holder = self._pods.get(group.uid)
            if holder is not None:
                self._offer(name, holder, held=holder.charged)
            self._look(group)
        self._turned.clear()

    def reservation(self, name: str) -> Reservation | None:
        """Return what holds a group's GPU."""
        group = self.groups.get(name)
        entry = None if group is None else self._pods.get(group.uid)
        if entry is None or not entry.charged:
            return None
        return Reservation(entry.pod.uid, entry.requests, entry.zone_charge, releasing=entry.releasing)

    def _hold(self, uid: str, part: GpuPart, *, sign: int, leaving: bool) -> None:
        self._supply.hold(part.group, part.milli, sign=sign)
        if leaving:
            self._supply.leave(part.group, sign=sign)
        group = self.groups.get(part.group)
        if group is None:
            return
        if sign > 0:
            group.parts[uid] = part
        else:
            group.parts.pop(uid, None)
            self._forget_if_over(group)
        self._look(group)

    def _look(self, group: GpuGroup) -> None:
        """Note whether a group is exposed."""
        name, text = group.opened.group, group.exposed
        if text == self._exposed.get(name, ""):
            return
        self._turned.add(name)
        if text:
            self._exposed[name] = text
            self._supply.expose(name, self._columns.row(group.opened.node))
        else:
            del self._exposed[name]
            self._supply.cover(name)

    def _offer(self, name: str, entry: PodEntry, *, held: bool) -> None:
        group = self.groups[name]
        if held and not entry.leaving and not group.closed and not group.astray:
            self._supply.open(name, self._columns.row(entry.node), offered=False)
            self._settle(name)
            return
        self._supply.close(name)
        if held:
            self._charges.set_releasing(entry, ends=self._supply.is_ending(name))
        else:
            self._by_uid.pop(group.uid, None)
            group.uid = group.found = ""
            self._look(group)
            self._forget_if_over(group)

    def _settle(self, name: str) -> None:
        """Let the reservation pod of a GPU go with the last pods that share it, or stay."""
        group = self.groups.get(name)
        holder = None if group is None else self._pods.get(group.uid)
        if holder is None:
            return
        ends = self._supply.is_ending(name)
        self._charges.set_releasing(holder, ends=ends)
        if ends:
            self._supply.withhold(name)
        else:
            self._supply.offer(name)

    def _forget_if_over(self, group: GpuGroup) -> None:
        if group.closed and not group.uid and not group.parts:
            self.groups.pop(group.opened.group, None)
