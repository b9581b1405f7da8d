"""Conversion of placement records, which name zones, into charges on a node's columns.

An observation wins over a prediction. podresources never shows what ordinary init containers leave with the pod. That
part is taken from the observation if it has it from the kubelet's state files. Otherwise it is taken from the
prediction, or from the repeated prediction where the first was contradicted. A record with a zone that the node does
not have is ignored as a whole, and the next best one is taken.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from kaicore.rules.model.node import NodeTopology
from kaicore.rules.model.placement import ContainerPlacement, Placement, SpanAmount
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.model.quantity import is_memory
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.zones import ZoneCharge


@dataclass(slots=True)
class _Account:
    """Sums up one pod's charge."""

    columns: ZoneColumns
    index: dict[str, int]
    pod: Pod
    amounts: dict[tuple[int, str], int] = field(default_factory=dict)
    blocks: list[MemoryBlock] = field(default_factory=list)
    uncertain: set[str] = field(default_factory=set)
    repeated: dict[tuple[int, str], int] = field(default_factory=dict)

    def known(self, placement: Placement) -> bool:
        index, resources = self.index, self.columns.resources
        for container in placement.containers:
            for zone in container.zones:
                if zone.zone not in index or not resources.keys() >= zone.amount.keys():
                    return False
            for span in (*container.spans, *container.blocks):
                if not index.keys() >= set(span.zones) or not resources.keys() >= span.amount.keys():
                    return False
        return True

    def add(self, container: ContainerPlacement, *, init: bool = False, memory: bool = True) -> None:
        """Add a container's holdings; of what is known to be in several zones, each counts in full.

        So does a device of several zones in the kubelet's and the exporters' figures. What may be on a zone, and then
        on no other (`kaicore.rules.numa.init_remains`), is noted as repeated.
        """
        self.uncertain.update(name for name in container.uncertain if name in self.columns.resources)
        for zone in container.zones:
            for resource, amount in zone.amount.items():
                if not is_memory(resource):
                    self._put(self.index[zone.zone], resource, amount)
        for span in container.spans:
            for resource, amount in span.amount.items():
                if not is_memory(resource):
                    for name in span.zones:
                        self._put(self.index[name], resource, amount)
                        if resource in container.uncertain:
                            key = self.index[name], resource
                            self.repeated[key] = self.repeated.get(key, 0) + amount
        if memory:
            self._add_blocks(container, init=init)

    def _add_blocks(self, container: ContainerPlacement, *, init: bool) -> None:
        """A prediction tells its blocks where they are not one a zone; an observation tells them as zones and spans.

        Records from before there were blocks give the zones of a wide mask their amounts, and grouped all of it. So do
        KAI-Scheduler's, which have neither masks nor containers: there a group is what no whole containers explain.
        """
        blocks = list(container.blocks)
        if not blocks:
            by_zone = [
                SpanAmount((zone.zone,), {name: amount})
                for zone in container.zones
                for name, amount in zone.amount.items()
                if is_memory(name)
            ]
            wide = len(container.mask) > 1 and bool(by_zone)
            blocks = _joined(by_zone, container.mask) if wide else self._grouped(container.container, by_zone)
            blocks += [
                SpanAmount(span.zones, {name: amount})
                for span in container.spans
                for name, amount in span.amount.items()
                if is_memory(name)
            ]
        for block in blocks:
            mask = sum(1 << self.index[name] for name in set(block.zones))
            self.blocks += [MemoryBlock(name, mask, amount, init) for name, amount in block.amount.items()]

    def _grouped(self, name: str, by_zone: list[SpanAmount]) -> list[SpanAmount]:
        """Join the memory of several zones that is a container's: the memory manager gives it one block for each size.

        Args:
            name: of the container; empty where the record does not tell the pod's containers apart.
        """
        blocks: list[SpanAmount] = []
        for resource in {resource: None for part in by_zone for resource in part.amount}:
            parts = [part for part in by_zone if part.amount.get(resource)]
            asked = [
                container.requests.get(resource, 0)
                for container in self.pod.containers
                if container.kind is not ContainerKind.INIT
            ]
            amounts = tuple(sorted(part.amount[resource] for part in parts))
            if len(parts) < 2 or (not name and _sums_up(amounts, tuple(sorted(filter(None, asked), reverse=True)))):
                blocks += [part for part in by_zone if resource in part.amount]
            else:
                blocks += _joined(parts, tuple(zone for part in parts for zone in part.zones))
        return blocks

    def _put(self, zone: int, resource: str, amount: int) -> None:
        if amount:
            self.amounts[zone, resource] = self.amounts.get((zone, resource), 0) + amount

    def of(self, placement: Placement, init: set[str]) -> "_Account":
        """Add a whole placement; returns the account."""
        for container in placement.containers:
            self.add(container, init=container.container in init, memory=container.container not in init)
        return self

    def may_be(self, others: Iterable["_Account"]) -> None:
        """Count on each zone what others have there beyond this one, and note it as repeated."""
        for other in others:
            for (zone, resource), amount in sorted(other.amounts.items()):
                more = amount - self.amounts.get((zone, resource), 0)
                if more > 0:
                    self._put(zone, resource, more)
                    self.repeated[zone, resource] = self.repeated.get((zone, resource), 0) + more
                    self.uncertain.add(resource)
            own = Counter((block.resource, block.mask, block.size) for block in self.blocks)
            every = (*self.blocks, *other.blocks)
            if not any(block.mask & (block.mask - 1) for block in every):
                # Groups of zones are not guessed at: a zone that may serve a group serves what it serves.
                for block in other.blocks:
                    key = block.resource, block.mask, block.size
                    if not own[key]:
                        self.blocks.append(block)
                        at = block.mask.bit_length() - 1, block.resource
                        self.repeated[at] = self.repeated.get(at, 0) + block.size
                    own[key] -= own[key] > 0

    def charge(self) -> ZoneCharge:
        amounts = tuple((zone, resource, amount) for (zone, resource), amount in sorted(self.amounts.items()))
        repeated = tuple((*key, amount) for key, amount in sorted(self.repeated.items()) if amount)
        return ZoneCharge(amounts, tuple(self.blocks), tuple(sorted(self.uncertain)), repeated)


def zone_charge(
    columns: ZoneColumns,
    topology: NodeTopology | None,
    *,
    pod: Pod,
    predicted: Placement | None,
    observed: Placement | None,
    kept: tuple[ContainerPlacement, ...] | None = None,
    alternatives: Sequence[Placement] = (),
) -> ZoneCharge | None:
    """Return what a pod's placement records charge to its node; None where there is no usable record.

    Args:
        kept: what its ordinary init containers keep as predicted again, given what was observed; None where the first
            prediction stands.
        alternatives: other predictions that may hold instead while nothing was observed: each zone counts with the most
            that any of them says, the node as a whole with the first.

    The memory of ordinary init containers is the pod's only until its containers run (memory manager, `AddContainer`);
    their CPUs and devices are its own to the end.
    """
    if topology is None:
        return ZoneCharge()
    account = _Account(columns, {zone.name: number for number, zone in enumerate(topology.zones)}, pod)
    init = {container.name for container in pod.containers if container.kind is ContainerKind.INIT}
    starting = pod.phase == "Pending"
    usable = predicted if predicted is not None and account.known(predicted) else None
    seen = observed if observed is not None and account.known(observed) else None
    if usable is None and seen is None:
        return None
    predicted_of = usable.containers if usable else ()
    if seen is None:
        kept = None
    elif seen.init is not None:
        kept = ()
    for container in predicted_of if kept is None else kept:
        if container.container in init:
            account.add(container, init=True, memory=starting)
        elif seen is None:
            account.add(container)
    if seen is None:
        account.may_be(
            _Account(columns, account.index, pod).of(one, init) for one in alternatives if account.known(one)
        )
    for container in seen.containers if seen else ():
        last = container.container in init
        account.add(container, init=last, memory=starting or not last)
    return account.charge()


@lru_cache(maxsize=1024)
def _sums_up(amounts: tuple[int, ...], asked: tuple[int, ...]) -> bool:
    """Tell whether amounts are sums of what is asked for, each of it in one of them; both in order of size."""
    if not asked:
        return not any(amounts)
    first, *others = asked
    return any(
        _sums_up(tuple(sorted((*amounts[:at], amount - first, *amounts[at + 1 :]))), tuple(others))
        for at, amount in enumerate(amounts)
        if amount >= first and amount not in amounts[:at]
    )


def _joined(by_zone: list[SpanAmount], mask: tuple[str, ...]) -> list[SpanAmount]:
    total: dict[str, int] = {}
    for part in by_zone:
        for name, amount in part.amount.items():
            total[name] = total.get(name, 0) + amount
    return [SpanAmount(mask, {name: amount}) for name, amount in total.items()]
