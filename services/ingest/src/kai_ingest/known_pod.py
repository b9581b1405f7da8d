"""A pod as ingest knows it, and why a report's pod is none of those."""

from enum import StrEnum
from uuid import UUID

import msgspec
from kaicore.errors import KaiError
from kaicore.rules.events import payloads
from kaicore.rules.events.observation import content_digest, held
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, SpanAmount, ZoneAmount
from kaicore.rules.model.pod import MIRROR_ANNOTATION, Pod
from kaicore.rules.numa.explain import Limits, most_held

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


class LastObservation(msgspec.Struct, frozen=True):
    """The observation of a pod that was recorded last.

    Attributes:
        content: digest of the placement.
        exporter: it came from an exporter.
        empty: nothing was bound to a zone.
    """

    position: int
    id: UUID
    content: bytes
    exporter: bool
    empty: bool


class KnownPod(msgspec.Struct):
    """A pod that has a node.

    Attributes:
        node: where it was decided to go, or is.
        since: its node's kubelet cannot have known of it earlier.
        succeeds: another pod of that name was on that node before.
        version: of its stream, as far as is known here.
        pod: as it was seen last; None if it never was.
        live: it has not reached a terminal phase.
        on_node: Kubernetes said that it is there; else a decision did.
        bound_at: when its binding was recorded, 0 if it was not.
        placed: it was decided to go there.
        predicted: the zones that were predicted for it.
        observed: the zones on which it was observed, by the last record of that.
        missed: a prediction of it is recorded to have been wrong.
        annotation: what its annotation says of its placement; empty without one.
        memory_groups: what another says of the memory groups that it holds, likewise.
        cause: the event that brought the annotation.
    """

    uid: str
    namespace: str
    name: str
    node: str
    since: int
    succeeds: bool
    pod: Pod | None = None
    version: int = 0
    live: bool = True
    on_node: bool = False
    bound_at: int = 0
    placed: bool = False
    predicted: Placement | None = None
    observed: Placement | None = None
    missed: bool = False
    annotation: str = ""
    memory_groups: str = ""
    cause: UUID | None = None
    annotated_at: int = 0
    record: LastObservation | None = None

    @property
    def subject(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def uid_on_node(self) -> str:
        """The uid by which the kubelet's state files know it: a static pod's is not that of its mirror in the API."""
        return self.uid if self.pod is None else self.pod.annotations.get(MIRROR_ANNOTATION, self.uid)

    @property
    def most(self) -> Limits:
        """The possible holdings of each of its containers."""
        return {} if self.pod is None else most_held(self.pod)


class Miss(StrEnum):
    """The reason why a report's pod is not yet one of ours."""

    UNKNOWN = "unknown"
    ELSEWHERE = "elsewhere"
    FINISHED = "finished"
    AMBIGUOUS = "ambiguous"
    ZONE = "zone"
    HALF = "half"


class Unresolved(KaiError):
    """A report's pod is not known; names the field and the value."""

    def __init__(self, miss: Miss, message: str) -> None:
        super().__init__(message)
        self.miss = miss


def record_of(payload: payloads.PlacementObserved, *, position: int, event_id: UUID) -> LastObservation:
    """Return what is kept of a recorded observation."""
    return LastObservation(
        position,
        event_id,
        content_digest(payload.placement),
        payload.source == "exporter",
        is_empty(payload.placement),
    )
