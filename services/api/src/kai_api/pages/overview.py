"""All clusters, and one as a whole: its figures, and the map of its nodes by domain of a topology or by name.

A domain shows its nodes, each with its zones in small. Idle segments tell how many groups of whole nodes could start at
once, by size and by level.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
from kaicore.analysis.ask.answers import CycleRow
from kaicore.analysis.ask.projections.capacity import GpuColumns, Gpus, gpu_columns, gpus_of_pod
from kaicore.analysis.ask.topology.answers import DomainAnswer, TopologyQuestion
from kaicore.analysis.ask.topology.domains import topologies_of
from kaicore.analysis.json_spelling import duration_text
from kaicore.errors import UnknownSubject
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.node import HOSTNAME
from kaicore.rules.model.quantity import CPU, MEMORY, format_amount
from kaicore.rules.numa.columns import Ints
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import ClusterView, FleetView
from kaicore.rules.topology.book import TopologyKey
from kaicore.rules.topology.paths import Path

from kai_api.pages.frame import GPU_STATES, Part, gpu_parts, page_of, parts, use_parts
from kai_api.pages.node import NodeZonesTable, claimed, zones_table
from kai_api.pages.pods import WaitingLine, waiting_line
from kai_api.pages.queues import QueueLine, queue_lines

#: Domains that are listed, those with most idle nodes first.
_MOST_DOMAINS = 200


@dataclass(frozen=True, slots=True)
class SegmentCell:
    """Segments of one size over all domains of a level.

    Attributes:
        most: that there would be if every node were idle.
        share: the part of these, in hundredths.
    """

    size: int
    count: int
    most: int
    share: float


@dataclass(frozen=True, slots=True)
class SegmentLevel:
    """A level of a topology."""

    name: str
    domains: int
    cells: tuple[SegmentCell, ...]


@dataclass(frozen=True, slots=True)
class IdleDomain:
    """A domain of the narrowest level that has several nodes."""

    path: str
    nodes: int
    idle: int
    share: float


@dataclass(frozen=True, slots=True)
class SegmentTopology:
    """A topology.

    Attributes:
        level: of `domains`.
        more: domains that are not listed.
    """

    name: str
    nodes: int
    sizes: tuple[int, ...]
    levels: tuple[SegmentLevel, ...]
    level: str
    domains: tuple[IdleDomain, ...]
    more: int
    problems: tuple[str, ...]


def idle_segments(state: FleetView, *, sizes: str = "") -> tuple[SegmentTopology, ...]:
    """Return the idle segments of each topology. Raises InvalidObject: `sizes` makes no sense.

    Args:
        sizes: such as `4,18`; by default powers of two.
    """
    keys = state.network_topologies.topologies()
    answer = topologies_of(state, TopologyQuestion(segments=sizes))
    made = []
    for key, topology in zip(keys, answer.topologies, strict=True):
        columns = state.network_topologies.columns(key, state.columns.names)
        present = state.columns.present[: len(state.columns.names)].astype(int)
        nodes = columns.sums(present)
        levels = []
        for depth, level in enumerate(topology.levels):
            cells = []
            for item in level.segments:
                most = int((nodes[depth] // item.size).sum())
                cells.append(SegmentCell(item.size, item.count, most, round(100 * item.count / most, 2) if most else 0))
            if any(cell.most for cell in cells):
                levels.append(SegmentLevel(level.name, level.domains, tuple(cells)))
        domains = sorted(_narrowest(topology.domains), key=lambda pair: (-pair[1].idle, pair[0]))
        made.append(
            SegmentTopology(
                name=key.text,
                nodes=topology.nodes,
                sizes=tuple(item.size for item in topology.levels[0].segments) if topology.levels else (),
                levels=tuple(levels),
                level=domains[0][1].level if domains else "",
                domains=tuple(
                    IdleDomain(path, one.nodes, one.idle, round(100 * one.idle / one.nodes, 2) if one.nodes else 0)
                    for path, one in domains[:_MOST_DOMAINS]
                ),
                more=max(0, len(domains) - _MOST_DOMAINS),
                problems=tuple(topology.problems),
            )
        )
    return tuple(made)


def _narrowest(domains: list[DomainAnswer], above: str = "") -> list[tuple[str, DomainAnswer]]:
    """Return the domains that have no other domains in them, each with its path."""
    narrowest = []
    for domain in domains:
        path = f"{above}/{domain.name}" if above else domain.name
        narrowest += _narrowest(domain.domains, path) if domain.domains else [(path, domain)]
    return narrowest


#: Domains that a map shows; where a level has more, a wider one is shown.
_MOST_CELLS = 400
#: Nodes of a part of a cluster without a topology.
_CHUNK = 32


@dataclass(frozen=True, slots=True)
class Cell:
    """A domain: some nodes that are shown as one.

    Attributes:
        path: its name and those of the domains around it, the widest first.
        idle: of them, those that take pods and have all GPUs free.
        who: the largest holder, where cells are coloured by holders.
        is_node: whether it is one node, on a level of nodes.
    """

    path: Path
    nodes: int
    idle: int
    gpus: Gpus
    bar: tuple[Part, ...]
    who: str
    is_node: bool

    @property
    def name(self) -> str:
        """Its own name."""
        return self.path[-1]

    @property
    def key(self) -> str:
        """Its path as an address has it."""
        return "/".join(self.path)


@dataclass(frozen=True, slots=True)
class Block:
    """Cells in one wider domain; its name is empty where there is none."""

    name: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class TopologyMap:
    """A cluster's domains.

    Attributes:
        topology: which topology, for people; empty where nodes are only grouped by name.
        levels: that there are, from the widest.
        outside: nodes in no domain of the level.
        colour: what cells are coloured by, of `COLOURS`; `legend` has the classes of the style sheet.
    """

    topology: str
    topologies: tuple[str, ...]
    level: str
    levels: tuple[str, ...]
    blocks: tuple[Block, ...]
    outside: int
    colour: str
    legend: tuple[tuple[str, str], ...]


#: What the cells of a map can be coloured by.
COLOURS = ("state", "queue", "job", "age")
#: Ages of pods, by their class in the style sheet: the largest of each in seconds.
_AGES = (
    ("a0", 3600, "under 1 h"),
    ("a1", 6 * 3600, "under 6 h"),
    ("a2", 86_400, "under 1 d"),
    ("a3", 604_800, "under 7 d"),
)
_OLDEST = ("a4", "older")
#: Holders with a colour of their own; the others share one.
_MOST_HOLDERS = 8


class Paint:
    """The colours of GPUs that pods hold: by queue, by job or by age; with `state`, all have one."""

    def __init__(self, state: FleetView, of_rows: Ints, colour: str) -> None:
        """Args:
        of_rows: the cell of each row's node; -1 for none.
        colour: of `COLOURS`.
        """
        self.legend: tuple[tuple[str, str], ...] = GPU_STATES
        self._by_cell: dict[int, Counter[str]] = defaultdict(Counter)
        self._classes: dict[str, str] = {}
        if colour == "state":
            return
        for entry in state.pods.values():
            held = 0 if entry.releasing or not entry.charged else gpus_of_pod(state, entry)
            if held and (row := state.columns.rows.get(entry.node, -1)) >= 0:
                self._by_cell[int(of_rows[row])][_holder(state, entry, colour)] += held
        totals = sum((counts for cell, counts in self._by_cell.items() if cell >= 0), Counter[str]())
        if colour == "age":
            self._classes = {label: kind for kind, _, label in _AGES} | {_OLDEST[1]: _OLDEST[0]}
            shown = [(kind, label) for label, kind in self._classes.items()]
        else:
            largest = sorted(totals, key=lambda name: (-totals[name], name))[:_MOST_HOLDERS]
            self._classes = {name: f"c{number}" for number, name in enumerate(largest)}
            shown = [(kind, name or "no queue") for name, kind in self._classes.items()]
            shown += [("held", "others")] * (len(totals) > len(largest))
        self.legend = (*shown, *GPU_STATES[1:])

    def bar(self, cell: int, gpus: Gpus) -> tuple[tuple[Part, ...], str]:
        """Return the bar of a cell, and the name of who holds most of it."""
        counts = self._by_cell.get(cell)
        if not counts:
            return gpu_parts(gpus), ""
        held = [
            (self._classes.get(name, "held"), f"of {name}", amount, gpus_text(amount))
            for name, amount in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ]
        # What no pod is known to hold is held all the same.
        rest = max(0, gpus.held - counts.total())
        others = (("held", "held", rest), *((kind, label, int(getattr(gpus, kind))) for kind, label in GPU_STATES[1:]))
        made = parts(gpus.total, [*held, *((kind, label, one, gpus_text(one)) for kind, label, one in others)])
        return made, max(counts, key=lambda name: (counts[name], name))


def _holder(state: FleetView, entry: PodEntry, colour: str) -> str:
    if colour == "queue":
        return state.queue_of(entry)[0]
    if colour == "job":
        return entry.group.partition("/")[2] or entry.pod.subject
    age = state.recorded_at // 1_000_000 - entry.running_since // 1_000_000
    return next((label for _, most, label in _AGES if age < most), _OLDEST[1])


def topology_map(state: FleetView, *, topology: str = "", level: str = "", colour: str = "") -> TopologyMap:
    """Return the map of a cluster.

    Args:
        topology: its text, see `TopologyKey`; the first where there is none of that text.
        level: the level of the domains; by default the narrowest with several nodes a domain and not too many domains.
        colour: what cells are coloured by; by default the GPUs' state.
    """
    colour = colour if colour in COLOURS else COLOURS[0]
    gpus = gpu_columns(state)
    keys = state.network_topologies.topologies()
    key = next((key for key in keys if key.text == topology), keys[0] if keys else None)
    if key is None:
        return _by_name(state, gpus, colour)
    columns = state.network_topologies.columns(key, state.columns.names)
    names = tuple(one.name for one in columns.levels)
    shown = [depth for depth, domains in enumerate(columns.domains) if len(domains) <= _MOST_CELLS]
    shared = [depth for depth in shown if len(columns.domains[depth]) < gpus.present.sum()] or shown[:1]
    if not shared:
        return _by_name(state, gpus, colour, topologies=keys)
    depth = names.index(level) if level in names and names.index(level) in shown else shared[-1]
    of_rows = columns.of_rows[depth].astype(np.int64)
    paint = Paint(state, of_rows, colour)
    cells = _cells(gpus, of_rows, columns.domains[depth], paint, of_nodes=names[depth] == HOSTNAME)
    return TopologyMap(
        topology=key.text,
        topologies=tuple(dict.fromkeys(one.text for one in keys)),
        level=names[depth],
        levels=tuple(names[depth] for depth in shown),
        blocks=_blocks(cells),
        outside=int((gpus.present & (columns.of_rows[depth] < 0)).sum()),
        colour=colour,
        legend=paint.legend,
    )


def rows_within(state: FleetView, topology: str, path: Path) -> Ints:
    """Return the rows of the nodes of a domain, in order of their names; those of a map by name for `topology=""`."""
    names = state.columns.names
    present = state.columns.present[: len(names)]
    key = next((key for key in state.network_topologies.topologies() if key.text == topology), None)
    of_rows, domains = _chunks(state)
    if key is not None:
        columns = state.network_topologies.columns(key, names)
        depth = next((at for at, level in enumerate(columns.domains) if path in level), 0)
        of_rows, domains = columns.of_rows[depth].astype(np.int64), columns.domains[depth]
    if path not in domains:
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(present & (of_rows == domains.index(path)))
    return np.array(sorted(rows, key=lambda row: names[row]), np.int64)


def _by_name(
    state: FleetView, gpus: GpuColumns, colour: str, *, topologies: list[TopologyKey] | None = None
) -> TopologyMap:
    of_rows, domains = _chunks(state)
    paint = Paint(state, of_rows, colour)
    return TopologyMap(
        topology="",
        topologies=tuple(dict.fromkeys(one.text for one in topologies or ())),
        level="",
        levels=(),
        blocks=_blocks(_cells(gpus, of_rows, domains, paint)),
        outside=0,
        colour=colour,
        legend=paint.legend,
    )


def _chunks(state: FleetView) -> tuple[Ints, tuple[Path, ...]]:
    """Part the nodes by name; at most as many parts as a map shows."""
    columns = state.columns
    names = sorted(name for name, row in columns.rows.items() if columns.facts[row] is not None)
    size = max(_CHUNK, -(-len(names) // _MOST_CELLS))
    of_rows: Ints = np.full(len(columns.names), -1, np.int64)
    domains: list[Path] = []
    for start in range(0, len(names), size):
        part = names[start : start + size]
        of_rows[[columns.rows[name] for name in part]] = len(domains)
        domains.append((f"{part[0]} to {part[-1]}" if len(part) > 1 else part[0],))
    return of_rows, tuple(domains)


def _cells(
    gpus: GpuColumns, of_rows: Ints, domains: tuple[Path, ...], paint: Paint, *, of_nodes: bool = False
) -> list[Cell]:
    count = len(domains)
    inside = (of_rows >= 0) & gpus.present
    nodes = np.bincount(of_rows[inside], minlength=count)
    unused = inside & gpus.available & (gpus.held + gpus.releasing == 0)
    idle = np.bincount(of_rows[unused], minlength=count)
    sums = gpus.by_domain(of_rows, count)
    return [
        Cell(path, int(nodes[number]), int(idle[number]), sums[number], *paint.bar(number, sums[number]), of_nodes)
        for number, path in enumerate(domains)
        if nodes[number]
    ]


def _blocks(cells: list[Cell]) -> tuple[Block, ...]:
    by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        by_name.setdefault(" / ".join(cell.path[:-1]), []).append(cell)
    return tuple(Block(name, tuple(inside)) for name, inside in by_name.items())


#: Nodes of one page.
PAGE_NODES = 64


@dataclass(frozen=True, slots=True)
class DomainPage:
    """Some nodes of a domain.

    Attributes:
        topology: its text; empty for nodes by name.
        path: names, the widest first.
        map: the nodes of this page as cells.
        nodes: the same with their zones; `total` is how many there are.
        page, pages: which page this is, from 1.
    """

    topology: str
    path: tuple[str, ...]
    gpus: Gpus
    bar: tuple[Part, ...]
    map: TopologyMap
    nodes: tuple[NodeZonesTable, ...]
    total: int
    page: int
    pages: int


def domain_page(state: FleetView, *, topology: str, path: str, colour: str = "", number: int = 1) -> DomainPage:
    """Return the model of a domain's page. Raises UnknownSubject: there is no such domain, or it has no nodes.

    Args:
        topology: its text; empty for nodes by name.
        path: names of domains with slashes between them.
        colour: see `topology_map`.
        number: which page; the last one where there are not so many.
    """
    rows = rows_within(state, topology, tuple(path.split("/")))
    if not len(rows):
        raise UnknownSubject(f"no nodes in {path!r} at this moment")
    every = gpu_columns(state)
    gpus = every.sum(rows)
    shown, number, pages = page_of(rows.tolist(), number, PAGE_NODES)
    colour = colour if colour in COLOURS else COLOURS[0]
    of_rows: Ints = np.full(len(state.columns.names), -1, np.int64)
    of_rows[shown] = np.arange(len(shown))
    paint = Paint(state, of_rows, colour)
    names = tuple((state.columns.names[row],) for row in shown)
    blocks = _blocks(_cells(every, of_rows, names, paint, of_nodes=True))
    return DomainPage(
        topology=topology,
        path=tuple(path.split("/")),
        gpus=gpus,
        bar=gpu_parts(gpus),
        map=TopologyMap(topology, (), "", (), blocks, 0, colour, paint.legend),
        nodes=tuple(zones_table(state, row) for row in shown),
        total=len(rows),
        page=number,
        pages=pages,
    )


#: Rows of the waiting line and of queues that the overview shows.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """A cluster in figures.

    Attributes:
        not_ready: nodes that are not ready or cordoned.
        bar: of the GPUs.
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
        oldest=duration_text(state.recorded_at / 1e6 - oldest) if waiting else "",
        rejections=sum(state.counters.rejections.values()),
        claimed=taken,
        devices=published,
    )


def overview(state: ClusterView, cycles: tuple[CycleRow, ...]) -> Overview:
    """Return the model of a cluster's first page (`cycles`: the last ones, as lists have them)."""
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

    return ResourceBar(title, text(used), text(total), use_parts(total, used, releasing, text))
