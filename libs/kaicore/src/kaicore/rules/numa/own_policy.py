"""Compliance with a pod's own NUMA policy, by the prediction for its kubelet and by the observation of the pod.

The kubelet's Topology Manager policy is the node's, for all pods alike. On a node with a policy that refuses no pod, a
pod may still want its devices together. It declares so by annotations, and is placed only where the kubelet will do so
by itself. The idea is KAI-Scheduler's (v0.17, `docs/developer/designs/numa-topology/README.md`, "v3"); the annotations
are ours.

| annotation | values | without it |
|---|---|---|
| `kai.scheduler/numa-policy` | `single-numa-node`, `restricted`, `best-effort` | no policy of its own |
| `kai.scheduler/numa-resources` | resource names with commas between | all that kubelets align of the pod |
| `kai.scheduler/numa-repair` (formerly `numa-heal`) | `true`, `false` | `false` |

Prediction and observation are judged alike. The resources of a container under the policy (of the whole pod, where the
kubelet asks for hints so) must come from a limited number of zones. The limit is one for `single-numa-node`. For
`restricted` it is the fewest zones that could ever suffice for the resource that needs most zones. In a prediction
every zone counts that a resource *may* come from (its span), in an observation every zone that it names. A device that
several zones reach is on each of them (the device manager's hints: any of its NUMA nodes will do), so one of those that
is used anyway is enough. GPUs of which a pod has parts are held by other pods, but count as devices of the container
that gets them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import or_

import msgspec
import numpy as np

from kaicore.errors import InvalidObject
from kaicore.rules.model.gpu_share import GPU, GpuShare
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.model.pod import ContainerKind, Pod
from kaicore.rules.model.quantity import CPU, is_memory
from kaicore.rules.numa.columns import ZoneColumns
from kaicore.rules.numa.kubelet.masks import zones_of
from kaicore.rules.numa.kubelet.requests import AlignedRequest, aligned_request
from kaicore.rules.numa.kubelet.verdict import Admitted, Holding

#: A container's name, its amounts, and by resource the zones that it holds as masks; without a name, the whole pod.
_Unit = tuple[str, tuple[tuple[str, int], ...], dict[str, int]]


def sources(columns: ZoneColumns, row: int, holding: Holding, resource: str) -> int:
    """Return the zones that a container's share of a resource may come from, as a mask."""
    if is_memory(resource):
        return reduce(or_, (block.mask for block in holding.blocks if block.resource == resource), 0)
    named = sum(1 << zone for zone, amount in enumerate(holding.amounts.get(resource, ())) if amount)
    none = columns.kubelet_of(row).policy is TopologyPolicy.NONE
    if resource not in holding.uncertain or (resource == CPU and none):
        return named
    amounts = columns.capacity[row, : int(columns.zone_count[row]), columns.resources[resource]].tolist()
    hosting = sum(1 << zone for zone, amount in enumerate(amounts) if amount)
    return hosting & holding.mask if holding.mask and not named & ~holding.mask else hosting


def spans(columns: ZoneColumns, row: int, admitted: Admitted) -> tuple[int, ...]:
    """Return the zones that anything of a pod's long-running containers may come from, as masks.

    One of each container that has any; one of the whole pod where the kubelet aligns pods (scope `pod`).
    """
    masks = []
    for holding in admitted.holdings:
        if holding.container.kind is not ContainerKind.INIT:
            each = (sources(columns, row, holding, resource) for resource, _ in holding.container.amounts)
            mask = reduce(or_, each, 0)
            masks += [mask] if mask else []
    if len(masks) > 1 and columns.kubelet_of(row).scope is TopologyScope.POD:
        return (reduce(or_, masks),)
    return tuple(masks)


POLICY_ANNOTATION = "kai.scheduler/numa-policy"
RESOURCES_ANNOTATION = "kai.scheduler/numa-resources"
REPAIR_ANNOTATION = "kai.scheduler/numa-repair"
#: The name until 0.2.0, still read where the other is not there.
_FORMER_REPAIR_ANNOTATION = "kai.scheduler/numa-heal"

_POLICIES = (TopologyPolicy.SINGLE_NUMA_NODE, TopologyPolicy.RESTRICTED, TopologyPolicy.BEST_EFFORT)
_FLAGS = {"true": True, "false": False}


class PodNumaPolicy(msgspec.Struct, frozen=True):
    """The NUMA policy that a pod asks for itself.

    Attributes:
        policy: `single-numa-node`: each container (the pod, on a node of pod scope) on one zone; `restricted`: on no
            more zones than it could ever do with; `best-effort`: the latter if there is a choice, else anything.
        resources: which of the pod's resources this is about, sorted; empty for all that kubelets align of it.
    """

    policy: TopologyPolicy
    resources: tuple[str, ...] = ()

    @property
    def binding(self) -> bool:
        """True if the policy leaves nodes out; `best-effort` only ranks them."""
        return self.policy is not TopologyPolicy.BEST_EFFORT

    def concerns(self, resource: str) -> bool:
        """Tell whether the policy is about a resource."""
        return not self.resources or resource in self.resources

    def __str__(self) -> str:
        return f"{self.policy} for {', '.join(self.resources)}" if self.resources else str(self.policy)


def pod_numa_policy(pod: Pod, aligned: AlignedRequest) -> PodNumaPolicy | None:
    """Return the policy that a pod's annotations ask for, None when they ask for none.

    Raises InvalidObject: the annotations ask for something unknown.
    """
    text, names = pod.annotations.get(POLICY_ANNOTATION), pod.annotations.get(RESOURCES_ANNOTATION)
    if text is None and names is None:
        return None
    if text not in _POLICIES:
        raise _invalid(pod, POLICY_ANNOTATION, text, f"must be one of {', '.join(_POLICIES)}")
    resources: tuple[str, ...] = ()
    if names is not None:
        resources = tuple(sorted({name.strip() for name in names.split(",")}))
        if "" in resources:
            raise _invalid(pod, RESOURCES_ANNOTATION, names, "must be resource names with commas between")
        there = sorted({*aligned.resources, GPU} if pod.gpu_share is not None else aligned.resources)
        if not set(resources).intersection(there):
            why = "names nothing that kubelets align of this pod"
            raise _invalid(pod, RESOURCES_ANNOTATION, names, f"{why} ({', '.join(there) or 'nothing'})")
    return PodNumaPolicy(TopologyPolicy(text), resources)


def wants_repair(pod: Pod) -> bool:
    """Tell whether a pod asks to be placed anew when its own policy is missed; anything but `true` is no."""
    return _FLAGS.get(_repair_flag(pod)[1] or "false", False)


def malformed_annotations(pod: Pod) -> Iterator[InvalidObject]:
    """Yield what is wrong with a pod's NUMA annotations.

    A pod with a malformed policy or resources waits; a malformed request for repair counts as none.
    """
    if not pod.annotations:
        return
    try:
        pod_numa_policy(pod, aligned_request(pod))
    except InvalidObject as error:
        yield error
    annotation, flag = _repair_flag(pod)
    if flag is not None and flag not in _FLAGS:
        yield _invalid(pod, annotation, flag, "must be true or false")


def _repair_flag(pod: Pod) -> tuple[str, str | None]:
    """Return the annotation that asks for repair, and its value; None without one."""
    for annotation in (REPAIR_ANNOTATION, _FORMER_REPAIR_ANNOTATION):
        if annotation in pod.annotations:
            return annotation, pod.annotations[annotation]
    return REPAIR_ANNOTATION, None


def _invalid(pod: Pod, annotation: str, value: str | None, why: str) -> InvalidObject:
    return InvalidObject(f"Pod {pod.subject}", f"metadata.annotations[{annotation}]", value or "", why)


@dataclass(frozen=True, slots=True)
class SharedDevices:
    """The GPUs of which a long-running container has parts, each held by a reservation pod of its own.

    Attributes:
        container: the container's name.
        count: how many GPUs.
    """

    container: str
    count: int


def shared_devices(share: GpuShare | None, own: PodNumaPolicy | None, aligned: AlignedRequest) -> SharedDevices | None:
    """Return the shared GPUs that a pod's own policy is about; None where it is about none.

    Args:
        aligned: what kubelets align of the pod.
    """
    if share is None or own is None or not own.concerns(GPU):
        return None
    for one in aligned.containers:
        if one.name == share.container or (not share.container and one.kind is ContainerKind.APP):
            return None if one.kind is ContainerKind.INIT else SharedDevices(one.name, share.devices)
    return None


@dataclass(frozen=True, slots=True)
class Stray:
    """The part of a pod that violates its own policy.

    Attributes:
        container: the container's name; empty for the whole pod.
        zones: masks of zones by resource; empty where the node does not tell zones.
        resource: that the policy names and the node does not report by zone; empty if it is not that.
    """

    container: str = ""
    zones: tuple[tuple[str, int], ...] = ()
    resource: str = ""

    def text(self, zone_names: tuple[str, ...]) -> str:
        """Say it with the zones' names."""
        parts = (f"{name} on {'+'.join(zone_names[zone] for zone in zones_of(mask))}" for name, mask in self.zones)
        return (f"container {self.container}: " if self.container else "") + ", ".join(parts)


def strays(
    columns: ZoneColumns,
    row: int,
    *,
    request: AlignedRequest,
    own: PodNumaPolicy,
    admitted: Admitted,
    shared: SharedDevices | None = None,
    shared_on: int = 0,
) -> Stray | None:
    """Say what a node's kubelet would do otherwise than a pod's own policy asks; None if it keeps to it.

    A pod of which nothing is ever aligned keeps any policy. A node keeps none that does not bind to zones what the
    policy names, or, where it names nothing, anything of the pod.

    Args:
        admitted: what the kubelet would give it.
        shared: the GPUs that it shares, as far as the policy is about them.
        shared_on: the zones that these may be of, as a mask; 0 where that is left open.
    """
    settings = columns.kubelet_of(row)
    request = request.on(settings)
    asked = {
        name for items in (request.pod, *(item.amounts for item in request.containers)) for name, need in items if need
    }
    if shared is not None:
        asked.add(GPU)
    concerned = sorted(name for name in asked if own.concerns(name))
    if (request.empty and shared is None) or (not own.resources and not concerned):
        return None
    bound = [name for name in concerned if columns.binds(row, (name,))]
    if not bound or (own.resources and len(bound) < len(concerned)):
        missing = next((name for name in concerned if name not in bound), "") if own.resources else ""
        return Stray(resource=missing)
    units: list[_Unit] = []
    for holding in admitted.holdings:
        if holding.container.kind is not ContainerKind.INIT:
            held = {name: sources(columns, row, holding, name) for name in bound}
            units.append((holding.container.name, holding.container.amounts, held))
    if settings.pod_scope:
        together = {name: reduce(or_, (held.get(name, 0) for _, _, held in units), 0) for name in bound}
        units = [("", request.pod, together)]
    if shared is not None and GPU in bound:
        units = list(_with_shared(units, shared, shared_on))
    return _first_stray(columns, row, own, units)


def _with_shared(units: Iterable[_Unit], shared: SharedDevices, mask: int) -> Iterator[_Unit]:
    """Yield what is on zones together with shared GPUs among it (`units`: by container, or one of the whole pod)."""
    there = False
    for name, amounts, held in units:
        if name in ("", shared.container):
            there, counts = True, dict(amounts)
            counts[GPU] = counts.get(GPU, 0) + shared.count
            yield name, tuple(sorted(counts.items())), held | {GPU: held.get(GPU, 0) | mask}
        else:
            yield name, amounts, held
    if not there:
        yield shared.container, ((GPU, shared.count),), {GPU: mask}


def missed(
    columns: ZoneColumns,
    row: int,
    *,
    zone_names: tuple[str, ...],
    request: AlignedRequest,
    own: PodNumaPolicy,
    observed: Placement,
    shared: SharedDevices | None = None,
    reservations: Sequence[ContainerPlacement] = (),
) -> str:
    """Say what of an observed placement is not as the pod's own policy asks; empty when nothing is, or none can tell.

    Nothing is said of what is not certain: zones that the node does not have, and records that do not tell the
    containers of a pod apart where each is aligned by itself.

    Args:
        zone_names: its zones, in order of NUMA id.
        shared: the GPUs that it shares, as far as the policy is about them.
        reservations: what was observed of the pods that hold these.
    """
    if not own.binding or not zone_names:
        return ""
    index = {name: number for number, name in enumerate(zone_names)}
    if any(zone not in index for one in (*observed.containers, *reservations) for zone in _zones(one)):
        return ""
    settings = columns.kubelet_of(row)
    request = request.on(settings)
    lasting = {item.name: item.amounts for item in request.containers if item.kind is not ContainerKind.INIT}
    units: list[tuple[str, tuple[tuple[str, int], ...], Sequence[ContainerPlacement]]] = []
    if settings.pod_scope:
        units = [("", request.pod, observed.lasting)]
    elif len(lasting) == 1:
        units = [("", next(iter(lasting.values())), observed.lasting)]
    elif {container.container for container in observed.lasting} <= set(lasting):
        units = [(item.container, lasting[item.container], [item]) for item in observed.lasting]
    held = [(name, amounts, _observed(containers, own, index)) for name, amounts, containers in sorted(units)]
    if shared is not None and reservations:
        held = list(_with_shared(held, shared, _observed(reservations, own, index).get(GPU, 0)))
    stray = _first_stray(columns, row, own, held)
    return "" if stray is None else stray.text(zone_names)


def _zones(container: ContainerPlacement) -> set[str]:
    return {zone.zone for zone in container.zones}.union(*(span.zones for span in container.spans))


def _observed(containers: Iterable[ContainerPlacement], own: PodNumaPolicy, index: dict[str, int]) -> dict[str, int]:
    """Return by resource what containers hold, as masks."""
    held: dict[str, int] = {}
    reached: list[tuple[str, int]] = []
    for container in containers:
        parts = [((zone.zone,), zone.amount) for zone in container.zones]
        for zones, amounts in [*parts, *((span.zones, span.amount) for span in container.spans)]:
            mask = reduce(or_, (1 << index[zone] for zone in zones), 0)
            for resource, amount in amounts.items():
                if not amount or not own.concerns(resource):
                    continue
                if len(zones) > 1 and not is_memory(resource):
                    reached.append((resource, mask))
                else:
                    held[resource] = held.get(resource, 0) | mask
    serving = _fewest(reduce(or_, held.values(), 0), [mask for _, mask in reached])
    for resource, mask in reached:
        held[resource] = held.get(resource, 0) | (mask & serving)
    return held


def _fewest(used: int, reached: Sequence[int]) -> int:
    """Return the fewest zones that have all that are used and one of each mask; of equals the lowest."""
    open_ = [mask for mask in reached if not mask & used]
    zones = zones_of(reduce(or_, open_, 0))
    for count in range(len(zones)):
        for chosen in combinations(zones, count):
            mask = sum(1 << zone for zone in chosen)
            if all(mask & one for one in open_):
                return used | mask
    return used | reduce(or_, open_, 0)


def _first_stray(columns: ZoneColumns, row: int, own: PodNumaPolicy, units: Iterable[_Unit]) -> Stray | None:
    for name, amounts, held in units:
        if reduce(or_, held.values(), 0).bit_count() > _allowed(columns, row, amounts, own):
            return Stray(name, tuple((resource, held[resource]) for resource in sorted(held) if held[resource]))
    return None


def _allowed(columns: ZoneColumns, row: int, amounts: tuple[tuple[str, int], ...], own: PodNumaPolicy) -> int:
    if own.policy is TopologyPolicy.SINGLE_NUMA_NODE:
        return 1
    zones, allowed = int(columns.zone_count[row]), 1
    for resource, need in amounts:
        column = columns.resources.get(resource)
        if column is None or not need or not own.concerns(resource) or not columns.binds(row, (resource,)):
            continue
        source = columns.allocatable if is_memory(resource) else columns.capacity
        # The fewest zones that reach an amount are the largest ones.
        reached = np.cumsum(np.sort(source[row, :zones, column])[::-1]) >= need
        allowed = max(allowed, int(reached.argmax()) + 1 if reached.any() else zones)
    return allowed
