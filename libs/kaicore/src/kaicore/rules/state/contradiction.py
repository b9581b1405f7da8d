"""Contradiction between an observed placement and the predicted one. Settling an open part is no contradiction."""

from collections.abc import Iterable
from enum import StrEnum

from kaicore.rules.model.placement import ContainerPlacement, Placement
from kaicore.rules.state.agreement import Holdings, comparable_containers, holdings, told_as_predicted


class MissCause(StrEnum):
    """How a placement contradicts its prediction; a kubelet's rejection has its own reason as cause.

    Attributes:
        ZONES: other zones.
        AMOUNTS: other amounts of the same zones.
        RELEASED_EARLIER: the zones that the kubelet gives when pods, whose end the API told later, are released.
        HALF_READ: the whole, reported later, is as predicted.
        OLDEST_FIRST: the zones that the kubelet gives when pods that came to it together are admitted oldest first.
        NOT_OBSERVED_YET: the zones that the kubelet gives with the pods before it where they are; when it was decided
            on, some were not observed and counted on other zones, too.
    """

    ZONES = "zones"
    AMOUNTS = "amounts"
    RELEASED_EARLIER = "ReleasedEarlier"
    HALF_READ = "HalfRead"
    OLDEST_FIRST = "OldestFirst"
    NOT_OBSERVED_YET = "NotObservedYet"


#: Causes that say nothing against a prediction: the kubelet was ahead of the API or has an order of its own, or a
#: report came too early or too late.
NO_FAULT = frozenset(
    {MissCause.RELEASED_EARLIER, MissCause.HALF_READ, MissCause.OLDEST_FIRST, MissCause.NOT_OBSERVED_YET}
)


def contradiction(predicted: Placement, observed: Placement) -> MissCause | None:
    """Compare an observed placement with its prediction; None where it is as predicted.

    Of resources whose split the prediction calls uncertain only the sum is compared, and that it lies where it could;
    what init containers perhaps keep may be in the sum or not.
    """
    if told_as_predicted(predicted, observed):
        return None
    expected_of, actual_of = comparable_containers(predicted, observed)
    open_ = {name for container in expected_of for name in container.uncertain}
    expected, actual = holdings(expected_of), holdings(actual_of)
    fixed = [{key: amount for key, amount in side.items() if key[1] not in open_} for side in (expected, actual)]
    if fixed[0] != fixed[1]:
        return MissCause.AMOUNTS if _zones(fixed[0]) == _zones(fixed[1]) else MissCause.ZONES
    if not open_:
        return None
    least, most = _totals(expected_of), _totals(_shown_of(predicted, expected_of))
    observed_totals = _totals(actual_of)
    for resource in sorted(open_):
        possible = _possible(expected_of, resource)
        if possible is not None and not _zones(actual).get(resource, frozenset()) <= possible:
            return MissCause.ZONES
        if not least.get(resource, 0) <= observed_totals.get(resource, 0) <= most.get(resource, least.get(resource, 0)):
            return MissCause.AMOUNTS
    return None


def falls_short(predicted: Placement, observed: Placement) -> bool:
    """Tell whether less was observed of some container's resource than predicted: as in the middle of an admission.

    A kubelet gives a container all that it asks for, resource by resource, and podresources shows it as it goes on.
    """
    expected_of, actual_of = comparable_containers(predicted, observed)
    seen = {item.container: _totals([item]) for item in actual_of}
    return any(
        seen.get(item.container, {}).get(resource, 0) < amount
        for item in expected_of
        if item.container not in (observed.init or ())
        for resource, amount in _totals([item]).items()
    )


def _shown_of(predicted: Placement, certain: Iterable[ContainerPlacement]) -> list[ContainerPlacement]:
    """Return the containers that are compared with all that is perhaps theirs."""
    names = {item.container for item in certain}
    return [item for item in predicted.containers if item.container in names]


def _totals(containers: Iterable[ContainerPlacement]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for (_, resource), amount in holdings(containers).items():
        totals[resource] = totals.get(resource, 0) + amount
    return totals


def _possible(containers: Iterable[ContainerPlacement], resource: str) -> frozenset[str] | None:
    """The zones from which a resource may come; None for any."""
    zones: set[str] = set()
    for container in containers:
        held = {zone.zone for zone in container.zones if zone.amount.get(resource)}
        if held and not container.mask:
            return None
        if held:
            zones |= held | set(container.mask)
    return frozenset(zones)


def _zones(held: Holdings) -> dict[str, frozenset[str]]:
    zones: dict[str, frozenset[str]] = {}
    for names, resource in held:
        zones[resource] = zones.get(resource, frozenset()) | frozenset(names)
    return zones
