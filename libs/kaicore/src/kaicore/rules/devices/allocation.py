"""The devices that claims get on a node: the first that fit, all claims of a pod together or none.

Claims, requests and devices are tried in order, with every combination before the search gives up. The order is by
names of drivers, pools and slices, and within a slice that of the driver. Where devices close to given NUMA zones are
preferred, those come first. The result is the same on every machine. A claim may constrain its devices: attributes in
which all agree, or no two. Attributes that are lists count as sets (KEP-5491).

Source: `k8s.io/dynamic-resource-allocation/structured` 0.37, `Allocator.Allocate`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kaicore.rules.devices.pools import DeviceId, Holdings, Pool, PooledDevice, PoolId, consumed_capacity, has_left
from kaicore.rules.devices.selectors import SelectorFailed
from kaicore.rules.model import device as models
from kaicore.rules.model.selector import Requirement

#: The kind of an attribute and its values.
_Values = tuple[str, frozenset[int | bool | str]]


class ConstraintCheck:
    """One constraint of a claim, over the devices that the claim is given one by one."""

    def __init__(self, constraint: models.DeviceConstraint) -> None:
        self._requests = frozenset(constraint.requests)
        self._match = constraint.match
        self._distinct = constraint.distinct
        #: Of match, what all devices so far share; of distinct, what each has.
        self._taken: list[_Values] = []

    def concerns(self, request: str, parent: str) -> bool:
        """Tell whether it is about a request. `request`: its name, `request/alternative` where it is one of several."""
        return not self._requests or request in self._requests or parent in self._requests

    def add(self, device: models.Device) -> bool:
        """Take in a device that it is about; return False, and take it not in, where the constraint is not met."""
        values = _values(device.attributes.get(self._match or self._distinct))
        if values is None:
            return False
        if self._distinct:
            if any(_common(values, other)[1] for other in self._taken):
                return False
        elif self._taken:
            values = _common(values, self._taken[-1])
            if not values[1]:
                return False
        self._taken.append(values)
        return True

    def remove(self) -> None:
        """Take the last device out again."""
        self._taken.pop()


def _values(attribute: models.DeviceAttribute | None) -> _Values | None:
    return None if attribute is None or not attribute.values else (attribute.kind, frozenset(attribute.values))


def _common(values: _Values, others: _Values) -> _Values:
    return values[0], values[1] & others[1] if values[0] == others[0] else frozenset()


#: A claim has at most so many devices (`AllocationResultsMaxSize`).
MOST_DEVICES = 32
#: The attribute by which drivers say to which NUMA zones a device is close (KEP-6072): one, or the closest first.
NUMA_NODE = "resource.kubernetes.io/numaNode"
_NONE_FREE = "no devices that fit are free"
#: So many tainted devices are named where there is none without a taint.
_MOST_NAMED = 3
#: A search that has tried so many devices gives up, so that no claim can hold a cycle up.
_MOST_TRIED = 20_000


class Impossible(Exception):
    """A reason why the search for devices stops."""


class ClaimToServe(NamedTuple):
    """A claim's requests, the selectors of each request's class before its own."""

    requests: tuple[models.DeviceRequest, ...]
    constraints: tuple[models.DeviceConstraint, ...] = ()


def allocate(
    claims: Sequence[ClaimToServe],
    pools: Sequence[Pool],
    held: Holdings,
    *,
    node: str,
    zones: frozenset[int] = frozenset(),
    only_close: bool = False,
) -> tuple[models.Allocation, ...] | str:
    """Return what claims get of a node's pools, or why they get nothing.

    Args:
        node: its name, which claims of devices that are the node's own are tied to.
        zones: NUMA zones to which devices had better be close; none for no preference.
    """
    try:
        search = _Search(claims, pools, held, zones, only_close=only_close)
        done = search.claim(0)
    except (Impossible, SelectorFailed) as error:
        return str(error)
    if not done:
        return next((pool.problem for pool in pools if pool.problem), "") or _tainted(claims, pools) or _NONE_FREE
    return tuple(models.Allocation(tuple(one.result for one in got), _terms(got, node)) for got in search.given)


def _tainted(claims: Sequence[ClaimToServe], pools: Sequence[Pool]) -> str:
    """Name devices that a request would take but for a taint; empty for none."""
    requests = [part for claim in claims for request in claim.requests for part in request.alternatives or (request,)]
    names: dict[str, None] = {}
    for device in (device for pool in pools for device in pool.devices if device.device.taints):
        for request in requests:
            taint = models.untolerated(device.device.taints, request.tolerations)
            try:
                would = taint is not None and device.meets(request.selectors)
            except SelectorFailed:
                continue
            if would:
                names[f"{device.device.name} ({taint})"] = None
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{_NONE_FREE}; tainted: {', '.join([*names][:_MOST_NAMED])}{more}" if names else ""


def is_close(device: PooledDevice, zones: frozenset[int]) -> bool:
    """Tell whether a device is close to any of some NUMA zones, as far as its driver says."""
    return not zones.isdisjoint(numa_zones(device))


def numa_zones(device: PooledDevice) -> tuple[int, ...]:
    """Return the NUMA zones that a device is close to; none where its driver does not say."""
    attribute = device.device.attributes.get(NUMA_NODE)
    return () if attribute is None else tuple(value for value in attribute.values if type(value) is int)


class _Wish(NamedTuple):
    """A request, or one of its alternatives, that is being served.

    Attributes:
        claim: number of its claim.
        name: `request/alternative` where it has alternatives.
    """

    claim: int
    number: int
    request: models.DeviceRequest
    name: str
    parent: str


@dataclass(frozen=True, slots=True)
class _Given:
    device: PooledDevice
    result: models.AllocatedDevice


class _Search:
    def __init__(
        self,
        claims: Sequence[ClaimToServe],
        pools: Sequence[Pool],
        held: Holdings,
        zones: frozenset[int],
        *,
        only_close: bool,
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._held = held
        self._zones = zones
        self._only_close = only_close
        self._tried = 0
        self.given: list[list[_Given]] = [[] for _ in claims]
        #: How often each device is given for itself, by claim.
        self._taken: dict[DeviceId, list[int]] = {}
        #: What each gift takes of a device that may be shared.
        self._shares: dict[DeviceId, list[models.Thousandths]] = {}
        self._counters: dict[tuple[PoolId, str, str], int] = {}
        self._pool_of = {id(device): pool for pool in pools for device in pool.devices}
        self._checks = [[ConstraintCheck(one) for one in claim.constraints] for claim in claims]
        self._candidates = [device for pool in pools if not pool.problem for device in pool.devices]
        #: Of each request for all devices, by claim, request and alternative: all that match, in use or not.
        self._all = {
            (number, index, alternative): list(self._every(one))
            for number, claim in enumerate(claims)
            for index, request in enumerate(claim.requests)
            for alternative, one in enumerate(request.alternatives or (request,))
            if one.mode == models.ALL
        }
        if zones:
            self._candidates.sort(key=lambda device: not is_close(device, zones))

    def claim(self, index: int) -> bool:
        """Serve the claims from one on; return whether that was done."""
        return index == len(self._claims) or self._request(index, 0)

    def _request(self, claim: int, index: int) -> bool:
        requests = self._claims[claim].requests
        if index == len(requests):
            return self.claim(claim + 1)
        request = requests[index]
        for alternative, one in enumerate(request.alternatives or (request,)):
            name = f"{request.name}/{one.name}" if request.alternatives else request.name
            wish = _Wish(claim, index, one, name, request.name)
            every = self._all.get((claim, index, alternative))
            if self._give(wish, one.count, 0) if every is None else self._give_all(wish, every):
                return True
        return False

    def _every(self, request: models.DeviceRequest) -> Iterator[PooledDevice]:
        """Yield all devices that match a request for all, in use or not."""
        for pool in self._pools:
            if pool.problem:
                raise Impossible(f"request {request.name} is for all devices, but {pool.problem}")
            for device in pool.devices:
                if device.meets(request.selectors) and consumed_capacity(device.device, request.capacity) is not None:
                    yield device

    def _give_all(self, wish: _Wish, every: Sequence[PooledDevice]) -> bool:
        if not every or len(self.given[wish.claim]) + len(every) > MOST_DEVICES:
            return False
        given = 0
        for device in every:
            if not self._take(wish, device):
                break
            given += 1
        if given == len(every) and self._request(wish.claim, wish.number + 1):
            return True
        for _ in range(given):
            self._put_back(wish)
        return False

    def _give(self, wish: _Wish, missing: int, start: int) -> bool:
        if missing == 0:
            return self._request(wish.claim, wish.number + 1)
        if len(self.given[wish.claim]) + missing > MOST_DEVICES:
            return False
        for place in range(start, len(self._candidates)):
            device = self._candidates[place]
            if self._in_use(device.id, wish) or not device.meets(wish.request.selectors):
                continue
            self._tried += 1
            if self._tried > _MOST_TRIED:
                raise Impossible(f"the search for devices was given up after {_MOST_TRIED} tries")
            if not self._take(wish, device):
                continue
            if self._give(wish, missing - 1, place + 1):
                return True
            self._put_back(wish)
        return False

    def _in_use(self, device: DeviceId, wish: _Wish) -> bool:
        if wish.request.admin:
            return wish.claim in self._taken.get(device, ())
        return self._held.is_taken(device) or bool(self._taken.get(device))

    def _take(self, wish: _Wish, device: PooledDevice) -> bool:
        """Give a device to a claim if that is possible; return whether it was."""
        one, request = device.device, wish.request
        if self._in_use(device.id, wish) or models.untolerated(one.taints, request.tolerations) is not None:
            return False
        if self._only_close and not is_close(device, self._zones):
            return False
        consumed = consumed_capacity(one, request.capacity)
        if consumed is None:
            return False
        shares, others = self._shares.get(device.id, []), self._held.consumed(device.id) if one.shared else None
        fits = not one.shared or has_left(one, consumed, others or {}, *shares)
        if not fits and request.mode != models.ALL:
            return False
        counts = not shares and others is None
        if counts and not self._counters_left(device):
            return False
        if not self._constrain(wish, device):
            if request.mode == models.ALL:
                raise Impossible(f"request {wish.name} is for all devices, and they do not meet the constraints")
            return False
        if not fits:
            # Only now, for one that the constraints do not let in ends the search, whatever it has left.
            self._unconstrain(wish)
            return False
        self._count(device, 1 if counts else 0)
        if one.shared:
            self._shares.setdefault(device.id, []).append(consumed)
        else:
            self._taken.setdefault(device.id, []).append(wish.claim)
        result = models.AllocatedDevice(
            request=wish.name,
            driver=device.id[0],
            pool=device.id[1],
            device=device.id[2],
            admin=request.admin,
            consumed=consumed if one.shared else None,
            conditions=one.binding_conditions,
            failures=one.failure_conditions,
            numa=numa_zones(device),
            tolerations=request.tolerations,
        )
        self.given[wish.claim].append(_Given(device, result))
        return True

    def _put_back(self, wish: _Wish) -> None:
        device = self.given[wish.claim].pop().device
        if device.device.shared:
            shares = self._shares[device.id]
            shares.pop()
            counted = not shares and self._held.consumed(device.id) is None
        else:
            self._taken[device.id].remove(wish.claim)
            counted = True
        self._count(device, -1 if counted else 0)
        self._unconstrain(wish)

    def _unconstrain(self, wish: _Wish) -> None:
        for check in self._checks[wish.claim]:
            if check.concerns(wish.name, wish.parent):
                check.remove()

    def _constrain(self, wish: _Wish, device: PooledDevice) -> bool:
        added: list[ConstraintCheck] = []
        for check in self._checks[wish.claim]:
            if not check.concerns(wish.name, wish.parent):
                continue
            if not check.add(device.device):
                for one in added:
                    one.remove()
                return False
            added.append(check)
        return True

    def _counters_left(self, device: PooledDevice) -> bool:
        pool = self._pool_of[id(device)]
        for use in device.device.consumes:
            for name, amount in use.counters.items():
                key = pool.id, use.counter_set, name
                if key not in self._counters:
                    self._counters[key] = self._counted_by_others(pool, use.counter_set, name)
                if self._counters[key] + amount > pool.counters[use.counter_set][name]:
                    return False
        return True

    def _counted_by_others(self, pool: Pool, counter_set: str, name: str) -> int:
        return sum(
            use.counters.get(name, 0)
            for device in (*pool.devices, *pool.others)
            if device.device.consumes and self._held.has(device.id)
            for use in device.device.consumes
            if use.counter_set == counter_set
        )

    def _count(self, device: PooledDevice, sign: int) -> None:
        for use in device.device.consumes if sign else ():
            for name, amount in use.counters.items():
                self._counters[device.id[:2], use.counter_set, name] += sign * amount


def _terms(given: Sequence[_Given], node: str) -> tuple[tuple[Requirement, ...], ...] | None:
    """Return where a claim with these devices can be used; None for everywhere."""
    requirements: dict[Requirement, None] = {}
    for one in given:
        device = one.device.device
        selection: models.NodeSelection | None = device.nodes or one.device.slice.nodes
        if device.binds_to_node or (selection is not None and selection.node):
            return ((Requirement("metadata.name", "In", (node,), field=True),),)
        if selection is not None and selection.terms:
            requirements.update(dict.fromkeys(selection.terms[0]))
    return (tuple(requirements),) if requirements else None
