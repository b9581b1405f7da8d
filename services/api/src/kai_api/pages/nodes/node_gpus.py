"""A node's GPUs as bars of their parts: who holds which part, and what is free. Only of nodes where GPUs are shared."""

from dataclasses import dataclass

from kaicore.analysis.life.gpu_parts import shared_gpus_on
from kaicore.analysis.life.why_answers import SharedGpuAnswer
from kaicore.rules.model.gpu_share import GPU, WHOLE, gpus_text
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import FleetView

from kai_api.pages.rendering import Part, parts


@dataclass(frozen=True, slots=True)
class PartOfBar:
    """A pod's part of a GPU, as a decimal number."""

    namespace: str
    name: str
    part: str


@dataclass(frozen=True, slots=True)
class GpuBar:
    """A GPU.

    Attributes:
        name: by its index or UUID, or its group; for GPUs that are not shared no record has one.
        free: of it, as a decimal number.
        reservation: namespace and name of the pod that reserves it; empty where none is there.
        remark: what is unusual.
    """

    name: str
    bar: tuple[Part, ...]
    holders: tuple[PartOfBar, ...]
    free: str
    reservation: tuple[str, ...] = ()
    remark: str = ""


def gpu_bars(state: FleetView, node: str) -> tuple[GpuBar, ...]:
    """Return a node's GPUs: those that are shared by index, then those that pods hold as a whole, then the free ones.

    Nothing where none of them is shared.
    """
    shared = [_shared(state, answer) for answer in shared_gpus_on(state, node)]
    if not shared:
        return ()
    columns = state.columns
    row, place = columns.row(node), columns.resources[GPU]
    whole = [
        _whole(entry)
        for entry in state.charges.held_on(node)
        if not state.shared_gpus.is_reservation(entry.pod.uid)
        for _ in range(entry.requests.get(GPU, 0))
    ]
    free = max(0, int(columns.allocatable[row, place] - columns.used[row, place]))
    empty = GpuBar("not shared", parts(1, [("free", "free", 1, "1")]), (), "1")
    return (*shared, *whole, *([empty] * free))


def _shared(state: FleetView, answer: SharedGpuAnswer) -> GpuBar:
    group = state.shared_gpus.groups[answer.group]
    entries = sorted(
        ((state.pods[uid], part.milli) for uid, part in group.parts.items() if uid in state.pods),
        key=lambda one: (one[0].pod.subject, one[0].pod.uid),
    )
    held = [(_kind(entry), f"of {entry.pod.subject}", milli, gpus_text(milli)) for entry, milli in entries]
    rest = WHOLE - sum(milli for _, milli in entries)
    kind, label = ("out", "not given out") if answer.free == "0" else ("free", "free")
    return GpuBar(
        name=answer.name,
        bar=parts(WHOLE, [*held, (kind, label, rest, gpus_text(rest))]),
        holders=tuple(PartOfBar(entry.pod.namespace, entry.pod.name, gpus_text(milli)) for entry, milli in entries),
        free=answer.free,
        # A pod that is not there yet has no story.
        reservation=tuple(answer.reservation.split("/")) if answer.reservation and not group.planned else (),
        remark=answer.remark,
    )


def _whole(entry: PodEntry) -> GpuBar:
    pod = entry.pod
    bar = parts(1, [(_kind(entry), f"of {pod.subject}", 1, "1")])
    return GpuBar("not shared", bar, (PartOfBar(pod.namespace, pod.name, "1"),), "0")


def _kind(entry: PodEntry) -> str:
    return "releasing" if entry.releasing else "held"
