"""Reports of exporters as placements."""

from kaicore.rules.events.observation import held
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount

from kai_ingest.reports import ContainerReport, PodReport


def reported_placement(pod: PodReport) -> Placement:
    """Return what a report says of a pod; masks stay empty, for podresources does not tell them."""
    init = pod.init_containers
    return Placement(
        provenance=Provenance.OBSERVED,
        containers=tuple(_container(container) for container in (*pod.containers, *(init or ()))),
        init=None if init is None else tuple(container.name for container in init),
    )


def _container(container: ContainerReport) -> ContainerPlacement:
    return ContainerPlacement(
        container=container.name,
        zones=tuple(
            ZoneAmount(zone=zone.zone, amount=amount)
            for zone in sorted(container.zones, key=lambda zone: _number(zone.zone))
            if (amount := held(zone.amount))
        ),
        spans=tuple(
            SpanAmount(zones=tuple(sorted(span.zones, key=_number)), amount=amount)
            for span in sorted(container.spans, key=lambda span: sorted(map(_number, span.zones)))
            if (amount := held(span.amount))
        ),
    )


def is_empty(placement: Placement) -> bool:
    """Tell whether a placement binds nothing to any zone."""
    return not any(container.zones or container.spans for container in placement.containers)


def _number(zone: str) -> int:
    return int(zone.removeprefix("node-"))
