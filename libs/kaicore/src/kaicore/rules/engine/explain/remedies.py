"""Remedies for a waiting group: smaller requests, or the end of other pods, after which it would be schedulable.

They are computed for each question from a cycle's input, so a cycle pays nothing for them. Every remedy was tried: the
whole next step was placed under the change, on the present nodes with the room that is kept for others. Zones and rules
about other pods were included. A smaller request is an amount that a user would write. A remedy is about room and the
bounds of queues; the next cycle decides who gets the room.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import msgspec

from kaicore.errors import InvalidQuantity
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import ExcludedNodes
from kaicore.rules.engine.cycle_input import CycleInput
from kaicore.rules.engine.placement.placer import Assignment, Placer
from kaicore.rules.engine.placement.pod_class import (
    PodClass,
    base_key,
    class_identity,
    node_requests,
    pod_class,
    variant,
    with_reservations,
)
from kaicore.rules.engine.session.session import Session
from kaicore.rules.engine.victims.ending_groups import EndingGroups
from kaicore.rules.engine.work.gang_planner import Steps, class_refusal
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons.making_room import FitsAfter, FitsIf
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.pod import Amounts, Container, Pod
from kaicore.rules.model.quantity import CPU, HUGEPAGES_PREFIX, is_bytes, is_hugepages, parse_amount
from kaicore.rules.queues.tree import GPU, gpus_per_unit

_MI, _GI = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Sizes:
    """Amounts of a resource, ascending, in the steps in which people write them; none is 0."""

    small: range
    large: range

    @classmethod
    def of(cls, resource: str, *, below: int) -> "Sizes":
        """Return all amounts below one.

        CPUs: whole ones, below one by 100m. Bytes: Gi, below one by Mi; hugepages: whole pages besides. Devices: one.
        """
        small, large = _steps(resource)
        return cls(range(small, min(below, large), small), range(large, below, large))

    def __len__(self) -> int:
        return len(self.small) + len(self.large)

    def __getitem__(self, index: int) -> int:
        return self.small[index] if index < len(self.small) else self.large[index - len(self.small)]


def _steps(resource: str) -> tuple[int, int]:
    if resource == CPU:
        return 100, 1000
    if not is_bytes(resource):
        return 1, 1
    page = 0
    if is_hugepages(resource):
        with suppress(InvalidQuantity):
            size = resource.removeprefix(HUGEPAGES_PREFIX)
            page = parse_amount(size, resource=resource, subject=resource, field="page size")
    return max(page, _MI), max(page, _GI)


def with_at_most(pod: Pod, resource: str, most: int) -> Pod | None:
    """Return a pod that asks for no more than `most` of a resource in all, less in its largest container.

    A limit that equals the request goes down with it, so that the pod keeps its quality of service.

    Args:
        most: in the resource's unit, as a node counts it (`node_requests`).

    Returns:
        the pod; None if it does not come to that by lowering one container after the other, the largest first, each to
        something above nothing.
    """
    overhead = pod.overhead.get(resource, 0)
    if pod.pod_resources is not None and resource in pod.pod_resources:
        bare = most - overhead
        containers = msgspec.structs.replace(pod, pod_resources=None, overhead={})
        if bare <= 0 or node_requests(containers).get(resource, 0) > bare:
            return None
        return msgspec.structs.replace(pod, pod_resources={**pod.pod_resources, resource: bare})
    for _ in pod.containers:
        excess = node_requests(pod).get(resource, 0) - most
        if excess <= 0:
            return pod
        asked = [container.requests.get(resource, 0) for container in pod.containers]
        largest = asked.index(max(asked))
        if asked[largest] <= excess:
            return None
        containers_now = list(pod.containers)
        containers_now[largest] = _lowered(pod.containers[largest], resource, asked[largest] - excess)
        pod = msgspec.structs.replace(pod, containers=tuple(containers_now))
    return pod if node_requests(pod).get(resource, 0) <= most else None


def lowered_containers(pod: Pod, smaller: Pod) -> list[str]:
    """Return the names of the containers that ask for less; empty where the pod has one only."""
    pairs = zip(pod.containers, smaller.containers, strict=True)
    return [one.name for one, other in pairs if one != other] if len(pod.containers) > 1 else []


def resized(of_class: PodClass, smaller: Pod) -> PodClass:
    """Return the class of a pod of a class that asks for less now; all else of it is as it is."""
    base = pod_class(smaller, class_identity(smaller))
    smaller_class = variant(base, of_class.selected, of_class.volumes, of_class.flavors, of_class.devices)
    return with_reservations(smaller_class, of_class.kept_off) if of_class.kept_off else smaller_class


def _lowered(container: Container, resource: str, amount: int) -> Container:
    def lower(amounts: Amounts) -> Amounts:
        return {**amounts, resource: amount}

    same_limit = container.limits.get(resource) == container.requests[resource]
    limits = lower(container.limits) if same_limit else container.limits
    return msgspec.structs.replace(container, requests=lower(container.requests), limits=limits)


#: How many groups' ends are tried at most for one group.
MOST_ENDS = 500

#: What all answers of one `Remedies` may cost: pods placed, and rows evaluated anew, so many of which count as one.
_EFFORT, _ROWS = 20_000, 50

#: Up to so many amounts are tried one by one.
_FEW = 16


@dataclass(frozen=True, slots=True)
class Remedy:
    """The conditions under which a group would become schedulable.

    Attributes:
        reasons: `FitsIf` by resource, then `FitsAfter`.
        classes: keys of the classes of the pods that are to start next.
    """

    reasons: tuple[Reason, ...] = ()
    classes: frozenset[str] = frozenset()


@dataclass(slots=True)
class _Outcome:
    """Of placing what is to start next."""

    assignments: Sequence[Assignment] = ()
    stuck: Member | None = None
    refusal: tuple[Reason, ...] = ()

    @property
    def starts(self) -> bool:
        return self.stuck is None and not self.refusal


class Remedies:
    """Answers for one input."""

    def __init__(self, given: CycleInput, config: EngineConfig) -> None:
        """Args:
        given: what a cycle would decide on; room that is kept is on its accounts afterwards, and nothing else changed.
        """
        self._given = given
        self._config = config
        self._session = Session(given, config)
        self._session.reservations.restore()
        self._effort = _EFFORT

    def shape(self, group_key: str) -> object:
        """Return a key that is equal for two groups if the same helps both; None if nothing is to start next."""
        session, steps = self._session, self._steps_of(group_key)
        if not steps:
            return None
        parts: list[object] = []
        for pending_group, step in steps:
            group = pending_group.group
            kinds = Counter(session.pods.key_of(member) for member in step.members)
            apart = (
                pending_group.workload.active
                or pending_group.workload.leaving
                or pending_group.workload.constrained
                or any(member.nomination for member in step.members)
            )
            own = group.key if apart else ""
            payer = session.accounts.queue_of(group), group.namespace, group.preemptible, group.admitted
            parts.append((tuple(sorted(kinds.items())), payer, group.priority, own))
        return tuple(parts)

    def of(self, group_key: str) -> Remedy:
        """Return when a group would become schedulable."""
        session, steps = self._session, self._steps_of(group_key)
        if not steps or self._exhausted:
            return Remedy()
        savepoint = session.nodes.statement.savepoint()
        outcome = self._place(steps, session.nodes.now)
        reasons = outcome.refusal
        if outcome.stuck is not None:
            reasons = session.nodes.now.feasible_nodes(session.pods.class_of(outcome.stuck)).reasons()
        session.nodes.statement.rollback(savepoint)
        conditions: list[Reason] = []
        if not outcome.starts:
            short = self._short(steps, reasons)
            conditions = [reason for resource in short if (reason := self._smaller(steps, resource)) is not None]
            # A queue that has no bound in the way does not exist, is stopped, or the like.
            if all(reason.short_resource for reason in outcome.refusal) and not all(one.lasting for one in reasons):
                later = self._later(steps, refused=bool(outcome.refusal))
                conditions += [later] if later is not None else []
        return Remedy(
            tuple(conditions), frozenset(session.pods.key_of(member) for _, step in steps for member in step.members)
        )

    @property
    def _exhausted(self) -> bool:
        """True if the answers so far have used the whole budget; further ones are empty."""
        return self._effort <= 0

    def _steps_of(self, group_key: str) -> Steps:
        """Return what must start at once for a group to go on; empty where that is not known, or no pod is ready."""
        pending_group = self._session.pending_groups.get(group_key)
        return [] if pending_group is None else self._session.gangs.joint_steps(pending_group)[0]

    def _place(self, steps: Steps, placer: Placer) -> _Outcome:
        """Place all that is to start, as a cycle does it; it stays on the trail, the accounts are put back."""
        session = self._session
        before = session.accounts.savepoint()
        own, others = session.reservations.usable_by(steps)
        session.reservations.suspend([*own, *others])
        try:
            for pending_group, step in steps:
                request = session.pods.requests_of(step.members, placer.class_of)
                refusal = session.accounts.refusal(pending_group.group, request)
                if refusal:
                    return _Outcome(refusal=refusal)
                session.accounts.charge(pending_group.group, request)
        finally:
            session.accounts.undo(before)
        self._effort -= 1 + sum(len(step.members) for _, step in steps)
        outcome = session.step_placer.place(steps, placer)
        return _Outcome(outcome.assignments, outcome.unplaced)

    # Asking for less.

    def _short(self, steps: Steps, reasons: Sequence[Reason]) -> list[str]:
        """Return the resources that reasons name and that are asked for; queues call all kinds of GPUs `gpu`."""
        asked = sorted(self._session.pods.requests_of(member for _, step in steps for member in step.members))
        named = dict.fromkeys(reason.short_resource for reason in reasons)
        short = [[name] if name != GPU else [kind for kind in asked if gpus_per_unit(kind)] for name in named]
        return [name for names in short for name in names if name in asked]

    def _smaller(self, steps: Steps, resource: str) -> Reason | None:
        session = self._session
        samples = {session.pods.key_of(member): member for _, step in steps for member in step.members}
        asked = max(session.pods.class_of(member).requests.get(resource, 0) for member in samples.values())
        sizes = Sizes.of(resource, below=asked)
        # Below some amount a container would be left with nothing.
        first = bisect_left(
            sizes,
            True,
            key=lambda most: all(with_at_most(member.pod, resource, most) is not None for member in samples.values()),
        )
        assignments: dict[int, Sequence[Assignment]] = {}

        def fits(index: int) -> bool:
            placed = self._fits_with(steps, samples, resource, sizes[index])
            if placed is not None:
                assignments[index] = placed
            return placed is not None

        best = _largest(first, len(sizes), fits)
        if best is None:
            return None
        lowered: list[str] = []
        for member in samples.values():
            smaller = with_at_most(member.pod, resource, sizes[best])
            lowered += [] if smaller is None else lowered_containers(member.pod, smaller)
        count = sum(len(step.members) for _, step in steps)
        parts = ["per pod"] if count > 1 else []
        parts += [f"by less in {', '.join(sorted(set(lowered)))}"] if lowered else []
        names = session.nodes.columns.names
        return FitsIf(
            resource=resource,
            most=sizes[best],
            scope=", ".join(parts),
            example=min(names[assignment.row] for assignment in assignments[best]),
        )

    def _fits_with(
        self, steps: Steps, samples: dict[str, Member], resource: str, most: int
    ) -> Sequence[Assignment] | None:
        """Return where all pods go if none asks for more of a resource; None if they do not fit."""
        session, excluded_nodes = self._session, self._given.excluded_nodes
        classes: dict[str, PodClass] = {}
        rejecting, avoid = dict(excluded_nodes.rejecting), dict(excluded_nodes.avoid)
        suspects = dict(excluded_nodes.suspects)
        for key, member in samples.items():
            pod_class = session.pods.class_of(member)
            if pod_class.requests.get(resource, 0) > most:
                smaller = with_at_most(member.pod, resource, most)
                if smaller is None:
                    return None
                before, pod_class = pod_class, resized(pod_class, smaller)
                if class_refusal(pod_class, self._config):
                    return None
                # A kubelet that refused more may take less, but that cannot be pod_class.
                alike = (base_key(pod_class.key), pod_class.key, before.key)
                rejecting[pod_class.key] = {
                    row: why for one in alike for row, why in excluded_nodes.rejecting.get(one, {}).items()
                }
                suspects[pod_class.key] = excluded_nodes.suspects.get(before.key, {})
                avoid[pod_class.key] = excluded_nodes.avoid.get(before.key, set())
            classes[key] = pod_class
        rows = len(session.nodes.columns.names)
        self._effort -= len({pod_class.key for pod_class in classes.values()}) * (rows // _ROWS)
        if self._exhausted:
            return None
        class_of: Callable[[Member], PodClass] = lambda member: classes[session.pods.key_of(member)]  # noqa: E731
        savepoint = session.nodes.statement.savepoint()
        excluded = ExcludedNodes(rejecting, avoid, reserved=excluded_nodes.reserved, suspects=suspects)
        placer = Placer(session.nodes.statement, class_of, excluded, self._config)
        outcome = self._place(steps, placer)
        session.nodes.statement.rollback(savepoint)
        return outcome.assignments if outcome.starts else None

    # The end of other pods.

    @cached_property
    def _ending(self) -> EndingGroups:
        return EndingGroups(self._session)

    def ends(self, group_key: str, *, most: int) -> list[Workload]:
        """Return the running groups that would each leave room for a waiting one at their end, preferred first."""
        steps = self._steps_of(group_key)
        if not steps or self._exhausted:
            return []
        savepoint = self._session.nodes.statement.savepoint()
        outcome = self._place(steps, self._session.nodes.now)
        self._session.nodes.statement.rollback(savepoint)
        return [] if outcome.starts else list(islice(self._ends(steps, refused=bool(outcome.refusal)), most))

    def _later(self, steps: Steps, *, refused: bool) -> Reason | None:
        """Return the groups that leave room for the step at their end: all that leave, one, or all that share a GPU."""
        leaving = self._given.leaving
        if leaving and self._fits_without(steps, leaving):
            return FitsAfter(pods=len(leaving), example=min(member.node for member in leaving))
        ending = next(([one] for one in self._ends(steps, refused=refused)), None) or self._sharers_end(steps)
        if not ending:
            return None
        groups, members = [one.group for one in ending], _pods_of(ending)
        return FitsAfter(
            group=", ".join(f"{one.origin.partition('.')[0]} {one.namespace}/{one.name}" for one in groups),
            pods=len(members),
            example=min(member.node for member in members),
        )

    def _sharers_end(self, steps: Steps) -> Sequence[Workload]:
        """Return groups that share a GPU and leave room for the step at their end, as few as it takes; or none."""
        own = self._session.gangs.started_with([pending_group.key for pending_group, _ in steps])
        for sharers in self._ending.sharing_together()[:MOST_ENDS]:
            if self._exhausted:
                break
            if any(one.group.key in own for one in sharers) or not self._fits_without(steps, _pods_of(sharers)):
                continue
            needed = sharers
            for one in reversed(sharers):
                others = [other for other in needed if other is not one]
                needed = others if self._fits_without(steps, _pods_of(others)) else needed
            return needed
        return ()

    def _ends(self, steps: Steps, *, refused: bool) -> Iterator[Workload]:
        """Yield the groups that each leave room for the step at their end."""
        session = self._session
        own = session.gangs.started_with([pending_group.key for pending_group, _ in steps])
        classes = Counter(session.pods.key_of(member) for _, step in steps for member in step.members)
        savepoint = session.savepoint()
        kept, others = session.reservations.usable_by(steps)
        session.reservations.suspend([*kept, *others])
        feasible_by_class = [
            (session.nodes.now.feasible_nodes(session.pods.classes[key]), count)
            for key, count in sorted(classes.items())
        ]
        promising = self._ending.promising(feasible_by_class, anywhere=refused)
        session.undo(savepoint)
        tried = 0
        for workload in promising:
            if workload.group.key in own:
                continue
            tried += 1
            if tried > MOST_ENDS or self._exhausted:
                return
            if self._fits_without(steps, _pods_of([workload])):
                yield workload

    def _fits_without(self, steps: Steps, gone: Sequence[Member]) -> bool:
        """Tell whether the step fits when some pods have ended."""
        session = self._session
        self._effort -= len(gone)
        savepoint = session.savepoint()
        for member in gone:
            session.nodes.statement.evict(session.pods.charge_of(member))
            # What leaves is on no queue's account any more, and what others schedule never was.
            if not member.releasing and member.pod.scheduler_name == self._config.scheduler_name:
                group = self._given.workloads[member.group].group
                session.accounts.release(group, session.pods.requests_of([member]))
        starts = self._place(steps, session.nodes.now).starts
        session.undo(savepoint)
        return starts


def _pods_of(ending: Sequence[Workload]) -> list[Member]:
    """Return the pods that are gone when groups have ended."""
    return [member for one in ending for pods in (one.active, one.leaving) for member in pods.values()]


def _largest(first: int, end: int, fits: Callable[[int], bool]) -> int | None:
    """Return a number from `first` and below `end` that fits, the largest where all below one that fits do too.

    Few are tried one by one. Otherwise by bisection, in which of one that does not fit the neighbours are tried as
    well: kubelets that give whole cores refuse odd numbers of CPUs.
    """
    if end - first <= _FEW:
        return next((index for index in reversed(range(first, end)) if fits(index)), None)
    if not fits(first):
        return None
    low, high = first, end
    while high - low > 1:
        middle = (low + high) // 2
        near = (middle, middle + 1, middle - 1)
        fitting = next((index for index in near if low < index < high and fits(index)), None)
        if fitting is None:
            high = max(middle - 1, low + 1)
        elif fitting < middle:
            low, high = fitting, middle
        else:
            low = fitting
    return low
