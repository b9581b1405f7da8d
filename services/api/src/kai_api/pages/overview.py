"""The first pages: all clusters in a row each, and one cluster in figures."""

from dataclasses import dataclass

from kaicore.analysis.ask.answers import CycleRow
from kaicore.analysis.ask.projections.capacity import Gpus, gpu_columns
from kaicore.rules.model.quantity import CPU, MEMORY, format_amount
from kaicore.rules.state.views import ClusterView, FleetView

from kai_api.pages.devices import claimed
from kai_api.pages.frame import Part, duration, gpu_parts, parts
from kai_api.pages.pods import WaitingLine, waiting_line
from kai_api.pages.queues import QueueLine, queue_lines
from kai_api.pages.topology_map import TopologyMap, topology_map

#: Rows of the waiting line and of queues that the overview shows.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """A cluster in figures.

    Attributes:
        not_ready: nodes that are not ready or cordoned.
        bar: of the GPUs.
        waiting, running: pods.
        oldest: how long the pod that waits longest has waited; empty if none does.
        claimed, devices: how many devices claims have, of those that are published for claims.
    """

    name: str
    position: int
    recorded_at: int
    nodes: int
    not_ready: int
    gpus: Gpus
    bar: tuple[Part, ...]
    waiting: int
    running: int
    leaving: int
    oldest: str
    rejections: int
    claimed: int
    devices: int


@dataclass(frozen=True, slots=True)
class ResourceBar:
    """The use of a resource over all nodes."""

    title: str
    used: str
    total: str
    bar: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """One cluster."""

    figures: ClusterFigures
    per_gpu: str
    resources: tuple[ResourceBar, ...]
    queues: tuple[QueueLine, ...]
    waiting: WaitingLine
    map: TopologyMap
    cycles: tuple[CycleRow, ...]


def cluster_figures(state: FleetView) -> ClusterFigures:
    """Return a cluster in figures."""
    gpus = gpu_columns(state)
    waiting = [state.pods[uid] for uid in state.waiting]
    charged = [entry for entry in state.pods.values() if entry.charged]
    leaving = sum(entry.leaving for entry in charged)
    oldest = min((entry.pod.created_at for entry in waiting), default=0)
    total = gpus.sum()
    taken, published = claimed(state)
    return ClusterFigures(
        name=state.cluster,
        position=state.position,
        recorded_at=state.recorded_at,
        nodes=int(gpus.present.sum()),
        not_ready=int((gpus.present & ~gpus.available).sum()),
        gpus=total,
        bar=gpu_parts(total),
        waiting=len(waiting),
        running=len(charged) - leaving,
        leaving=leaving,
        oldest=duration(state.recorded_at / 1e6 - oldest) if waiting else "",
        rejections=sum(state.counters.rejections.values()),
        claimed=taken,
        devices=published,
    )


def overview(state: ClusterView, cycles: tuple[CycleRow, ...]) -> Overview:
    """Return the model of a cluster's first page.

    Args:
        cycles: the last ones, as lists have them.
    """
    queues = queue_lines(state, "gpu")
    per_gpu = gpu_columns(state).per_gpu
    resources = [_resource(state, resource, title) for resource, title in ((CPU, "CPU"), (MEMORY, "Memory"))]
    figures = cluster_figures(state)
    if figures.devices:
        resources.append(_devices(figures))
    return Overview(
        figures=figures,
        per_gpu=", ".join(f"{format_amount(name, amount)} {name}" for name, amount in per_gpu.items()),
        resources=tuple(resources),
        queues=queues[:_ROWS],
        waiting=waiting_line(state, limit=_ROWS),
        map=topology_map(state),
        cycles=cycles,
    )


def _devices(figures: ClusterFigures) -> ResourceBar:
    """Return how many of the devices that are published for claims have one."""
    taken, free = figures.claimed, figures.devices - figures.claimed
    bar = parts(figures.devices, (("held", "held by claims", taken, str(taken)), ("free", "free", free, str(free))))
    return ResourceBar("Devices", str(taken), str(figures.devices), bar)


def _resource(state: FleetView, resource: str, title: str) -> ResourceBar:
    columns = state.columns
    column, rows = columns.resources.get(resource), len(columns.names)
    if column is None:
        return ResourceBar(title, "0", "0", ())
    present = columns.present[:rows]
    # As floats: sums over a whole cluster are of no bound.
    total, used, releasing = (
        int(amounts[:rows, column][present].sum(dtype=float))
        for amounts in (columns.allocatable, columns.used, columns.releasing)
    )

    def text(amount: int) -> str:
        # Over a whole cluster, parts of a CPU are of no interest.
        return format_amount(resource, amount - amount % 1000 if resource == CPU else amount)

    held = used - releasing
    bar = parts(
        total,
        (
            ("held", "held", held, text(held)),
            ("releasing", "releasing", releasing, text(releasing)),
            ("free", "free", total - used, text(max(0, total - used))),
        ),
    )
    return ResourceBar(title, text(used), text(total), bar)
