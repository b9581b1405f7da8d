"""The world: all objects at the beginning of a simulation."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from kaicore.analysis.trial.simulation.surroundings import Surroundings
from kaicore.errors import InvalidObject
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.wire.objects import NodeObject, PodObject, PriorityClassObject, TopologyObject
from kaicore.rules.model.group import GroupSource
from kaicore.rules.model.placement import ContainerPlacement
from kaicore.rules.objects.mappings import Object
from kaicore.rules.objects.wire import KubernetesObject

#: Microseconds since the epoch at which a world without any times begins: 2026-01-01T00:00:00Z.
NO_TIMES = 1_767_225_600_000_000


class WorldPod(NamedTuple):
    """A pod: as its JSON says it, and as it is read; `zones` is what annotations say of its placement."""

    where: str
    object: Object
    wire: PodObject
    predicted: ContainerPlacement | None = None
    observed: ContainerPlacement | None = None


@dataclass(slots=True)
class World:
    """Everything that a simulation begins with, each kind in order of name.

    Attributes:
        now: when it begins, microseconds since the epoch: a second after the latest time that any object names.
        nodes: by name, with the object as its JSON says it.
        topologies: the same.
        group_sources: objects that say how pods belong together, with their kinds.
        queues: of KAI and Kueue, and flavors, with their kinds.
        network_topologies: objects that define them, with their kinds.
        missing_owners: owners that pods name and that are not there: their pods are taken to start one by one.
        warnings: what was left out, one line each.
        problems: what is wrong with objects; a world with problems is not to be simulated.
    """

    now: int = NO_TIMES
    nodes: dict[str, tuple[Object, NodeObject]] = field(default_factory=dict)
    topologies: dict[str, tuple[Object, TopologyObject]] = field(default_factory=dict)
    priority_classes: dict[str, PriorityClassObject] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)
    pods: list[WorldPod] = field(default_factory=list)
    group_sources: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    queues: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    network_topologies: list[tuple[Kind[Any], KubernetesObject]] = field(default_factory=list)
    missing_owners: list[GroupSource] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[InvalidObject] = field(default_factory=list)


def created(pod: WorldPod, *, now: int) -> WorldPod:
    """Return a pod that has a creation time: its own, or `now` (microseconds since the epoch) where it has none."""
    if pod.wire.metadata.creation_timestamp is not None:
        return pod
    time = datetime.fromtimestamp(now // 1_000_000, tz=UTC)
    metadata = {**pod.object["metadata"], "creationTimestamp": time.isoformat()}
    meta = msgspec.structs.replace(pod.wire.metadata, creation_timestamp=time)
    wire = msgspec.structs.replace(pod.wire, metadata=meta)
    return pod._replace(object={**pod.object, "metadata": metadata}, wire=wire)
