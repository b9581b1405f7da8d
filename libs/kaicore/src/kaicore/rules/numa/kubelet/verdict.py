"""A kubelet's verdict about a pod: the zones and amounts of each container, or the reason of the refusal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kaicore.rules.numa.kubelet.evaluators import Hints
from kaicore.rules.numa.kubelet.memory_manager import MemoryBlock
from kaicore.rules.numa.kubelet.requests import AlignedContainer
from kaicore.rules.numa.kubelet.zones import NodeZones

TOPOLOGY_AFFINITY = "TopologyAffinityError"
UNEXPECTED_ADMISSION = "UnexpectedAdmissionError"
SMT_ALIGNMENT = "SMTAlignmentError"
EMPTY_POD_SHARED_POOL = "EmptyPodSharedPoolError"
POD_LEVEL_RESOURCES = "PodLevelResourcesNotSupported"


class Holding(msgspec.Struct, gc=False):
    """A container's predicted zones.

    Attributes:
        mask: the merged hint under which it is allocated, 0 for any zones.
        amounts: CPUs and devices by resource and zone, lent ones included.
        blocks: its memory.
        uncertain: resources of which only the sum over the zones is certain.
    """

    container: AlignedContainer
    mask: int
    amounts: dict[str, list[int]] = msgspec.field(default_factory=dict)
    blocks: list[MemoryBlock] = msgspec.field(default_factory=list)
    uncertain: set[str] = msgspec.field(default_factory=set)


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The kubelet would admit the pod.

    Attributes:
        holdings: by container, in order; those that nothing is bound of included.
        lent: CPUs and devices of ordinary init containers that no container took over, by resource and zone: they stay
            with the pod to its end.
        perhaps: what may stay of them besides: with other cores broken than is likely, later containers take CPUs that
            were not lent.
    """

    holdings: tuple[Holding, ...]
    lent: dict[str, list[int]]
    perhaps: dict[str, list[int]] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The kubelet would reject the pod.

    Attributes:
        reason: as in the pod's status.
        message: the cause, in the kubelet's words.
        asking: the container in turn; under pod scope and before any allocation, the pod.
        hints: the providers' hints for it, if it failed by them.
        node: what was free at that moment.
        lent: what init containers lent at that moment.
        crowded: what containers of the pod use up of its own resources, though others need some (KEP-5526).
    """

    reason: str
    message: str
    asking: AlignedContainer
    hints: tuple[Hints, ...]
    node: NodeZones
    lent: dict[str, list[int]]
    crowded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """An admitted container's known zones.

    Attributes:
        masks: the affinity masks that it can have got, as a set of places.
        amounts: its CPUs and devices by resource and zone, lent ones included; those of other resources are worked out.
    """

    masks: int
    amounts: Mapping[str, Sequence[int]] = field(default_factory=dict)
