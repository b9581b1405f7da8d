"""Look-ups of a cycle about a pod: its class, its requests, its share of the cluster, and its charge."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property

from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.gpu_supply import GivenPart
from kaicore.rules.engine.placement.pod_class import PodClass, distinct
from kaicore.rules.engine.placement.statement import PodCharge
from kaicore.rules.engine.victims.eviction_cost import PodSizes
from kaicore.rules.engine.work.workload import Member
from kaicore.rules.model.gpu_share import SHARED_GPU
from kaicore.rules.model.pod import Amounts


class CyclePods:
    """Looks up pods for one cycle, each class and size once.

    Attributes:
        classes: the classes that were looked up so far, by key.
        refused: of them, whether pods may be placed nowhere, as far as that was looked up.
    """

    def __init__(self, cycle_input: CycleInput) -> None:
        self.classes: dict[str, PodClass] = {}
        self.refused: dict[str, bool] = {}
        self._input = cycle_input
        self._class_of = cycle_input.class_of
        self._size_by_class: dict[str, int] = {}
        self._requests: dict[tuple[tuple[str, int], ...], Amounts] = {}

    def class_of(self, member: Member) -> PodClass:
        """Return the class as which a pod is decided on."""
        pod_class = self._class_of(member)
        if pod_class.key not in self.classes:
            self.classes[pod_class.key] = pod_class
        return pod_class

    def classes_of(self, members: Iterable[Member]) -> list[PodClass]:
        """Return the class of each of some pods."""
        return [*map(self.class_of, members)]

    def key_of(self, member: Member) -> str:
        """Return the key of the class as which a pod is decided on."""
        return self.class_of(member).key

    def size_of(self, member: Member) -> int:
        """Return how much a running pod holds, as `kaicore.rules.engine.victims.eviction_cost` counts it."""
        size = self._size_by_class.get(member.class_key)
        if size is None:
            size = self._size_by_class[member.class_key] = self._sizes.of(member.requests)
        if member.pod.gpu_share is None:
            return size
        parts = sum(part.milli for part in member.gpus) if member.node else self._parts(self.class_of(member))
        return max(size, self._sizes.of_gpus(parts))

    def class_counts(self, members: Iterable[Member]) -> Counter[str]:
        """Return how many pods there are of each class, by key."""
        classes = self.classes_of(members)
        alike = distinct(classes)
        return Counter({alike[0].key: len(classes)}) if len(alike) == 1 else Counter([one.key for one in classes])

    def requests_of(self, members: Iterable[Member], class_of: Callable[[Member], PodClass] | None = None) -> Amounts:
        """Return what pods request in all; with `class_of`, as pods of other classes than their own."""
        if class_of is not None:
            return self._total((pod_class, 1) for pod_class in map(class_of, members))
        members = tuple(members)
        total = self.requests_of_classes(self.class_counts(members))
        if SHARED_GPU in total:
            # What a placed pod has of GPUs, and not what it was expected to have before its node was known.
            beyond = sum(self._beyond_expected(member) for member in members if member.gpus)
            return total | {SHARED_GPU: total[SHARED_GPU] + beyond}
        return total

    def requests_of_classes(self, class_counts: Mapping[str, int]) -> Amounts:
        """Return what so many pods of each class request in all; not to be changed."""
        alike = tuple(class_counts.items())
        total = self._requests.get(alike)
        if total is None:
            total = self._requests[alike] = self._total((self.classes[key], count) for key, count in alike)
        return total

    def _total(self, counts: Iterable[tuple[PodClass, int]]) -> Amounts:
        total: Amounts = {}
        shared = 0
        for pod_class, count in counts:
            for resource, amount in pod_class.requests.items():
                total[resource] = total.get(resource, 0) + amount * count
            shared += self._parts(pod_class) * count
        return total | {SHARED_GPU: shared} if shared else total

    def _parts(self, pod_class: PodClass) -> int:
        """Return the parts of GPUs that a pod of a class asks for, in thousandths; of the smallest GPU at most."""
        share = pod_class.gpu_share
        return 0 if share is None else share.expected(self._least_memory)

    def _beyond_expected(self, member: Member) -> int:
        return sum(part.milli for part in member.gpus) - self._parts(self.class_of(member))

    @cached_property
    def _least_memory(self) -> int:
        return self._input.columns.least_gpu_memory

    def charge_of(self, member: Member) -> PodCharge:
        """Return what a running pod is charged with on its node."""
        return PodCharge(
            member.pod.uid,
            self._input.columns.rows[member.node],
            member.requests,
            member.zone_charge,
            member.releasing,
            marks=self._input.marks_of(member.pod.uid),
            gpus=tuple([GivenPart(one.group, one.milli, one.mib) for one in member.gpus]) if member.gpus else (),
        )

    @cached_property
    def _sizes(self) -> PodSizes:
        return PodSizes(self._input.columns)
