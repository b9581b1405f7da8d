"""The policies of one cycle: those that its configuration names, but those that failed, on the cycle's own facts.

Those about groups and queues say their order, what holds groups, and the extra cost of victims. Each is asked once per
cycle about all groups together, in the order of their keys. An order before priority makes the groups of a queue
exchange their priorities' places: the first by the policy comes as the one with the highest priority would, so the
queue stands among other queues as it did. What may be evicted goes by the groups' own priority.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from types import MappingProxyType

import numpy as np

from kaicore.policy import MOST, Facts, Flags, Ints, PastUse, Point, Policy, Queue, Running, Waiting
from kaicore.rules.engine.config import PolicySetting
from kaicore.rules.engine.cycle_input import CycleInput, move_key
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.policies.book import PolicyGuard
from kaicore.rules.engine.policies.class_policies import NodePolicies
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.policies.node_facts import NodeFacts
from kaicore.rules.engine.work.pending_group import PendingGroup
from kaicore.rules.engine.work.workload import Member, Workload
from kaicore.rules.events.reasons.group import HeldByPolicy
from kaicore.rules.groups.membership import POD
from kaicore.rules.model.gpu_share import GPU, WHOLE
from kaicore.rules.queues.cycle_queues import CycleQueues
from kaicore.rules.queues.division import USAGE_SCALE
from kaicore.rules.queues.tree import UNLIMITED, thousandths_of_gpus

_SECOND_US = 1_000_000
#: Keys of groups of one pod begin like this; of the others, pods do not matter to `move_key`.
_LONE = f"{POD}/"
_NAME = attrgetter("pod.name")
#: For all groups of which a policy declares none, so nobody is to write to it.
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


class GroupPolicies:
    """The policies of one cycle that decide about groups."""

    def __init__(self, cycle_input: CycleInput, facts: Facts) -> None:
        """Args:
        cycle_input: what the cycle decides on; its accounts as the cycle begins.
        facts: of the cycle.
        """
        self._input, self._facts = cycle_input, facts
        #: By name, and by whether the past is known.
        self._queues: dict[tuple[str, bool], Queue] = {}
        #: By class, the GPUs of a pod that waits, in thousandths.
        self._gpus_of_class: dict[str, int] = {}
        #: By group, what all policies know of it and of its queue.
        self._waiting: dict[str, tuple[Waiting, Queue]] = {}
        #: By namespace; None as long as no policy has asked.
        self._namespace_use: Mapping[str, int] | None = None

    def settle(self, pending_groups: Mapping[str, PendingGroup]) -> None:
        """Hold groups, and put the others of each queue, and the queues, in the order that policies give them."""
        groups = [pending_groups[key] for key in sorted(pending_groups)]
        self._hold(groups)
        self._order(groups)
        self._order_queues()

    def extra_costs(self, workloads: Mapping[str, Workload]) -> dict[str, int]:
        """Return the extra cost of taking pods from running groups, by key; without those of which it is 0."""
        costs: dict[str, int] = {}
        for policy in self._with(Point.VICTIMS):
            keys = [key for key in sorted(workloads) if self._decides(policy, workloads[key])]
            asked = [self._running(workloads[key], policy) for key in keys]
            for key, cost in zip(keys, policy.victims(asked, self._facts), strict=True):
                costs[key] = min(costs.get(key, 0) + cost, MOST)
        return {key: cost for key, cost in costs.items() if cost}

    def _hold(self, groups: Iterable[PendingGroup]) -> None:
        """Hold groups for which no room is reserved yet; the first policy that holds one is its reason."""
        waiting = [one for one in groups if any(one.waiting.values()) and not one.nominated]
        for policy in self._with(Point.ADMIT):
            asked = [one for one in waiting if one.held is None]
            if policy.setting.queues:
                asked = [one for one in asked if self._decides(policy, one.workload)]
            answers = policy.admit(self._facts_of(asked, policy), self._facts)
            for one, hold in zip(asked, answers, strict=True):
                if hold is not None:
                    until = hold.until_us if hold.until_us > self._input.now else 0
                    one.hold(HeldByPolicy(policy=policy.setting.name, why=hold.reason, until_us=until))

    def _order(self, groups: Sequence[PendingGroup]) -> None:
        policies, by_queue = self._with(Point.ORDER), dict[str, list[PendingGroup]]()
        for one in groups if policies else ():
            by_queue.setdefault(self._queue_of(one), []).append(one)
        queues = sorted(by_queue.items())
        #: The places that policies give all groups, queue by queue: those before priority, and those after it.
        before, after = list[list[int]](), list[list[int]]()
        for policy in policies:
            decides = [policy.setting.decides_for(queue) for queue, _ in queues]
            asked = [one for (_, own), is_asked in zip(queues, decides, strict=True) if is_asked for one in own]
            answers = iter(policy.order(self._facts_of(asked, policy), self._facts))
            places = [
                next(answers) if is_asked else 0
                for (_, own), is_asked in zip(queues, decides, strict=True)
                for _ in own
            ]
            (before if policy.policy.order_before_priority else after).append(places)
        at = 0
        for _, own in queues:
            whole = slice(at, at := at + len(own))
            _rank(own, [places[whole] for places in before], [places[whole] for places in after])

    def _order_queues(self) -> None:
        accounts = self._input.accounts
        names = [queue.name for queue in accounts.accounts.tree.queues]
        places: list[tuple[int, ...]] = [()] * len(names)
        policies = self._with(Point.ORDER_QUEUE)
        for policy in policies:
            numbers = [number for number, name in enumerate(names) if policy.setting.decides_for(name)]
            past = PastUse.QUEUE in policy.policy.history
            answers = policy.order_queue([self._queue(names[number], past=past) for number in numbers], self._facts)
            given = dict(zip(numbers, answers, strict=True))
            places = [(*before, given.get(number, 0)) for number, before in enumerate(places)]
        accounts.places = dict(enumerate(places)) if policies else {}

    def _queue_of(self, pending_group: PendingGroup) -> str:
        known = self._waiting.get(pending_group.key)
        return self._input.accounts.queue_of(pending_group.group) if known is None else known[0].queue

    def _queue(self, name: str, *, past: bool) -> Queue:
        """Return what policies know of a queue that declare its past use, or do not."""
        queue = self._queues.get((name, past))
        if queue is None:
            queue = queue_facts(self._input.accounts, name)
            queue = self._queues[name, past] = queue if past else replace(queue, past_use=0)
        return queue

    def _past(self, policy: GuardedPolicy) -> tuple[Callable[[str], int], Mapping[str, int]]:
        """Return what GPU time groups' ended pods, and namespaces, have had, as far as a policy declares it."""
        history, use = policy.policy.history, self._namespace_use
        if PastUse.NAMESPACE in history and use is None:
            use = self._namespace_use = self._input.namespace_use()
        seconds_before = self._input.gpu_seconds_before if PastUse.OWNER in history else lambda _: 0
        return seconds_before, use if use is not None and PastUse.NAMESPACE in history else {}

    def _with(self, point: Point) -> list[GuardedPolicy]:
        return [one for one in self._input.policies if one.has(point)]

    def _decides(self, policy: GuardedPolicy, workload: Workload) -> bool:
        return not policy.setting.queues or policy.setting.decides_for(self._input.accounts.queue_of(workload.group))

    def _facts_of(self, groups: Sequence[PendingGroup], policy: GuardedPolicy) -> list[tuple[Waiting, Queue]]:
        known, setting, history = self._waiting, policy.setting, policy.policy.history
        every = [known.get(one.key) or self._known_of(one) for one in groups]
        if PastUse.OWNER in history or PastUse.NAMESPACE in history:
            every = [*self._with_past(groups, every, policy)]
        if setting.pod_labels or setting.pod_annotations:
            every = [*_with_declared(groups, every, policy)]
        if PastUse.QUEUE in history:
            every = [(waiting, self._queue(waiting.queue, past=True)) for waiting, _ in every]
        return every

    def _with_past(
        self, groups: Sequence[PendingGroup], known: Sequence[tuple[Waiting, Queue]], policy: GuardedPolicy
    ) -> Iterator[tuple[Waiting, Queue]]:
        seconds_before, namespace_use = self._past(policy)
        for one, facts in zip(groups, known, strict=True):
            waiting, queue = facts
            key = waiting.key
            if key.startswith(_LONE):
                key = _past_key(key, *one.waiting.values(), one.workload.active.values())
            before, use = seconds_before(key), namespace_use.get(waiting.namespace, 0)
            # Of most groups there is nothing to add, and another such object takes longer than to look.
            if before or use:
                used = waiting.used_gpu_seconds + before
                yield replace(waiting, used_gpu_seconds=used, namespace_use=use), queue
            else:
                yield facts

    def _known_of(self, pending_group: PendingGroup) -> tuple[Waiting, Queue]:
        group, now, of_class = pending_group.group, self._input.now, self._gpus_of_class
        created_us, pods, gpus = group.created_at * _SECOND_US, 0, 0
        for members in filter(None, pending_group.waiting.values()):
            pods += len(members)
            keys = [member.class_key for member in members]
            # Mostly all are of one class.
            alike = keys.count(keys[0]) == len(keys)
            for key, member in ((keys[0], members[0]),) if alike else zip(keys, members, strict=True):
                if key not in of_class:
                    of_class[key] = thousandths_of_gpus(member.requests)
                gpus += of_class[key] * (len(keys) if alike else 1)
        active = pending_group.workload.active
        queue = self._queue(self._input.accounts.queue_of(group), past=False)
        waiting = Waiting(
            key=group.key,
            namespace=group.namespace,
            queue=queue.name,
            priority=group.priority,
            created_us=created_us,
            waited_us=max(now - created_us, 0),
            pods=pods,
            gpus=gpus,
            used_gpu_seconds=sum(_used(member, now) for member in active.values()) if active else 0,
            labels=_NO_LABELS,
            annotations=_NO_LABELS,
        )
        known = self._waiting[group.key] = waiting, queue
        return known

    def _running(self, workload: Workload, policy: GuardedPolicy) -> Running:
        group, now, members = workload.group, self._input.now, workload.active.values()
        asks = policy.setting.pod_labels or policy.setting.pod_annotations
        labels, annotations = _declared(min(members, key=_NAME, default=None) if asks else None, policy)
        running_s = sum(_used(member, now) for member in members)
        seconds_before, namespace_use = self._past(policy)
        return Running(
            key=group.key,
            namespace=group.namespace,
            queue=self._input.accounts.queue_of(group),
            priority=group.priority,
            pods=len(members),
            gpus=sum(_gpus(member) for member in members),
            running_us=max((now - one.running_since for one in members if one.running_since), default=0),
            lost_us=max((now - one.work_since for one in members if one.work_since), default=0),
            labels=labels,
            annotations=annotations,
            used_gpu_seconds=running_s + seconds_before(_past_key(group.key, members)),
            namespace_use=namespace_use.get(group.namespace, 0),
        )


def _past_key(group: str, *members: Iterable[Member]) -> str:
    """Return under what the past of a group is counted; see `move_key`."""
    first = next(chain.from_iterable(members), None) if group.startswith(_LONE) else None
    return group if first is None else move_key(group, first.pod)


def queue_facts(accounts: CycleQueues, name: str) -> Queue:
    """Return what policies know of a queue; nothing but its name where there is no such queue, or no GPUs."""
    tree = accounts.accounts.tree
    number = tree.find(name)
    if number is None or GPU not in tree.resources:
        return Queue(name=name)
    place = tree.resources.index(GPU)
    unit, past = tree.units[place], accounts.accounts.past

    def thousandths(amount: int) -> int:
        return -1 if amount >= UNLIMITED else amount * WHOLE // unit

    return Queue(
        name=name,
        quota=thousandths(tree.quotas[number][place]),
        used=thousandths(accounts.accounts.used[number][place]),
        fair_share=thousandths(accounts.accounts.shares.fair[number][place]),
        past_use=0 if past is None else past[number][place] * 1_000_000 // USAGE_SCALE,
    )


def _rank(groups: Sequence[PendingGroup], before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> None:
    """Put the groups of a queue in order: by the places before priority, then by priority, then by those after it.

    Args:
        before, after: by policy, the places of all these groups.
    """
    if any(len({*places}) > 1 for places in before):
        priorities = [one.priority for one in groups]
        whole = zip(*before, [-priority for priority in priorities], range(len(groups)), strict=True)
        for (*_, number), priority in zip(sorted(whole), sorted(priorities, reverse=True), strict=True):
            groups[number].priority = priority
    both = [*zip(*before, *after, strict=True)]
    ranks = {places: rank for rank, places in enumerate(sorted({*both}))}
    for one, places in zip(groups, both, strict=True):
        one.rank = ranks[places]


def _with_declared(
    groups: Sequence[PendingGroup], known: Sequence[tuple[Waiting, Queue]], policy: GuardedPolicy
) -> Iterator[tuple[Waiting, Queue]]:
    for one, facts in zip(groups, known, strict=True):
        labels, annotations = _declared(_first_one(one), policy)
        if labels is _NO_LABELS and annotations is _NO_LABELS:
            yield facts
        else:
            yield replace(facts[0], labels=labels, annotations=annotations), facts[1]


def _first_one(pending_group: PendingGroup) -> Member | None:
    """Return the first pod by name of those that wait."""
    workload, first = pending_group.workload, list[Member]()
    for members in filter(None, pending_group.waiting.values()):
        # Those of one age are in the order of their names already (`Workload.ready`).
        in_order = members[0].pod.created_at == members[-1].pod.created_at and not workload.constrained
        first.append(members[0] if in_order else min(members, key=_NAME))
    return first[0] if len(first) == 1 else min(first or workload.waiting.values(), key=_NAME, default=None)


def _declared(member: Member | None, policy: GuardedPolicy) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the labels and annotations of a pod, as far as a policy declares them."""
    if member is None:
        return _NO_LABELS, _NO_LABELS
    setting, pod = policy.setting, member.pod
    return _found(pod.labels, setting.pod_labels), _found(pod.annotations, setting.pod_annotations)


def _found(values: Mapping[str, str], keys: Iterable[str]) -> Mapping[str, str]:
    for key in keys:
        if key in values:
            return MappingProxyType({key: values[key] for key in keys if key in values})
    return _NO_LABELS


def _gpus(member: Member) -> int:
    parts = sum(part.milli for part in member.gpus) if member.node else 0
    return thousandths_of_gpus(member.requests) + parts


def _used(member: Member, now: int) -> int:
    """Return the GPU-seconds that a running pod has had so far."""
    since = member.running_since
    return _gpus(member) * (max(now - since, 0) // _SECOND_US) // WHOLE if since else 0


def guarded(
    policies: Sequence[tuple[PolicySetting, Policy]], guard: PolicyGuard, *, but: frozenset[str]
) -> tuple[GuardedPolicy, ...]:
    """Return the policies of a cycle under guard, but those of some names."""
    return tuple(GuardedPolicy(setting, policy, guard) for setting, policy in policies if setting.name not in but)


def facts_of(cycle_input: CycleInput) -> Facts:
    """Return what policies of a cycle may know; each sees of it the inputs that it declares."""
    inputs = {name: of_nodes[""] for name, of_nodes in cycle_input.policy_inputs.items() if "" in of_nodes}
    return Facts(now_us=cycle_input.now, inputs=MappingProxyType(inputs))


def node_policies(cycle_input: CycleInput, present: Flags) -> NodePolicies | None:
    """Return the policies that place pods; None without any.

    Args:
        cycle_input: what the cycle decides on.
        present: by row, whether it is a node of the shard.
    """
    policies = [one for one in cycle_input.policies if one.setting.places]
    if not policies:
        return None
    columns = cycle_input.columns
    tenants = _tenants(cycle_input, columns) if any(one.policy.tenants for one in policies) else {}
    rows = np.flatnonzero(present[: len(columns.names)])
    nodes = NodeFacts(columns, rows, tenants, cycle_input.policy_inputs)
    return NodePolicies(policies, nodes, columns, facts_of(cycle_input))


def group_policies(cycle_input: CycleInput) -> GroupPolicies | None:
    """Return the policies that decide about groups; None without any."""
    return GroupPolicies(cycle_input, facts_of(cycle_input)) if cycle_input.policies else None


def _tenants(cycle_input: CycleInput, columns: NodeColumns) -> Mapping[str, Ints]:
    """Return how many pods are charged to each row as the cycle begins, by namespace."""
    tenants: dict[str, Ints] = {}
    for workload in cycle_input.workloads.values():
        for member in (*workload.active.values(), *workload.leaving.values()):
            row = columns.rows.get(member.node)
            if row is not None:
                counts = tenants.get(member.pod.namespace)
                if counts is None:
                    counts = tenants[member.pod.namespace] = np.zeros(len(columns.present), np.int64)
                counts[row] += 1
    return tenants
