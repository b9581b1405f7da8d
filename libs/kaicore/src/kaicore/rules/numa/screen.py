"""A fast screen that rules out nodes by the thousand, so that the walk (`numa.kubelet.admission`) sees few.

A node that `may_admit` rules out is never admissible. It is exact for a pod with one container and one type of memory,
on a node without memory groups over its zones: such a node is admitted if it is not ruled out
(tests/property/test_screen.py). Only `single-numa-node` and `restricted` rule out anything here; the other policies
refuse rarely.

KAI-Scheduler's counting rule, kept as a named evaluator (`counting`) to measure the exact one against.

Source: KAI-Scheduler before v0.17, `docs/developer/designs/numa-topology/README.md`. Guaranteed pods only,
`single-numa-node` and `restricted` only. Of every resource that the zones report, the width is the fewest zones with
sufficient allocatable amounts, and a mask is feasible when its free amounts suffice. One common mask of that width must
serve all. Container scope is greedy, init containers are checked but not accumulated. Known gaps: decision 0004.
"""

from collections.abc import Iterator

import numpy as np

from kaicore.rules.model.node import TopologyPolicy
from kaicore.rules.model.pod import ContainerKind
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.columns import Flags, Ints, ZoneColumns
from kaicore.rules.numa.kubelet.masks import Hints, MaskTable, lowest_place, mask_table, zones_of
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.requests import AlignedContainer, AlignedRequest
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.verdict import TOPOLOGY_AFFINITY, Admitted, Holding, Rejected
from kaicore.rules.numa.kubelet.zones import NodeZones

#: How many masks of a width are tried on all rows before the rest is tried on those that are left.
_FIRST_MASKS = 8

_Rows = Ints | slice
_Masks = tuple[tuple[int, ...], ...]


def may_admit(columns: ZoneColumns, rows: Ints, request: AlignedRequest, *, reconstruct: bool = True) -> Flags:
    """Tell for each row whether its kubelet may admit a pod; shape (rows,).

    Args:
        rows: which nodes to ask, ascending.
        reconstruct: see `ZoneColumns.free`.
    """
    verdict = np.ones(len(rows), np.bool_)
    if request.empty or not columns.capacity.size or not len(rows):
        return verdict
    for zones, settings, which in _alike(columns, rows):
        aligning = settings.policy in (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED)
        if aligning and not settings.aligns_by_socket:
            chosen = rows if isinstance(which, slice) else rows[which]
            group = _Group(columns, _contiguous(chosen), zones, settings, reconstruct=reconstruct)
            verdict[which] = group.may_admit(request, len(chosen))
    return verdict


def _alike(columns: ZoneColumns, rows: Ints) -> Iterator[tuple[int, KubeletSettings, _Rows]]:
    """Group the rows that have zones by number of zones and kubelet settings; yields indices into `rows`."""
    kinds = len(columns.kubelets)
    keys = columns.zone_count[rows] * kinds + columns.kubelet[rows]
    if (keys == keys[0]).all():
        zones, kubelet = divmod(int(keys[0]), kinds)
        if zones:
            yield zones, columns.kubelets[kubelet], slice(None)
        return
    for key in np.flatnonzero(np.bincount(keys)).tolist():
        zones, kubelet = divmod(key, kinds)
        if zones:
            yield zones, columns.kubelets[kubelet], np.flatnonzero(keys == key)


def _contiguous(rows: Ints) -> _Rows:
    """Return a slice for rows without a gap: their figures need not be copied."""
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


class _Group:
    """Rows of equally many zones with kubelets that are set alike."""

    def __init__(
        self, columns: ZoneColumns, rows: _Rows, zones: int, settings: KubeletSettings, *, reconstruct: bool
    ) -> None:
        self._columns, self._rows, self._settings = columns, rows, settings
        self._table: MaskTable = mask_table(zones)
        self._zones = zones
        self._reconstruct = reconstruct
        self._unknown: Flags = columns.unknown[rows] > 0
        self._single = settings.policy is TopologyPolicy.SINGLE_NUMA_NODE
        self._frees: dict[str, Ints] = {}

    def may_admit(self, request: AlignedRequest, count: int) -> Flags:
        """Ask about each container by itself, as if it came first: what it finds later is never more."""
        request = request.on(self._settings)
        verdict = np.ones(count, np.bool_)
        containers = request.containers
        if self._settings.pod_scope:
            # Of several containers' memory that fits nowhere together the manager has no opinion: each is then on
            # its own.
            several = sum(any(is_memory(name) for name, _ in item.amounts) for item in containers) > 1
            amounts = tuple(item for item in request.pod if not (several and is_memory(item[0])))
            containers = (AlignedContainer("", containers[0].kind, amounts),)
        for place, container in enumerate(containers):
            if container.amounts:
                verdict &= self._unit(container.amounts, first=place == 0)
        return verdict

    def _unit(self, amounts: tuple[tuple[str, int], ...], *, first: bool) -> Flags | bool:
        memory = [(name, need) for name, need in amounts if is_memory(name)] if self._settings.static_memory else []
        providers = [(name, need) for name, need in amounts if not is_memory(name) and self._aligned(name)]
        if any(name not in self._columns.resources for name, _ in memory):
            return False
        if self._single:
            return self._one_zone(providers, memory)
        return self._one_mask(providers, memory, first=first)

    def _aligned(self, resource: str) -> bool:
        if resource == CPU:
            return self._settings.static_cpu
        column = self._columns.resources.get(resource)
        return column is not None and bool(self._columns.reported[self._rows, column].any())

    def _one_zone(self, providers: list[tuple[str, int]], memory: list[tuple[str, int]]) -> Flags | bool:
        """Some zone has it all; what groups forbid is left to the exact walk."""
        fits: Flags | None = None
        for resource, need in (*providers, *memory):
            enough = self._in_zone(resource, self._free(resource), need)
            fits = enough if fits is None else fits & enough
        if fits is None:
            return True
        return _any(fits)

    def _one_mask(
        self, providers: list[tuple[str, int]], memory: list[tuple[str, int]], *, first: bool
    ) -> Flags | bool:
        """Some mask of the width that all providers prefer has it all."""
        widths = [self._silenced(resource, self._width(resource, need)) for resource, need in providers]
        if not widths:
            return self._memory_only(memory) if first and len(memory) == 1 else True
        common = np.max(widths, axis=0)
        # A width of 0 is that of a resource that the row does not report: no opinion.
        equal = np.all([(width == common) | (width == 0) for width in widths], axis=0) & (common <= self._zones)
        verdict: Flags = equal | (common == 0)
        if (common == 0).any() and first and len(memory) == 1:
            verdict &= (common != 0) | self._memory_only(memory)
        strict = self._strict(*memory[0]) if first and len(memory) == 1 else None
        for width in np.flatnonzero(np.bincount(common[equal], minlength=1)).tolist():
            if not width:
                continue
            chosen = np.flatnonzero(equal & (common == width))
            # Most rows are settled by one of the first masks; only the others are asked about all.
            masks = len(self._table.masks[self._table.slices[width]])
            some = min(_FIRST_MASKS, masks)
            passing = self._passing(providers, memory, strict, width, chosen, some)
            left = chosen[~passing]
            verdict[chosen] = passing
            if len(left) and some < masks:
                verdict[left] = self._passing(providers, memory, strict, width, left, masks)
        return verdict

    def _passing(  # noqa: PLR0917 - one step of `_one_mask`, on some rows and masks
        self,
        providers: list[tuple[str, int]],
        memory: list[tuple[str, int]],
        strict: tuple[Flags, Ints, Ints] | None,
        width: int,
        these: Ints,
        masks: int,
    ) -> Flags:
        """True if one of the first masks of a width serves all; shape (rows,)."""
        members = self._zones_of(width)[:masks]
        fits: Flags | None = None
        for resource, need in providers:
            covered = self._covered(resource, need, width, these, members)
            fits = covered if fits is None else fits & covered
        for resource, need in memory:
            enough = _sums(self._free(resource)[these], members) >= need
            fits = enough if fits is None else fits & enough
        assert fits is not None
        passing = _any(fits)
        if strict is not None:
            opinion, memory_width, cells = strict
            allowed = (fits & ~self._conflicts(cells[these], width, members)).any(axis=1)
            passing &= ~opinion[these] | ((memory_width[these] == width) & allowed)
        return passing

    def _strict(self, resource: str, need: int) -> tuple[Flags, Ints, Ints]:
        """Rows with a memory manager that surely gives hints, the width that it prefers, and the groups."""
        free = self._free(resource)
        cells = self._columns.cells[self._rows, : self._zones]
        alone = ((cells == 0) | (cells == 1 << np.arange(self._zones))) & (free >= need)
        whole = (free.sum(axis=1) >= need) & ((cells == 0) | (cells == self._table.full)).all(axis=1)
        # Where unknown pods hold memory, the walk knows more of the groups than these cells do.
        return alone.any(axis=1) | (whole & ~self._unknown), self._width(resource, need), cells

    def _memory_only(self, memory: list[tuple[str, int]]) -> Flags | bool:
        if not memory:
            return True
        (resource, need), free = memory[0], self._free(memory[0][0])
        opinion, widths, cells = self._strict(resource, need)
        verdict = np.ones(len(widths), np.bool_)
        for width in np.flatnonzero(np.bincount(widths)).tolist():
            these = np.flatnonzero(widths == width)
            if width > self._zones:
                verdict[these] = False
                continue
            members = self._zones_of(width)
            fits = _sums(free[these], members) >= need
            verdict[these] = (fits & ~self._conflicts(cells[these], width, members)).any(axis=1) | ~opinion[these]
        return verdict

    def _conflicts(self, cells: Ints, width: int, members: _Masks) -> Flags:
        """The first masks of a width that the memory groups forbid; shape (rows, masks)."""
        masks = self._table.masks[self._table.slices[width]][: len(members)]
        used = cells != 0
        if not used.any():
            return np.zeros((len(cells), len(masks)), np.bool_)
        among = _sums(used, members)
        same = np.zeros_like(among)
        # A mask may have zones that serve that very mask.
        serving = cells[cells & (cells - 1) != 0] if width > 1 else cells[used]
        for mask in set(np.unique(serving).tolist()).intersection(masks):
            place = masks.index(mask)
            same[:, place] = (cells[:, members[place]] == mask).sum(axis=1)
        conflicts: Flags = among != same
        return conflicts

    def _zones_of(self, width: int) -> _Masks:
        return self._table.zones_of[self._table.slices[width]]

    def _width(self, resource: str, need: int) -> Ints:
        """The fewest zones that could ever serve a need; more than there are where none could; shape (rows,)."""
        source = self._columns.allocatable if is_memory(resource) else self._columns.capacity
        most = np.sort(source[self._rows, : self._zones, self._columns.resources[resource]], axis=1)[:, ::-1]
        width: Ints = 1 + (np.cumsum(most, axis=1) < need).sum(axis=1)
        return width

    def _silenced(self, resource: str, width: Ints) -> Ints:
        if resource == CPU:
            return width
        return width * self._columns.reported[self._rows, self._columns.resources[resource]]

    def _covered(self, resource: str, need: int, width: int, these: Ints, members: _Masks) -> Flags:
        """Masks on which enough is free, or of which the row's kubelet has no opinion; shape (rows, masks)."""
        if width == 1 and not need:
            return self._in_zone(resource, self._free(resource), need)[these][:, : len(members)]
        enough: Flags = _sums(self._free(resource)[these], members) >= need
        if resource != CPU:
            silent = ~self._columns.reported[self._rows, self._columns.resources[resource]][these]
            if silent.any():
                enough |= silent[:, None]
        return enough

    def _in_zone(self, resource: str, free: Ints, need: int) -> Flags:
        """Zones on which enough is free, or of which the row's kubelet has no opinion; shape (rows, zones)."""
        column = self._columns.resources[resource]
        enough = free >= need
        if is_memory(resource) or resource == CPU:
            return enough
        if not need and self._settings.device_masks_are_of_hosting_zones:
            enough = enough & (self._columns.capacity[self._rows, : self._zones, column] > 0)
        return enough | ~self._columns.reported[self._rows, column][:, None]

    def _free(self, resource: str) -> Ints:
        """The free amounts of a resource, as `ZoneColumns.free` has them; shape (rows, zones)."""
        free = self._frees.get(resource)
        if free is None:
            window = (self._rows, slice(0, self._zones), self._columns.resources[resource])
            if self._reconstruct:
                free = self._columns.allocatable[window] - self._columns.used[window]
                if self._unknown.any():
                    less = np.minimum(free, self._columns.published[window])
                    free = np.where(self._unknown[:, None], less, free)
            else:
                free = self._columns.published[window]
            self._frees[resource] = free
        return free


def _any(flags: Flags) -> Flags:
    any_of: Flags = np.logical_or.reduce(flags, axis=1)
    return any_of


def _sums(figures: Ints | Flags, masks: _Masks) -> Ints:
    """Sum figures over the zones of each mask; shape (rows, masks).

    By hand: whole numbers have no fast matrix product, and one of floats starts threads for so little.
    """
    columns = np.ascontiguousarray(figures.T, dtype=np.int64)
    total = np.empty((len(masks), len(figures)), np.int64)
    for place, (first, *others) in enumerate(masks):
        total[place] = columns[first]
        for zone in others:
            total[place] += columns[zone]
    return total.T


def admit_by_counting(node: NodeZones, request: AlignedRequest) -> Admitted | Rejected:
    """Tell what the counting rule makes of a pod.

    Args:
        node: its zones; used up.
        request: a `counted_request`.
    """
    settings, table = node.settings, node.table
    if settings.policy not in (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED):
        return Admitted((), {})
    containers = request.containers
    if settings.pod_scope:
        containers = (AlignedContainer("", ContainerKind.APP, request.pod),)
    free = {**node.free, **node.memory.free}
    total = {**node.capacity, **node.memory.allocatable}
    reported = [name for name in total if any(total[name])]
    holdings = []
    for container in containers:
        hints = []
        for resource, need in container.amounts:
            if resource in reported and resource in free:
                width = table.first_width(table.reaching(total[resource], need))
                feasible = table.reaching(free[resource], need)
                hints.append(Hints(resource, feasible, feasible & table.of_width[width], width))
        common = (1 << len(table)) - 1 if settings.policy is TopologyPolicy.RESTRICTED else table.of_width[1]
        for hint in hints:
            common &= hint.preferred
        if hints and not common:
            message = "no common mask of the smallest width"
            return Rejected(TOPOLOGY_AFFINITY, message, container, tuple(hints), node, {})
        if not hints or container.kind is ContainerKind.INIT:
            continue
        holding = Holding(container, table.masks[lowest_place(common)])
        needs = dict(container.amounts)
        for hint in hints:
            _charge(holding, hint.resource, needs[hint.resource], free[hint.resource])
        holdings.append(holding)
    return Admitted(tuple(holdings), {})


def _charge(holding: Holding, resource: str, need: int, free: list[int]) -> None:
    """Split an amount over the mask, greedily and ascending."""
    taken = [0] * len(free)
    for zone in zones_of(holding.mask):
        taken[zone] = max(min(need, free[zone]), 0)
        free[zone] -= taken[zone]
        need -= taken[zone]
    if is_memory(resource):
        drawn = tuple((zone, amount) for zone, amount in enumerate(taken) if amount)
        holding.blocks.append(MemoryBlock(resource, holding.mask, sum(taken), drawn=drawn))
    else:
        holding.amounts[resource] = taken
