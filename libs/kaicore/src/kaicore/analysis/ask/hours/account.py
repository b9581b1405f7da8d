"""The account of what pods hold over time, folded from a log's events; exact to the microsecond, in integers.

Each moment of a node is held by pods, free, or out of service. What a node has is what it offers to pods, and at least
what pods hold there. So held, free and out of service are together what there is, at every moment.

- By right or borrowed: a queue's use within its own quota is by right, what is beyond is borrowed. At each moment the
  pods of a queue borrow in proportion to what they hold. Where no queue has a quota of a resource nothing is borrowed,
  and pods of schedulers that are not ours never borrow.
- Idle: held by a pod that has not been seen running yet.
- Evicted, failed: held for work that an eviction or a failure lost, since its last checkpoint or its start. It counts
  when it is lost, even if a part was held in the month before.
- Stranded: of what is free, see `kaicore.analysis.ask.projections.capacity`. It is looked for once a minute.
- Waits: of pods of our schedulers, until they were seen running first, each for itself. Those that wait at the end of a
  month, or of the range that is asked for, count with their wait so far.

Each hour is counted for itself, from the state at its beginning. So the sum over hours is the same for all who count.
Whole hours without an event are equal: the first of them in a month is counted, and multiplied.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kaicore.analysis.ask.projections.capacity import gpu_columns, gpus_of_node, gpus_of_pod, gpus_shut
from kaicore.analysis.life.pod_stories import PodStories, PodStory, StoryEnd
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload, names_in_logs
from kaicore.rules.events.envelope import Event
from kaicore.rules.groups.labels import user_of
from kaicore.rules.model.gpu_share import GPU_PRODUCT_LABEL
from kaicore.rules.model.quantity import CPU, MEMORY
from kaicore.rules.queues.tree import GPU as ALL_GPUS
from kaicore.rules.queues.tree import UNLIMITED, QueueTree, gpus_per_unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry

#: Of another one, sealed months are not compared: figures are made by other rules.
ACCOUNT_SCHEMA = 2

#: GPUs in thousandths, CPU in millicores, memory in bytes.
Triple = tuple[int, int, int]
_NONE: Triple = (0, 0, 0)
_ALL = range(3)

#: Labels of nodes that name the model of their GPUs.
_MODEL_LABELS = (GPU_PRODUCT_LABEL, "amd.com/gpu.product-name")

_MINUTE_US = 60_000_000
HOUR_US = 60 * _MINUTE_US
#: The borrowed part of a queue's use is counted in parts of two to the power of this.
_PARTS = 32


class HourOwner(NamedTuple):
    """A holder, as reports know it.

    Attributes:
        team: the topmost queue above the pod's own, or that itself.
        queue: that counts the pod; empty where none does.
        user: by the pod's label; empty without one.
        model: of the node's GPUs; empty where its labels do not tell, and for pods that wait.
        labels: values of the pod's labels that were asked for, in that order; empty without them.
    """

    team: str
    queue: str
    namespace: str
    user: str
    model: str
    labels: tuple[str, ...] = ()


@dataclass(slots=True)
class Held:
    """The amounts that an owner held in a period, by resource, times microseconds.

    Attributes:
        waits: of pods that started, microseconds each.
        waiting: of pods that wait at the end, until then.
    """

    held: list[int] = field(default_factory=lambda: [0, 0, 0])
    borrowed: list[int] = field(default_factory=lambda: [0, 0, 0])
    idle: list[int] = field(default_factory=lambda: [0, 0, 0])
    evicted: list[int] = field(default_factory=lambda: [0, 0, 0])
    failed: list[int] = field(default_factory=lambda: [0, 0, 0])
    waits: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    def add(self, other: "Held") -> None:
        """Add what is held in the time that follows."""
        for name in HELD:
            mine, more = getattr(self, name), getattr(other, name)
            _add(mine, more)
        self.waits += other.waits
        self.waiting += other.waiting


#: The sums of an owner, and of a model of GPUs.
HELD = ("held", "borrowed", "idle", "evicted", "failed")
CAPACITY = ("capacity", "held", "out")


@dataclass(slots=True)
class ModelCapacity:
    """The amounts that nodes with one model of GPUs had in a period, by resource, times microseconds.

    Attributes:
        capacity: all of it: held, out of service, or else free.
        stranded: of what was free, of GPUs only.
    """

    capacity: list[int] = field(default_factory=lambda: [0, 0, 0])
    held: list[int] = field(default_factory=lambda: [0, 0, 0])
    out: list[int] = field(default_factory=lambda: [0, 0, 0])
    stranded: int = 0


@dataclass(slots=True)
class Period:
    """The account of an hour, of hours without an event, of one month, or of the part of it that was asked for.

    Attributes:
        month: as `2026-11`, by UTC.
        begin, end: microseconds since the epoch.
        position: of the last event before the end.
        models: what there was, by model of GPU.
    """

    month: str
    begin: int
    end: int = 0
    position: int = 0
    owners: dict[HourOwner, Held] = field(default_factory=dict)
    models: dict[str, ModelCapacity] = field(default_factory=dict)

    def add(self, later: "Period") -> None:
        """Add the period that follows in the same month."""
        self.end, self.position = later.end, later.position
        for held in self.owners.values():
            held.waiting = []
        for owner, more in later.owners.items():
            self.owners.setdefault(owner, Held()).add(more)
        for model, counted in later.models.items():
            mine = self.models.setdefault(model, ModelCapacity())
            mine.stranded += counted.stranded
            for name in CAPACITY:
                _add(getattr(mine, name), getattr(counted, name))

    def multiply(self, hours: int) -> None:
        """Make of an hour without an event so many."""
        for held in self.owners.values():
            for name in HELD:
                _add(getattr(held, name), getattr(held, name), hours - 1)
        for counted in self.models.values():
            counted.stranded *= hours
            for name in CAPACITY:
                _add(getattr(counted, name), getattr(counted, name), hours - 1)


def _add(sums: list[int], amounts: Sequence[int], times: int = 1) -> None:
    for resource in _ALL:
        sums[resource] += amounts[resource] * times


def by_month(hours: Iterable[Period]) -> list[Period]:
    """Return the sums of hours in order, by month."""
    months: list[Period] = []
    for hour in hours:
        if not months or months[-1].month != hour.month:
            months.append(Period(hour.month, hour.begin))
        months[-1].add(hour)
    return months


def month_of(at: int) -> str:
    """Return the month of a time in microseconds since the epoch, as `2026-11`."""
    return f"{datetime.fromtimestamp(at // 1_000_000, UTC):%Y-%m}"


def month_bounds(month: str) -> tuple[int, int]:
    """Return where a month as `2026-11` begins and ends, microseconds since the epoch.

    Raises ValueError: it is no month.
    """
    begin = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    after = begin.replace(year=begin.year + begin.month // 12, month=begin.month % 12 + 1)
    return int(begin.timestamp()) * 1_000_000, int(after.timestamp()) * 1_000_000


@dataclass(slots=True)
class _Use:
    """The use of one queue; `lent` is, by resource, the integral over time of the part that is borrowed."""

    quota: list[int | None]
    allocated: list[int] = field(default_factory=lambda: [0, 0, 0])
    lent: list[int] = field(default_factory=lambda: [0, 0, 0])
    part: list[int] = field(default_factory=lambda: [0, 0, 0])
    since: int = 0

    def settle(self, now: int) -> None:
        if passed := now - self.since:
            self.since = now
            for resource in _ALL:
                if part := self.part[resource]:
                    self.lent[resource] += part * passed

    def change(self, amounts: Triple, sign: int, now: int) -> None:
        self.settle(now)
        _add(self.allocated, amounts, sign)
        self.bound()

    def bound(self) -> None:
        for resource, (allocated, quota) in enumerate(zip(self.allocated, self.quota, strict=True)):
            beyond = 0 if quota is None else allocated - quota
            self.part[resource] = (beyond << _PARTS) // allocated if beyond > 0 and allocated else 0


@dataclass(slots=True)
class _Holding:
    """A pod's amounts from `since` on."""

    owner: HourOwner
    row: Held
    node: str
    amounts: Triple
    idle: bool
    use: _Use | None
    since: int
    lent: Triple


@dataclass(slots=True)
class _Node:
    """A node: what it offers, what pods hold of it, and what of that counts in its model's sums."""

    model: str
    total: Triple = _NONE
    used: list[int] = field(default_factory=lambda: [0, 0, 0])
    gives: bool = False
    shut: int = 0
    capacity: Triple = _NONE
    held: Triple = _NONE
    out: Triple = _NONE


@dataclass(slots=True)
class _Sums(ModelCapacity):
    """The nodes of one model as they are now, and since when they are counted so."""

    since: int = 0


class Account:
    """Takes a cluster's events in order: `advance` before the state is folded, `take` after it."""

    def __init__(self, state: ClusterState, begin: int, *, labels: tuple[str, ...] = ()) -> None:
        """Args:
        state: at the beginning; the caller folds it on.
        begin: since when it counts, microseconds since the epoch; not before the state's last event.
        labels: of pods, by which owners are distinguished besides.
        """
        self.state = state
        self.periods: list[Period] = []
        self._labels = labels
        self._open(begin)

    def _open(self, begin: int) -> None:
        """Begin an hour, or the rest of one."""
        state = self.state
        self._period = Period(month_of(begin), begin)
        self._now = begin
        self._next_hour = begin - begin % HOUR_US + HOUR_US
        self._next_look = begin - begin % _MINUTE_US + _MINUTE_US
        self._changed = True
        self._quiet = True
        self._holdings: dict[str, _Holding] = {}
        self._nodes: dict[str, _Node] = {}
        self._sums: dict[str, _Sums] = {}
        self._uses: dict[str, _Use] = {}
        self._quarantined = len(state.quarantined)
        self._read_configs()
        self._tree, self._hierarchy = self._tree_now(), self._hierarchy_now()
        self._stories = PodStories(state)
        for story in self._stories.by_uid.values():
            # As if its life had been followed.
            story.running_at = state.pods[story.pod.uid].started_at
            if story.running_at and (written := story.pod.checkpoint_at * 1_000_000 - story.running_at) > 0:
                story.checkpoints_us = [written]
        for name in state.columns.rows:
            self._node_changed(name)
        for entry in state.pods.values():
            self._look(entry)
        self._look_for_stranded()

    def go_on(self, state: ClusterState) -> None:
        """Go on with another state, which is the same so far."""
        self.state = state
        self._stories.go_on(state)

    # Time.

    def advance(self, at: int) -> None:
        """Count up to a time, at which the next event was recorded, or the period that is asked for ends."""
        while self._now < at:
            until = min(at, self._next_hour)
            if until >= self._next_look:
                # The state is as it was at the last event, also when the minute ended.
                self._now, self._next_look = self._next_look, until - until % _MINUTE_US + _MINUTE_US
                self._look_for_stranded()
            self._now = until
            if until == self._next_hour:
                self._close(1 + self._equal_hours(at))
                self._open(self._now)

    def _equal_hours(self, at: int) -> int:
        """Return how many hours follow the one that ends now in its month, before a time, and are like it."""
        if not self._quiet or self._now - self._period.begin < HOUR_US:
            return 0
        return (min(at, month_bounds(self._period.month)[1]) - self._now) // HOUR_US

    def taken(self) -> list[Period]:
        """Return the hours that ended since the last call."""
        ended, self.periods = self.periods, []
        return ended

    def finish(self) -> list[Period]:
        """Return what `taken` does, and the hour that goes on as far as it was counted; this ends the account."""
        if self._now > self._period.begin:
            self._close()
        return self.taken()

    def _close(self, hours: int = 1) -> None:
        """End the period, which stands for so many equal hours."""
        for holding in self._holdings.values():
            self._settle(holding)
        for model in self._sums:
            self._count(model)
        if hours > 1:
            self._period.multiply(hours)
            self._now += (hours - 1) * HOUR_US
        for story in self._stories.by_uid.values():
            entry = self.state.pods.get(story.pod.uid)
            if entry is not None and entry.waiting and not story.running_at and self._is_ours(entry):
                self._row(self._owner(entry)).waiting.append(_wait(story, self._now))
        self._period.end, self._period.position = self._now, self.state.position
        self.periods.append(self._period)

    # Events.

    def take(self, event: Event) -> None:
        """Take in an event after it was folded."""
        self._quiet = False
        if len(self.state.configs) != self._configs:
            self._read_configs()
            self._queues_changed()
        if event.type in _POD_EVENTS:
            self._pod_event(decode_payload(event))
        elif event.type in _NODE_EVENTS:
            payload: Any = decode_payload(event)
            if not isinstance(payload, payloads.Undecodable):
                self._node_changed(payload.node.name if isinstance(payload, payloads.NodeObserved) else payload.name)
        elif event.type in _GROUP_EVENTS:
            self._group_event(decode_payload(event))
        elif event.type in _QUEUE_EVENTS:
            self._queues_changed()
        elif event.type in _GPU_EVENTS:
            self._nodes_changed()
        if len(self.state.quarantined) != self._quarantined:
            self._quarantined = len(self.state.quarantined)
            self._nodes_changed()

    def _pod_event(self, payload: Any) -> None:
        if isinstance(payload, payloads.Undecodable):
            return
        uid = payload.pod.uid if isinstance(payload, payloads.PodObserved) else payload.uid
        stories, entry = self._stories.by_uid, self.state.pods.get(uid)
        story = stories.get(uid)
        end, started = (StoryEnd.OPEN, 0) if story is None else (story.end, story.running_at)
        self._stories.take(payload, at=self._now)
        story = stories.get(uid)
        holding = self._holdings.get(uid)
        if story is not None:
            if story.end is not end and holding is not None:
                self._ended(story, holding)
            if story.running_at and not started and entry is not None and self._is_ours(entry):
                self._row(self._owner(entry)).waits.append(_wait(story, story.running_at))
        if entry is not None:
            self._look(entry)
        elif holding is not None:
            self._release(uid, holding)
        for name in {entry.node if entry is not None else "", holding.node if holding is not None else ""}:
            # Whether parts of shared GPUs are to be had may have changed as well.
            if name in self._nodes and (self.state.shared_gpus.groups or self._nodes[name].shut):
                self._node_changed(name)
        if isinstance(payload, payloads.PodDeleted):
            stories.pop(uid, None)

    def _ended(self, story: PodStory, holding: _Holding) -> None:
        if story.end is StoryEnd.EVICTED:
            lost = holding.row.evicted
        elif story.end is StoryEnd.FINISHED and not story.succeeded and not story.evicting:
            lost = holding.row.failed
        else:
            return
        _add(lost, holding.amounts, story.unsaved_us)

    def _group_event(self, payload: Any) -> None:
        """The queue of a group's pods may be another one."""
        if isinstance(payload, payloads.Undecodable):
            return
        one = payload.source if isinstance(payload, payloads.GroupSourceObserved) else payload
        key = f"{one.kind}/{one.namespace}/{one.name}"
        workload = self.state.workload_index.workloads.get(key)
        for uid in () if workload is None else list(workload.active):
            self._look(self.state.pods[uid])

    # What pods hold.

    def _look(self, entry: PodEntry) -> None:
        """Bring what a pod holds up to date."""
        uid, holding = entry.pod.uid, self._holdings.get(entry.pod.uid)
        if not entry.charged:
            if holding is not None:
                self._release(uid, holding)
            return
        requests = entry.requests
        amounts = (gpus_of_pod(self.state, entry), requests.get(CPU, 0), requests.get(MEMORY, 0))
        story = self._stories.by_uid.get(uid)
        idle, owner = story is None or not story.running_at, self._owner(entry)
        if holding is not None:
            if (holding.owner, holding.amounts, holding.node) == (owner, amounts, entry.node):
                if holding.idle is not idle:
                    self._settle(holding)
                    holding.idle = idle
                return
            self._release(uid, holding)
        use = self._use(owner.queue) if self._is_ours(entry) and owner.queue else None
        if use is not None:
            use.change(amounts, 1, self._now)
        lent = _NONE if use is None else (use.lent[0], use.lent[1], use.lent[2])
        self._holdings[uid] = _Holding(owner, self._row(owner), entry.node, amounts, idle, use, self._now, lent)
        self._hold(entry.node, amounts, 1)

    def _release(self, uid: str, holding: _Holding) -> None:
        self._settle(holding)
        if holding.use is not None:
            holding.use.change(holding.amounts, -1, self._now)
        del self._holdings[uid]
        self._hold(holding.node, holding.amounts, -1)

    def _settle(self, holding: _Holding) -> None:
        passed = self._now - holding.since
        if not passed:
            return
        holding.since = self._now
        row, use = holding.row, holding.use
        for resource, amount in enumerate(holding.amounts):
            row.held[resource] += amount * passed
            if holding.idle:
                row.idle[resource] += amount * passed
        if use is not None:
            use.settle(self._now)
            for resource, amount in enumerate(holding.amounts):
                if part := use.lent[resource] - holding.lent[resource]:
                    row.borrowed[resource] += amount * part >> _PARTS
            holding.lent = (use.lent[0], use.lent[1], use.lent[2])

    def _owner(self, entry: PodEntry) -> HourOwner:
        pod = entry.pod
        name, namespace = self.state.queue_of(entry)
        number = self._tree.find(name, namespace=namespace) if self._is_ours(entry) else None
        team = queue = ""
        if number is not None:
            queue, team = self._tree.queues[number].name, self._tree.queues[self._tree.paths[number][-1]].name
        node = self._nodes.get(entry.node)
        labels = tuple(pod.labels.get(name, "") for name in self._labels)
        return HourOwner(team, queue, pod.namespace, user_of(pod), "" if node is None else node.model, labels)

    def _row(self, owner: HourOwner) -> Held:
        rows = self._period.owners
        row = rows.get(owner)
        if row is None:
            row = rows[owner] = Held()
        return row

    def _is_ours(self, entry: PodEntry) -> bool:
        return entry.pod.scheduler_name in self._schedulers

    # Queues.

    def _read_configs(self) -> None:
        state = self.state
        self._configs = len(state.configs)
        every = [EngineConfig.recorded(document) for document in state.configs.values()] or [EngineConfig()]
        self._schedulers = frozenset(config.scheduler_name for config in every)
        # The queues of all shards.
        self._config = EngineConfig(gpu_sharing=any(config.gpu_sharing for config in every))

    def _tree_now(self) -> QueueTree:
        return self.state.queue_registry.tree_of(self._config)

    def _hierarchy_now(self) -> frozenset[tuple[str, str, str]]:
        return frozenset((queue.name, queue.parent, queue.alias_of) for queue in self.state.queues.values())

    def _queues_changed(self) -> None:
        before, self._hierarchy = self._hierarchy, self._hierarchy_now()
        self._tree = self._tree_now()
        for name, use in self._uses.items():
            use.settle(self._now)
            use.quota = self._quota(name)
            use.bound()
        if before != self._hierarchy:
            for uid in list(self._holdings):
                self._look(self.state.pods[uid])

    def _use(self, queue: str) -> _Use:
        if queue not in self._uses:
            self._uses[queue] = _Use(self._quota(queue), since=self._now)
        return self._uses[queue]

    def _quota(self, queue: str) -> list[int | None]:
        """Return the quota of a queue by resource; None for no bound."""
        tree, number = self._tree, self._tree.find(queue)
        if number is None:
            return [0, 0, 0]
        return [_quota(tree, number, name) for name in (ALL_GPUS, CPU, MEMORY)]

    # Nodes.

    def _nodes_changed(self) -> None:
        for name in list(self._nodes):
            self._node_changed(name)

    def _node_changed(self, name: str) -> None:
        """Bring a node up to date that was seen, is gone, or is not what it was for another reason."""
        columns = self.state.columns
        row = columns.rows.get(name)
        fact = None if row is None else columns.facts[row]
        known = self._nodes.get(name)
        if row is None or fact is None or not columns.present[row]:
            if known is not None:
                known.total, known.gives, known.shut = _NONE, False, 0
                self._node_counts(known)
            return
        model = next((fact.labels[label] for label in _MODEL_LABELS if label in fact.labels), "")
        if known is not None and known.model != model:
            self._node_leaves(known)
            known.model = model
            for uid, holding in list(self._holdings.items()):
                if holding.node == name:
                    self._look(self.state.pods[uid])
        node = known if known is not None else self._nodes.setdefault(name, _Node(model))
        amounts = [
            int(columns.allocatable[row, columns.resources[one]]) if one in columns.resources else 0
            for one in (CPU, MEMORY)
        ]
        node.total = (gpus_of_node(columns, row), amounts[0], amounts[1])
        node.gives = bool(columns.ready[row] and not columns.unschedulable[row]) and not columns.gpus.exposed_on(row)
        node.shut = gpus_shut(self.state, name)
        self._node_counts(node)

    def _hold(self, name: str, amounts: Triple, sign: int) -> None:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node("")
        _add(node.used, amounts, sign)
        self._node_counts(node)

    def _node_counts(self, node: _Node) -> None:
        self._node_leaves(node)
        sums = self._sums[node.model]
        used = (node.used[0], node.used[1], node.used[2])
        has = tuple(max(total, held) for total, held in zip(node.total, used, strict=True))
        free = [all_ - held for all_, held in zip(has, used, strict=True)]
        out = (min(node.shut, free[0]), 0, 0) if node.gives else (free[0], free[1], free[2])
        node.capacity, node.held, node.out = (has[0], has[1], has[2]), used, out
        _add(sums.capacity, has)
        _add(sums.held, used)
        _add(sums.out, out)

    def _node_leaves(self, node: _Node) -> None:
        self._changed = True
        if node.model not in self._sums:
            self._sums[node.model] = _Sums(since=self._now)
        self._count(node.model)
        sums = self._sums[node.model]
        for name in CAPACITY:
            _add(getattr(sums, name), getattr(node, name), -1)
        node.capacity = node.held = node.out = _NONE

    def _count(self, model: str) -> None:
        """Count what nodes of a model have had since they were counted last."""
        sums = self._sums[model]
        if not (passed := self._now - sums.since):
            return
        sums.since = self._now
        counted = self._period.models.setdefault(model, ModelCapacity())
        for name in CAPACITY:
            _add(getattr(counted, name), getattr(sums, name), passed)
        free = sums.capacity[0] - sums.held[0] - sums.out[0]
        counted.stranded += min(sums.stranded, free) * passed

    def _look_for_stranded(self) -> None:
        if not self._changed:
            return
        self._changed = False
        by_model = dict.fromkeys(self._sums, 0)
        columns = gpu_columns(self.state)
        for row in columns.stranded.nonzero()[0].tolist():
            by_model[self._nodes[self.state.columns.names[row]].model] += int(columns.stranded[row])
        for model, stranded in by_model.items():
            self._count(model)
            self._sums[model].stranded = stranded


def _wait(story: PodStory, until: int) -> int:
    return max(until - story.pod.created_at * 1_000_000, 0)


def _quota(tree: QueueTree, number: int, resource: str) -> int | None:
    """Return a queue's quota of a resource, of GPUs in thousandths; None where it has no bound, or nobody has one."""
    kinds = {resource: 1}
    if resource == ALL_GPUS and resource not in tree.resources:
        kinds = {name: gpus_per_unit(name) for name in tree.resources if gpus_per_unit(name)}
    places = [(place, kinds[name]) for place, name in enumerate(tree.resources) if name in kinds]
    quotas = [(tree.in_thousandths(place, tree.quotas[number][place]), units) for place, units in places]
    if not tree.configured or not quotas or any(quota >= UNLIMITED for quota, _ in quotas):
        return None
    return sum(quota * units for quota, units in quotas)


#: Types of the events by what they may change; under all names that logs have for them.
_POD_EVENTS = names_in_logs(
    kind.__name__
    for kind in (
        payloads.PodObserved,
        payloads.PodDeleted,
        payloads.PodPlaced,
        payloads.PodBound,
        payloads.BindFailed,
        payloads.PodRejected,
        payloads.EvictionDecided,
        payloads.RepairRequested,
        payloads.PodEvicted,
        payloads.EvictionFailed,
    )
)
_NODE_EVENTS = frozenset(kind.__name__ for kind in (payloads.NodeObserved, payloads.NodeDeleted))
_GROUP_EVENTS = frozenset(kind.__name__ for kind in (payloads.GroupSourceObserved, payloads.GroupSourceDeleted))
_QUEUE_EVENTS = frozenset(
    kind.__name__
    for kind in (payloads.QueueObserved, payloads.QueueDeleted, payloads.FlavorObserved, payloads.FlavorDeleted)
)
_GPU_EVENTS = frozenset(kind.__name__ for kind in (payloads.GpuOpened, payloads.GpuClosed))
