"""Past runs of pods: their lengths, their GPU time, and the recent ones with devices, weighed by pod-hours.

They are folded from the log always, so that cycles and policies (`kaicore.policy.Policy.history`) may look at them and
a replay has the same. Unlike the histories of forecasts (`kaicore.rules.deciding.forecast.runs`) they are few, for they
are part of each state. GPUs count in thousandths of one, so that shares add up.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from kaicore.rules.engine.config import DAY_US, MOST_RECENT_DAYS
from kaicore.rules.engine.placement.pod_class import PodClass, node_requests
from kaicore.rules.engine.placement.room_for_work import RecentClass
from kaicore.rules.groups.labels import queue_of
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.pod import Pod
from kaicore.rules.queues.division import HOUR_US, RETENTION_HOURS, USAGE_SCALE, FairShareConfig
from kaicore.rules.queues.usage import UsageReader, UseHistory
from kaicore.rules.state.pods.pod_entry import Remembered

#: A part of a name that a controller made: of Kubernetes' alphabet without vowels, of five, or eight to ten characters.
_GENERATED = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}|[bcdfghjklmnpqrstvwxz2456789]{8,10}")
_NUMBERED = re.compile(r"([a-z]*)\d+")


class Basis(StrEnum):
    """The nearness between a pod and the runs that predict its run time.

    Attributes:
        OWNER: of owners of the same kind and pattern of name, in its namespace.
        CLASS: of pods that request the same, in its queue.
        QUEUE: of its queue.
        CLUSTER: of any pod.
    """

    OWNER = "owner"
    CLASS = "class"
    QUEUE = "queue"
    CLUSTER = "cluster"


#: Requests as text, of pods without any of their own, by their containers.
_REQUESTS: Remembered[str] = Remembered()

#: What runs are alike in, by basis.
RunKeys = Mapping[Basis, str]

#: So many runs of a kind must have ended, and lasted longer than the pod has, for that kind to tell how it goes on.
LEAST_RUNS = {Basis.OWNER: 5, Basis.CLASS: 10, Basis.QUEUE: 20, Basis.CLUSTER: 20}


def run_keys(pod: Pod) -> RunKeys:
    """Return what a pod's run has in common with others, by basis."""
    queue = queue_of(pod) or pod.namespace
    return {
        Basis.OWNER: work_of(pod),
        Basis.CLASS: f"{queue}/{_requests(pod)}",
        Basis.QUEUE: queue,
        Basis.CLUSTER: "",
    }


def _requests(pod: Pod) -> str:
    parts = () if pod.overhead or pod.pod_resources else (pod.containers,)
    text = _REQUESTS.get((), parts) if parts else None
    if text is None:
        text = ",".join(f"{resource}={amount}" for resource, amount in sorted(node_requests(pod).items()))
        return _REQUESTS.put((), parts, text) if parts else text
    return text


def work_of(pod: Pod) -> str:
    """Return the work that a pod does: the kind, namespace and pattern of the name of its owner, or else its own."""
    owner = pod.owner
    kind, name = ("Pod", pod.name) if owner is None else (owner.kind, owner.name)
    return f"{kind}/{pod.namespace}/{name_pattern(name)}"


@lru_cache(maxsize=4096)
def name_pattern(name: str) -> str:
    """Return a name with `#` for what changes from one run to the next: numbers, and what controllers append."""
    parts = name.split("-")
    pattern = [f"{match[1]}#" if (match := _NUMBERED.fullmatch(part)) else part for part in parts]
    for place in range(1, len(parts)):
        if _GENERATED.fullmatch(parts[place]) and not parts[place].isalpha():
            pattern[place] = "#"
    if len(parts) > 1 and _GENERATED.fullmatch(parts[-1]):
        pattern[-1] = "#"
    return "-".join(pattern)


#: So many of the last runs are kept of each kind, and so many kinds: those of which a run ended last.
_MOST_RUNS, _MOST_KINDS = 64, 512
#: Pods of one owner that end within so long of each other are one run, microseconds.
_TOGETHER_US = 60_000_000


class RunsOfKind(msgspec.Struct):
    """The last runs of a kind.

    Attributes:
        kind: by basis and key.
        lengths_us: microseconds, the oldest run first.
        ended_at: when the last run ended, microseconds since the epoch.
    """

    kind: str
    lengths_us: list[int]
    owner: str
    ended_at: int


class RunTimes:
    """The lengths of runs by kind; no more than 512 kinds."""

    def __init__(self, kept: Iterable[RunsOfKind] = ()) -> None:
        """Args: kept: what a snapshot has."""
        #: The kind of which a run ended last comes last.
        self._kinds = {one.kind: one for one in kept}

    def ended(self, keys: RunKeys, owner: str, *, ran_us: int, at_us: int) -> None:
        """Take in that a pod came to its own end.

        Args:
            keys: what its run has in common with others.
            ran_us: how long it ran, microseconds.
            at_us: when it ended, microseconds since the epoch.
        """
        for basis, key in keys.items():
            kind = f"{basis}/{key}"
            one = self._kinds.pop(kind, None) or RunsOfKind(kind, [], "", 0)
            self._kinds[kind] = one
            if one.owner == owner and at_us - one.ended_at <= _TOGETHER_US:
                continue
            one.owner, one.ended_at = owner, at_us
            one.lengths_us.append(ran_us)
            del one.lengths_us[:-_MOST_RUNS]
        while len(self._kinds) > _MOST_KINDS:
            del self._kinds[next(iter(self._kinds))]

    def remaining_us(self, keys: RunKeys, *, age_us: int, per_cent: int) -> int:
        """Return how much longer a pod runs, by the closest runs of which enough got older than it is.

        Args:
            keys: what its run has in common with others.
            age_us: how long it has run, microseconds.
            per_cent: of the runs that got so old, so many had ended by then.

        Returns:
            microseconds, at least 1; -1 where too few runs got so old.
        """
        for basis, least in LEAST_RUNS.items():
            one = self._kinds.get(f"{basis}/{keys[basis]}")
            if one is None:
                continue
            lengths = sorted(one.lengths_us)
            older = lengths[bisect_right(lengths, age_us) :]
            if len(older) >= least:
                return max(older[-(-len(older) * per_cent // 100) - 1] - age_us, 1)
        return -1

    def record(self) -> list[RunsOfKind]:
        """Return all, for snapshots."""
        return list(self._kinds.values())


#: Groups of which the total is kept: those of which a pod ended last.
_MOST_GROUPS = 4096
#: What a snapshot holds has 64 bits.
_MOST = 1 << 62


class NamespaceUse(msgspec.Struct):
    """The GPU time of a namespace as plain data; `hours` in order."""

    namespace: str
    gpus: int
    settled_ms: int
    hours: list[tuple[int, int]]

    def history(self) -> UseHistory:
        """Return it as histories are kept."""
        rate, hours = {GPU: self.gpus} if self.gpus else {}, {GPU: dict(self.hours)} if self.hours else {}
        return UseHistory(rate, self.settled_ms, hours)


class GroupUse(msgspec.Struct):
    """The GPU time of a group's pods that have ended, in thousandths of GPUs times milliseconds."""

    key: str
    total: int


class GpuUseRecord(msgspec.Struct):
    """All of it, for snapshots."""

    namespaces: list[NamespaceUse] = []
    groups: list[GroupUse] = []
    forgotten_at: int = 0


class GpuUse:
    """The GPU time of namespaces and groups."""

    def __init__(self, record: GpuUseRecord | None = None) -> None:
        """Args: record: what a snapshot has."""
        record = record or GpuUseRecord()
        self._namespaces = {one.namespace: one.history() for one in record.namespaces}
        #: The group of which a pod ended last comes last.
        self._groups = {one.key: one.total for one in record.groups}
        self._forgotten_at = record.forgotten_at
        #: Changes of the same time that wait, by namespace, as in `QueueRegistry`.
        self._changes: dict[str, int] = {}
        self._changed_at = 0
        self._reader: UsageReader[str] = UsageReader()

    def change(self, namespace: str, gpus: int, *, at_us: int) -> None:
        """Take in that pods of a namespace hold more GPUs from now on, or fewer.

        Args:
            gpus: thousandths; negative for fewer.
            at_us: recorded time, microseconds since the epoch.
        """
        if at_us != self._changed_at:
            self._settle()
            self._changed_at = at_us
        self._changes[namespace] = self._changes.get(namespace, 0) + gpus

    def _settle(self) -> None:
        """Bring histories up to date with the changes that wait."""
        if not self._changes:
            return
        changes, self._changes = self._changes, {}
        hour = self._changed_at // HOUR_US
        if hour != self._forgotten_at:
            self._forgotten_at = hour
            for name in [one for one, use in self._namespaces.items() if use.forget(hour - RETENTION_HOURS)]:
                del self._namespaces[name]
        for namespace, gpus in changes.items():
            history = self._namespaces.get(namespace)
            if history is None:
                history = self._namespaces[namespace] = UseHistory(settled_ms=self._changed_at // 1000)
            history.change({GPU: gpus}, sign=1, at_us=self._changed_at)

    def ended(self, key: str, gpus: int, *, ran_us: int) -> None:
        """Take in that a pod of a group has ended, or was evicted.

        Args:
            key: of the group, or of what owns a pod that is a group of its own.
            gpus: that the pod held, in thousandths.
        """
        total = self._groups.pop(key, 0) + gpus * (max(ran_us, 0) // 1000)
        self._groups[key] = min(total, _MOST)
        while len(self._groups) > _MOST_GROUPS:
            del self._groups[next(iter(self._groups))]

    def seconds_of(self, key: str) -> int:
        """Return the GPU-seconds of a group's pods that have ended."""
        return self._groups.get(key, 0) // 1_000_000

    def of_namespaces(
        self, config: FairShareConfig, *, gpus: int, since_us: int, recorded_us: int, now_us: int
    ) -> Mapping[str, int]:
        """Return the past use of each namespace, in millionths of the cluster's GPUs.

        Args:
            config: which hours count, and how much.
            gpus: that the cluster has, in thousandths.
            since_us, recorded_us, now_us: see `UsageReader.parts`.
        """
        self._settle()
        parts = self._reader.parts(
            self._namespaces,
            config,
            totals={GPU: gpus},
            since_us=since_us,
            recorded_us=recorded_us,
            now_us=now_us,
        )
        return {name: used.get(GPU, 0) * 1_000_000 // USAGE_SCALE for name, used in parts.items()}

    def record(self) -> GpuUseRecord:
        """Return all, for snapshots."""
        self._settle()
        return GpuUseRecord(
            [
                NamespaceUse(name, use.rate.get(GPU, 0), use.settled_ms, sorted(use.hours.get(GPU, {}).items()))
                for name, use in sorted(self._namespaces.items())
            ],
            list(map(GroupUse, self._groups, self._groups.values())),
            self._forgotten_at,
        )


_encoder = msgspec.msgpack.Encoder(order="deterministic")

#: A pod counts for so long when it is first seen, seconds.
_AT_FIRST = 3600
#: More classes are not kept; then the lightest are forgotten, down to the second number.
_MOST_KEPT, _KEPT = 256, 192
#: More classes do not count in a cycle.
_MOST_COUNTED = 64
#: And so many of them because no other class is for their nodes.
_MOST_FIRST = 32
#: Of fewer pods no mix is made.
LEAST_PODS = 128


class SeenDay(NamedTuple):
    """The work that the log saw on a day.

    Attributes:
        day: days since the epoch.
        seconds: pod-seconds.
    """

    day: int
    pods: int
    seconds: int


class SeenWork(msgspec.Struct):
    """The work that the log saw of a class.

    Attributes:
        pod_class: the class, without what its claims ask for.
        claimed: how many devices the claims of a pod ask for.
        days: in order, each with how many pods came and their pod-seconds.
    """

    pod_class: PodClass
    claimed: int
    days: list[SeenDay]

    @property
    def devices(self) -> int:
        """The number of devices that a pod asks for."""
        return self.pod_class.size[0] + self.claimed


class RecentWork:
    """Work by class, of the last `MOST_RECENT_DAYS`; no more than 256 classes.

    A pod counts for an hour when the log first sees it, and for the rest of its run when it ends. So work that waits
    counts, and a class of long runs soon outweighs a class of short ones. A pod counts alike however many devices it
    has: by device-hours, room was kept for few large pods where many small ones came (decision 0060).
    """

    def __init__(self, seen: Iterable[SeenWork] = ()) -> None:
        """Args: seen: what a snapshot has."""
        self._seen = {_key(one.pod_class, one.claimed): one for one in seen}
        self._nodes_of: dict[str, bytes] = {}
        #: The last day of which anything was counted.
        self._day = 0

    def came(self, pod_class: PodClass, *, claimed: int, at_us: int) -> None:
        """Count a pod that is new, if it asks for devices (`at_us`: when, microseconds since the epoch)."""
        self._count(pod_class, claimed, at_us, pods=1, seconds=_AT_FIRST)

    def ended(self, pod_class: PodClass, *, claimed: int, ran_us: int, at_us: int) -> None:
        """Count the part of a run that did not count when the pod came.

        Args: see `came`; ran_us: how long it held its node, microseconds.
        """
        seconds = ran_us // 1_000_000 - _AT_FIRST
        if seconds > 0:
            self._count(pod_class, claimed, at_us, pods=0, seconds=seconds)

    def mix(self, *, days: int, now_us: int, shares: bool = False) -> tuple[RecentClass, ...]:
        """Return the heaviest classes of the last days, at most 64; none where fewer than `LEAST_PODS` pods came.

        The heaviest of those for the same nodes come first, and the counted ones of these have the weight of all: else
        nodes for which there are only light classes would seem to be wanted by none.

        Args:
            days: how many count, today included; 0 for none.
            now_us: microseconds since the epoch.
            shares: whether pods with a share of a GPU count.
        """
        since, pods = now_us // DAY_US - days, 0
        weights: dict[str, int] = {}
        for key, one in self._seen.items():
            if one.pod_class.gpu_share is not None and not shares:
                continue
            lately = [seen for seen in one.days if seen.day > since]
            pods += sum(seen.pods for seen in lately)
            weight = sum(seen.seconds for seen in lately)
            if weight:
                weights[key] = weight
        if pods < LEAST_PODS or not days:
            return ()
        of_nodes, counted_of = Counter[bytes](), Counter[bytes]()
        counted = self._by_nodes(weights)[:_MOST_COUNTED]
        for key, weight in weights.items():
            of_nodes[self._nodes(key)] += weight
        for key in counted:
            counted_of[self._nodes(key)] += weights[key]
        mix: list[RecentClass] = []
        for key in counted:
            nodes, one = self._nodes(key), self._seen[key]
            mix.append(RecentClass(one.pod_class, one.claimed, weights[key] * of_nodes[nodes] // counted_of[nodes]))
        return tuple(sorted(mix, key=lambda one: -one.weight))

    def record(self) -> list[SeenWork]:
        """Return all, for snapshots."""
        return [self._seen[key] for key in sorted(self._seen)]

    def _count(self, pod_class: PodClass, claimed: int, at_us: int, *, pods: int, seconds: int) -> None:
        key, day = _key(pod_class, claimed), at_us // DAY_US
        if day > self._day:
            self._day = day
            self._forget_until(day - MOST_RECENT_DAYS)
        one = self._seen.get(key)
        if one is None:
            one = SeenWork(pod_class, claimed, [])
            if not one.devices and pod_class.gpu_share is None:
                return
            self._seen[key] = one
        for at in range(len(one.days) - 1, -1, -1):
            before = one.days[at]
            if before.day == day:
                one.days[at] = SeenDay(day, before.pods + pods, before.seconds + seconds)
                break
        else:
            one.days = sorted([*one.days, SeenDay(day, pods, seconds)])
        if len(self._seen) > _MOST_KEPT:
            self._forget_lightest()

    def _forget_until(self, day: int) -> None:
        for key, one in list(self._seen.items()):
            one.days = [seen for seen in one.days if seen.day > day]
            if not one.days:
                del self._seen[key]
                self._nodes_of.pop(key, None)

    def _forget_lightest(self) -> None:
        weights = {key: sum(seen.seconds for seen in one.days) for key, one in self._seen.items()}
        for key in self._by_nodes(weights)[_KEPT:]:
            del self._seen[key], self._nodes_of[key]

    def _by_nodes(self, weights: Mapping[str, int]) -> list[str]:
        """Return classes, the heaviest first; before all others the heaviest of those that are for the same nodes."""
        ordered = sorted(weights, key=lambda key: (-weights[key], key))
        firsts: dict[bytes, str] = {}
        for key in ordered:
            firsts.setdefault(self._nodes(key), key)
        return list(dict.fromkeys([*list(firsts.values())[:_MOST_FIRST], *ordered]))

    def _nodes(self, key: str) -> bytes:
        """Return for which nodes a class is, by what it says of them."""
        nodes = self._nodes_of.get(key)
        if nodes is None:
            one = self._seen[key].pod_class
            nodes = self._nodes_of[key] = _encoder.encode((one.node_selector, one.node_affinity, one.tolerations))
        return nodes


def _key(pod_class: PodClass, claimed: int) -> str:
    return f"{pod_class.key}+{claimed}" if claimed else pod_class.key
