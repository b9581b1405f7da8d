"""The hierarchy of a cluster's queues, built from the queues' own specs.

Queues are numbered, parents before their children and equals by name, and resources are numbered too: shares, accounts
and orders are lists over these numbers. A queue that cannot be used, because its parent does not exist or it is its own
ancestor, has no number; work that names it waits with the reason.

KAI's Queues give quotas of `cpu`, `memory` and `gpu`, Kueue's of resources by their full names. So work is counted both
ways: each resource under its own name, and all kinds of GPUs together as `gpu`. A queue looks at those that it names.

Where there are queues, but none of a default's name, work that names none is in a queue `default` all the same: without
quotas, with the usual weight (decision 0626). Where one hierarchy counts all GPUs together and another one by kinds,
the second counts both ways, and the first does not count kinds (decision 0627).
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from kaicore.rules.events.reasons import queue as queue_reasons
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.model.gpu_share import GPU as WHOLE_GPU
from kaicore.rules.model.gpu_share import SHARED_GPU, SHARED_IN, WHOLE
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import PODS
from kaicore.rules.model.queue import (
    COHORT_PREFIX,
    DEFAULT_QUEUE,
    PREEMPTION_CONFIG_PREFIX,
    PreemptionRule,
    Queue,
    QueueShare,
)

#: All kinds of whole GPUs together; a MIG instance counts its compute slices, as in KAI.
GPU = "gpu"

_MIG = re.compile(r"[^/]+/mig-(\d{1,2})g\.")


def counted(amounts: Amounts) -> Amounts:
    """Return amounts as queues count them: with `gpu`, where they hold any GPU."""
    gpus = gpus_of(amounts)
    return {**amounts, GPU: gpus} if gpus else dict(amounts)


def gpus_of(amounts: Amounts) -> int:
    """Return how many GPUs amounts hold, of all kinds."""
    return sum(amount * gpus_per_unit(resource) for resource, amount in amounts.items())


def thousandths_of_gpus(amounts: Amounts) -> int:
    """Return how many thousandths of GPUs amounts hold, whole ones and parts."""
    return gpus_of(amounts) * WHOLE + amounts.get(SHARED_GPU, 0)


def without_parts(amounts: Amounts) -> Amounts:
    """Return amounts as nodes know them, without parts of GPUs."""
    return {name: amount for name, amount in amounts.items() if name != SHARED_GPU}


@lru_cache(maxsize=4096)
def gpus_per_unit(resource: str) -> int:
    """Return how many GPUs one unit of a resource counts as: 1 for `nvidia.com/gpu`, 3 for `nvidia.com/mig-3g.20gb`."""
    domain, _, name = resource.rpartition("/")
    if not domain:
        return 0
    if name == GPU:
        return 1
    match = _MIG.match(resource)
    return int(match[1]) if match else 0


#: More than there can be of anything: no bound.
UNLIMITED = 2**62

#: The queue of work that names none, in the order of preference; the last is KAI's. A LocalQueue called `default` in
#: the work's namespace comes before all of them, as in Kueue.
DEFAULT_NAMES = (DEFAULT_QUEUE, "default-queue")

_NO_SHARE = QueueShare()
_NO_PLACES: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of some work, as queues count it.

    Attributes:
        amounts: by the tree's numbers of resources.
        resources: names of all resources that it asks for.
    """

    amounts: tuple[int, ...]
    resources: frozenset[str] = frozenset()


class QueueTree:
    """All queues of a cluster.

    Attributes:
        resources: names of the resources that any queue names, sorted; their places are the resources' numbers.
        units: by resource, how many make one of it: 1, or 1000 for GPUs where parts of them count.
        queues: by number.
        parents: the parent's number, -1 for a root.
        children: the children's numbers.
        paths: a queue's number, its parent's, and so on to its root's.
        quotas: by queue and resource, what is guaranteed, that of a pool's children included; `UNLIMITED` for no end.
        limits: by queue and resource, what is never exceeded.
        kept: by queue and resource, what of the quota no other queue may use.
        weights: by queue and resource, in thousandths.
        by_priority: ClusterQueues of cohorts that hold nothing else: they go by how far up they borrow, and by priority
            and age of their work.
        problems: why queues cannot be used, by name.
        configured: whether there is any queue; otherwise the tree is one queue for all work.
        implied_default: the queue of work that names none, where there is no such object; -1 where there is one.
        uncounted: by root, the places of GPU kinds that its hierarchy counts as `gpu` only.
        summed: by root, the place of `gpu` where its hierarchy has quotas of kinds: there it is their sum, which counts
            in the division only.
    """

    def __init__(self, queues: Mapping[str, Queue], *, parts: bool = False) -> None:
        """Args:
        parts: whether GPUs are counted in thousandths, so that parts of them count exactly.
        """
        self._rules = {name: queue.rules for name, queue in queues.items() if name.startswith(PREEMPTION_CONFIG_PREFIX)}
        queues = {name: queue for name, queue in queues.items() if name not in self._rules}
        self.configured = bool(queues)
        self.problems: dict[str, str] = {}
        self._aliases = {name: queue for name, queue in queues.items() if queue.alias_of}
        real = {name: queue for name, queue in queues.items() if not queue.alias_of}
        implied = not queues.keys() & set(DEFAULT_NAMES)
        if implied:
            real[DEFAULT_QUEUE] = Queue(DEFAULT_QUEUE)
        for name in sorted({queue.parent for queue in real.values()} - set(real)):
            if name.startswith(COHORT_PREFIX):
                # Kueue's cohorts are there as soon as a queue names them.
                real[name] = Queue(name, origin="Cohort.kueue.x-k8s.io", pooled=True)
        self.queues: list[Queue] = []
        self.parents: list[int] = []
        self.children: list[list[int]] = []
        self.paths: list[tuple[int, ...]] = []
        self._number: dict[str, int] = {}
        self._arrange(real)
        self._find_problems(real)
        self.implied_default = self._number[DEFAULT_QUEUE] if implied and queues else -1
        self.resources = tuple(sorted({name for queue in self.queues for name in queue.shares}))
        self._parts = parts
        self.units = tuple(WHOLE if parts and is_gpu(name) else 1 for name in self.resources)
        size, width = len(self.queues), len(self.resources)
        self.quotas = [[0] * width for _ in range(size)]
        self.limits = [[UNLIMITED] * width for _ in range(size)]
        self.kept = [[0] * width for _ in range(size)]
        self.weights = [[0] * width for _ in range(size)]
        for number in range(size - 1, -1, -1):
            self._set_bounds(number)
        self.roots = [number for number in range(size) if self.parents[number] < 0]
        self.uncounted: dict[int, frozenset[int]] = {}
        self.summed: dict[int, frozenset[int]] = {}
        self._sum_up_gpus()
        self.by_priority = frozenset(
            child
            for number, children in enumerate(self.children)
            if self.queues[number].pooled and all(self.queues[one].only_named for one in children)
            for child in children
        )

    def __len__(self) -> int:
        return len(self.queues)

    def demand(self, amounts: Amounts, number: int = -1) -> Demand:
        """Return what work asks for that requests `amounts` in all.

        Args:
            number: the queue that counts it; -1 for all that any queue counts.
        """
        by_name = counted(amounts)
        uncounted = self.not_counted_by(number)
        names = frozenset(name for name, amount in amounts.items() if amount and name != PODS)
        shared = by_name.pop(SHARED_GPU, 0)
        if shared:
            names = names - {SHARED_GPU} | {WHOLE_GPU}
        if self._parts:
            by_name = {name: amount * WHOLE if is_gpu(name) else amount for name, amount in by_name.items()}
            by_name |= {name: by_name.get(name, 0) + shared for name in SHARED_IN} if shared else {}
        return Demand(
            tuple(
                0 if place in uncounted else by_name.get(resource, 0) for place, resource in enumerate(self.resources)
            ),
            names,
        )

    def whole(self, place: int, amount: int) -> int:
        """Return an amount of a resource, by its place, in the resource's own unit, rounded up."""
        return amount if amount >= UNLIMITED else -(-amount // self.units[place])

    def in_thousandths(self, place: int, amount: int) -> int:
        """Return an amount of a resource, by its place: of GPUs in thousandths, else in the resource's own unit."""
        if amount >= UNLIMITED or not is_gpu(self.resources[place]):
            return amount
        return amount * WHOLE // self.units[place]

    def not_counted_by(self, number: int) -> AbstractSet[int]:
        """Return the places of `uncounted` for a queue."""
        return self.uncounted.get(self.paths[number][-1], _NO_PLACES) if self.uncounted and number >= 0 else _NO_PLACES

    def summed_by(self, number: int) -> AbstractSet[int]:
        """Return the places of `summed` for a queue."""
        return self.summed.get(self.paths[number][-1], _NO_PLACES) if self.summed else _NO_PLACES

    def find(self, name: str, *, namespace: str = "") -> int | None:
        """Return the number of the queue that work belongs to, whatever may be wrong with it; None for none."""
        queue = self._lookup(name, namespace)
        return None if queue is None else self._number.get(queue.alias_of or queue.name)

    def name_for(self, name: str, namespace: str) -> str:
        """Return the name of the queue that work names, or that it is given; empty where there is none."""
        queue = None if name else self._lookup("", namespace)
        return name if queue is None else queue.alias_of or queue.name

    def resolve(self, name: str, *, namespace: str = "", admitted: bool = False) -> int | Reason:
        """Return the number of the queue that work may start in, or why it may not.

        Args:
            name: of a queue; empty for work that names none.
            admitted: it has the mark of an admission by Kueue, which has then asked all that is asked here.
        """
        named = self._lookup(name, namespace)
        if named is None:
            for wanted in (name,) if name else DEFAULT_NAMES:
                if wanted in self.problems:
                    return queue_reasons.QueueInvalid(queue=wanted, problem=self.problems[wanted])
            return queue_reasons.QueueDoesNotExist(queue=name)
        number = self._number.get(named.alias_of or named.name)
        if number is None:
            problem = self.problems.get(named.alias_of, f"queue {named.alias_of} does not exist")
            return queue_reasons.QueueInvalid(queue=named.name, problem=problem)
        if self.children[number]:
            return queue_reasons.QueueNotLeaf(queue=named.name)
        if admitted and self.queues[number].controlled:
            return number
        for queue in (named, *(self.queues[above] for above in self.paths[number])):
            if queue.stopped:
                return queue_reasons.QueueStopped(queue=queue.name)
            if queue.namespaces and namespace not in queue.namespaces:
                return queue_reasons.NamespaceNotSelected(queue=queue.name, namespace=namespace)
            if queue.unsupported:
                detail = ", ".join(queue.unsupported)
                return queue_reasons.QueueUnsupported(queue=queue.name, features=detail)
        return number

    def uncovered(self, number: int, demand: Demand) -> Reason | None:
        """Return why a queue is not for work that asks for what it does not name; None when it names all of it."""
        for above in self.paths[number]:
            queue = self.queues[above]
            if not queue.only_named:
                continue
            missing = sorted(demand.resources - set(queue.shares))
            if missing:
                return queue_reasons.ResourceNotCovered(queue=queue.name, resource=missing[0])
        return None

    def rules_of(self, number: int) -> tuple[PreemptionRule, ...]:
        """Return the rules of preemption for a queue's work; none where what it names does not exist."""
        return self._rules.get(self.queues[number].rules_in, ())

    def diverging(self, one: int, other: int) -> tuple[int, int] | None:
        """Return the topmost ancestors of two queues (or themselves) that differ; None when one is above the other."""
        for mine, theirs in zip(reversed(self.paths[one]), reversed(self.paths[other]), strict=False):
            if mine != theirs:
                return mine, theirs
        return None

    def preempt_min_runtime_us(self, number: int, *, default: int) -> int:
        """Return how long a queue's groups run at least before others of the same queue may have them evicted."""
        times = (self.queues[above].preempt_min_runtime_us for above in self.paths[number])
        return next((time for time in times if time is not None), default)

    def reclaim_min_runtime_us(self, victim: int, reclaimer: int, *, default: int) -> int:
        """Return how long a queue's groups run at least before another queue's may have them evicted.

        What counts is what the victim's side says where the two sides part, or above (KAI's `lca` resolution): queues
        far from each other owe each other what their departments agreed on.
        """
        parting = self.diverging(reclaimer, victim)
        start = victim if parting is None else parting[1]
        times = (self.queues[above].reclaim_min_runtime_us for above in self.paths[start])
        return next((time for time in times if time is not None), default)

    def _lookup(self, name: str, namespace: str) -> Queue | None:
        if not self.configured:
            return self.queues[0]
        for candidate in (name,) if name else (f"{namespace}/{DEFAULT_QUEUE}", *DEFAULT_NAMES):
            if candidate in self._number:
                return self.queues[self._number[candidate]]
            if candidate in self._aliases:
                return self._aliases[candidate]
        return None

    def _arrange(self, real: Mapping[str, Queue]) -> None:
        below: dict[str, list[str]] = {}
        for name in sorted(real):
            below.setdefault(real[name].parent, []).append(name)
        level = [(name, -1) for name in below.get("", ())]
        while level:
            beneath = []
            for name, parent in level:
                number = self._number[name] = len(self.queues)
                self.queues.append(real[name])
                self.parents.append(parent)
                self.children.append([])
                self.paths.append((number, *(self.paths[parent] if parent >= 0 else ())))
                if parent >= 0:
                    self.children[parent].append(number)
                beneath += [(child, number) for child in below.get(name, ())]
            level = beneath

    def _find_problems(self, real: Mapping[str, Queue]) -> None:
        for name in real:
            if name in self._number:
                continue
            above, seen = name, {name}
            while True:
                parent = real[above].parent
                if parent not in real:
                    self.problems[name] = f"queue {above} names the parent {parent}, which does not exist"
                    break
                if parent in seen:
                    self.problems[name] = f"queue {parent} is its own ancestor"
                    break
                seen.add(parent)
                above = parent

    def _set_bounds(self, number: int) -> None:
        queue, children = self.queues[number], self.children[number]
        for place, resource in enumerate(self.resources):
            share = _in_units(queue.shares.get(resource, _NO_SHARE), self.units[place])
            quota = UNLIMITED if share.quota is None else share.quota
            if queue.pooled:
                quota = min(UNLIMITED, quota + sum(self.quotas[child][place] for child in children))
            borrowing = share.borrowing
            if queue.pooled and not queue.parent:
                # There is no queue to borrow from.
                borrowing = 0
            limit = UNLIMITED if share.limit is None else share.limit
            if borrowing is not None and (not queue.pooled or self._pools(number, resource)):
                limit = min(limit, quota + borrowing)
            self.quotas[number][place], self.limits[number][place] = quota, limit
            self.kept[number][place] = 0 if share.lendable is None else max(0, quota - share.lendable)
            self.weights[number][place] = share.weight

    def _sum_up_gpus(self) -> None:
        """Find out which hierarchies count GPUs by kinds while others count all of them together."""
        kinds = {place: units for place, name in enumerate(self.resources) if (units := gpus_per_unit(name))}
        if not kinds or GPU not in self.resources:
            return
        total = self.resources.index(GPU)
        for root in self.roots:
            below = [number for number, path in enumerate(self.paths) if path[-1] == root]
            named = {name for number in below for name in self.queues[number].shares}
            own = {place: units for place, units in kinds.items() if self.resources[place] in named}
            self.uncounted[root] = frozenset(kinds.keys() - own.keys())
            if not own or GPU in named:
                continue
            self.summed[root] = frozenset({total})
            for number in below:
                for table in (self.quotas, self.limits, self.kept):
                    summed = sum(table[number][place] * units for place, units in own.items())
                    table[number][total] = min(UNLIMITED, summed)
                self.weights[number][total] = max(self.weights[number][place] for place in own)

    def _pools(self, number: int, resource: str) -> bool:
        """True if a queue or any below it names a resource."""
        return resource in self.queues[number].shares or any(
            self._pools(child, resource) for child in self.children[number]
        )


def is_gpu(resource: str) -> bool:
    """Tell whether a resource, as queues name it, is GPUs: a kind of them, or all kinds together."""
    return resource == GPU or gpus_per_unit(resource) > 0


def _in_units(share: QueueShare, unit: int) -> QueueShare:
    """Return a queue's share of a resource in smaller units: as it is, or in thousandths of GPUs."""
    if unit == 1:
        return share
    bounds = {name: getattr(share, name) for name in ("quota", "limit", "borrowing", "lendable")}
    beyond = {"quota": share.quota_milli, "limit": share.limit_milli}
    changed = {
        name: min(bound * unit + beyond.get(name, 0), UNLIMITED) for name, bound in bounds.items() if bound is not None
    }
    return msgspec.structs.replace(share, **changed)
