"""Fold of the GPUs that are opened for shares: who holds which, and what is known of their reservation pods.

What is to be done follows from it alone, so it is the same after a crash: `next_step` for a pod that is to be bound,
`unused` for the GPUs to close, `exposed` for those that pods share although no reservation pod holds them, and
`leftovers` for the reservation pods to delete.

A step is done again when its result is not seen, and does no harm then: the names of reservation pods and ConfigMaps
are those of the decision, and what is written is the same.
"""

from collections.abc import Iterable
from enum import StrEnum

import msgspec
from kaicore.kube.normalize.gpu_shares import is_ours
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import GpuOpened, Payload, PodPlaced
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.gpu_sharing import GPU_GROUP_LABEL, GPU_INDEX_ANNOTATION

#: Events that matter here.
EVENT_TYPES = frozenset({"BindFailed", "GpuClosed", "GpuOpened", "PodDeleted", "PodObserved", "PodPlaced"})


class OpenedGpu(msgspec.Struct):
    """A GPU that is opened for shares.

    Attributes:
        opened: the decision.
        uid: of its reservation pod, as the watcher saw it; empty before.
        device: the GPU by its UUID or index, as the pod's program found it; empty before, and once the pod is lost.
        shared: the GPU that pods share, which is the first that was found; empty before.
        lost: why the pod does not hold the GPU and never will; empty where it does or may.
        over: the pod has ended, and is to be deleted before there can be another.
        gone: the pod was deleted.
        holders: uids of the pods that have a part of it.
    """

    opened: GpuOpened
    uid: str = ""
    device: str = ""
    shared: str = ""
    lost: str = ""
    over: bool = False
    gone: bool = False
    holders: list[str] = []

    @property
    def group(self) -> str:
        """The GPU group."""
        return self.opened.group

    @property
    def node(self) -> str:
        """The node's name."""
        return self.opened.node

    @property
    def exposed(self) -> bool:
        """True where pods share the GPU and no reservation pod is known to hold it."""
        return bool(self.holders and self.shared) and self.device != self.shared


class ReservationPod(msgspec.Struct, frozen=True):
    """A reservation pod of a GPU that is not open."""

    uid: str
    namespace: str
    name: str
    node: str


class GpuGroupsRecord(msgspec.Struct):
    """`GpuGroups` as plain data."""

    opened: list[OpenedGpu]
    leftovers: list[ReservationPod]
    namespaces: list[str]


class ShareStep(StrEnum):
    """The next step for a pod with parts of GPUs."""

    RESERVE = "reserve"
    WAIT = "wait"
    TELL = "tell"
    GIVE_UP = "give up"


class GpuGroups:
    """The opened GPUs of a cluster, by group."""

    def __init__(self, record: GpuGroupsRecord | None = None) -> None:
        """Args: record: what `record` gave."""
        self.opened = {gpu.group: gpu for gpu in record.opened} if record else {}
        #: Reservation pods of ours that hold a GPU for nobody, by uid.
        self.leftovers = {pod.uid: pod for pod in record.leftovers} if record else {}
        #: Where reservation pods are: pods elsewhere are none, whatever their labels say.
        self._namespaces = set(record.namespaces) if record else set[str]()
        #: Those without holders, by group.
        self._unused = {gpu.group: gpu for gpu in self.opened.values() if not gpu.holders}
        #: By uid of a pod, the groups that it has parts of, or of which it is the reservation pod.
        self._groups: dict[str, list[str]] = {}
        for gpu in self.opened.values():
            for uid in (*gpu.holders, gpu.uid):
                self._groups.setdefault(uid, []).append(gpu.group)

    def record(self) -> GpuGroupsRecord:
        """Return all of it as plain data."""
        return GpuGroupsRecord(list(self.opened.values()), list(self.leftovers.values()), sorted(self._namespaces))

    def fold(self, payload: Payload) -> None:
        """Take in an event."""
        match payload:
            case GpuOpened():
                self.opened[payload.group] = self._unused[payload.group] = OpenedGpu(payload)
                self._namespaces.add(payload.namespace)
            case payloads.GpuClosed():
                closed = self.opened.pop(payload.group, None)
                self._unused.pop(payload.group, None)
                if closed is not None and closed.uid and not closed.gone:
                    name = closed.opened.name
                    self.leftovers[closed.uid] = ReservationPod(closed.uid, closed.opened.namespace, name, closed.node)
            case PodPlaced() if payload.gpus:
                self._release(payload.uid)
                for gpu in self.of(payload):
                    gpu.holders.append(payload.uid)
                    self._unused.pop(gpu.group, None)
                    self._groups.setdefault(payload.uid, []).append(gpu.group)
            case payloads.BindFailed():
                self._release(payload.uid)
            case payloads.PodObserved(pod):
                if pod.namespace in self._namespaces and is_ours(pod.labels):
                    self._reservation_seen(pod)
                elif pod.finished:
                    self._release(pod.uid)
            case payloads.PodDeleted(uid):
                self.leftovers.pop(uid, None)
                self._release(uid)
            case _:
                pass

    def _reservation_seen(self, pod: Pod) -> None:
        gpu = self.opened.get(pod.labels.get(GPU_GROUP_LABEL, ""))
        if gpu is None or (gpu.opened.namespace, gpu.opened.name) != (pod.namespace, pod.name):
            self.leftovers[pod.uid] = ReservationPod(pod.uid, pod.namespace, pod.name, pod.node_name)
            return
        if gpu.uid != pod.uid:
            gpu.uid, gpu.lost, gpu.over, gpu.gone = pod.uid, "", False, False
            self._groups.setdefault(pod.uid, []).append(gpu.group)
        gpu.device = pod.annotations.get(GPU_INDEX_ANNOTATION, "")
        if gpu.device and not (gpu.shared and gpu.holders):
            gpu.shared = gpu.device
        if pod.finished:
            gpu.device, gpu.over = "", True
            gpu.lost = f"its reservation pod ended: {pod.reason or pod.phase}: {pod.message}"
        elif gpu.device not in ("", gpu.shared):
            gpu.lost = f"its reservation pod holds GPU {gpu.device}, and its pods share GPU {gpu.shared}"
            gpu.device = ""
        elif pod.deletion_at is not None:
            gpu.device, gpu.lost = "", "its reservation pod is being deleted"

    def _release(self, uid: str) -> None:
        """Take note that a pod is over: it holds no part any more, or no GPU for others."""
        for group in self._groups.pop(uid, ()):
            gpu = self.opened.get(group)
            if gpu is not None and uid in gpu.holders:
                gpu.holders.remove(uid)
                if not gpu.holders:
                    self._unused[group] = gpu
            elif gpu is not None and gpu.uid == uid:
                gpu.device, gpu.lost, gpu.gone = "", "its reservation pod was deleted", True

    def of(self, placed: PodPlaced) -> list[OpenedGpu]:
        """Return the GPUs of a pod that are open, in the order of its parts."""
        return [self.opened[part.group] for part in placed.gpus if part.group in self.opened]

    def exposed(self) -> list[OpenedGpu]:
        """Return the GPUs that pods share although no reservation pod is known to hold them."""
        return [gpu for gpu in self.opened.values() if gpu.exposed]

    def unused(self) -> list[OpenedGpu]:
        """Return the GPUs that no pod has a part of."""
        return list(self._unused.values())


def next_step(placed: PodPlaced, opened: Iterable[OpenedGpu]) -> tuple[ShareStep, str]:
    """Return what is to be done next for a pod with parts of GPUs, and why it is given up where it is.

    Args:
        opened: what is known of its GPUs (`GpuGroups.of`).
    """
    gpus = list(opened)
    if len(gpus) < len(placed.gpus):
        return ShareStep.GIVE_UP, "a GPU that it was to share was closed"
    for gpu in gpus:
        if gpu.lost:
            return ShareStep.GIVE_UP, f"GPU group {gpu.group} on {gpu.node}: {gpu.lost}"
    if any(not gpu.uid for gpu in gpus):
        return ShareStep.RESERVE, ""
    return (ShareStep.TELL if all(gpu.device for gpu in gpus) else ShareStep.WAIT), ""
