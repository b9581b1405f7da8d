"""The groups that a replica of a shard decides about, by the state and the list of replicas in the log.

Each group has one owner among the replicas, by rendezvous hashing (`kaicore.rules.model.replicas`) of a key that it
shares with other groups. So groups that could break a rule together have the same owner:

1. Groups in queues with a limit, and groups that cannot be preempted in queues with a quota, are owned by the topmost
   queue above them that has either: its account, and those below it, are charged by one replica only.
2. Groups with pods under required rules about other pods (affinity, anti-affinity, spreading), and groups that are
   spread over domains among like work, are owned by namespace.
3. All others are owned by their own key; groups that start together, by the first of their keys.
"""

from collections.abc import Mapping, Set

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.class_filters import NO_CLAIM
from kaicore.rules.engine.work.workload import Workload
from kaicore.rules.model.group import Group
from kaicore.rules.model.replicas import owner, replica_shard, split_shard, turns
from kaicore.rules.numa.columns import Flags, Ints
from kaicore.rules.queues.tree import UNLIMITED, QueueTree
from kaicore.rules.state.views import CycleView

#: What one replica alone of a shard does for all.
_REPORTS = "reports"


class Share:
    """One scheduler's part of the decisions on one state; all of it without replicas."""

    def __init__(self, state: CycleView, shard: str, config: EngineConfig | None = None) -> None:
        """Args:
        state: as the cycle finds it; not to be changed while the share is used.
        shard: the name under which the scheduler records its cycles.
        config: the shard's settings: its node pool counts.
        """
        self._config = config or EngineConfig()
        self.shard, self.replica = split_shard(shard)
        #: The replicas as the log lists them.
        self.replicas = state.replicas.get(self.shard, ())
        #: Whether no other replica shares the groups.
        self.alone = not self.replica or self.replicas == (self.replica,)
        #: Whether every group is this scheduler's.
        self.whole = self.alone and self._config.node_pool is None
        self._state = state
        self._owners: dict[str, str | None] = {}
        self._bounds: dict[int, tuple[bool, str]] = {}
        self._waiting: Mapping[str, str] = {}
        self._by_owner: Mapping[str, Set[str]] = {}
        if not self.whole:
            config, tree = self._config, state.queue_registry.tree_of(self._config)
            basis = (() if self.alone else self.replicas, config.node_pool, config.node_pool_label)
            state.group_owners.update(state.workload_index, tree, basis, self._decides)
            self._waiting, self._by_owner = state.group_owners.owners, state.group_owners.groups

    def has(self, group: str) -> bool:
        """Tell whether a group, by its key, is this scheduler's to decide about."""
        return self.whole or self._owner(group) == self._me

    def pending(self) -> Set[str]:
        """Return the keys of the groups with waiting pods that are this scheduler's; not to be changed."""
        if self.whole:
            return self._state.workload_index.pending
        return self._by_owner.get(self._me, frozenset())

    @property
    def _me(self) -> str:
        return "" if self.alone else self.replica

    @property
    def reports(self) -> bool:
        """True if this scheduler reports how queues stand."""
        return self.alone or owner(_REPORTS, self.replicas) == self.replica

    def owner(self, group: str) -> str:
        """Return the replica that decides about a group; empty where the log lists none, and for groups of no pod."""
        return self._owner(group) or ""

    def _owner(self, key: str) -> str | None:
        owner_of_waiting = self._waiting.get(key)
        if owner_of_waiting is not None:
            return owner_of_waiting
        if key not in self._owners:
            self._owners[key] = self._decides(key)
        return self._owners[key]

    def _decides(self, key: str) -> str | None:
        """Return who decides about a group as it is now: empty for a scheduler alone, None for no replica here."""
        if not self._in_pool(key):
            return None
        return "" if self.alone else owner(self._shared(key), self.replicas)

    def turns(self) -> Ints | None:
        """Return by row how many other replicas come before this one on a node; None where it is the only one."""
        if self.alone:
            return None
        columns = self._state.columns
        by_row = np.zeros(len(columns.present), np.int64)
        by_row[: len(columns.names)] = turns(columns.names, self.replicas, self.replica)
        return by_row

    def left_to_others(self) -> Flags | None:
        """Return the rows where room became free that another replica, which comes before this one there, has not seen.

        That is: none of its recorded cycles knew of it, and it has groups to decide about. None where this replica is
        the only one.
        """
        if self.alone:
            return None
        state = self._state
        names = state.columns.names
        freed_at = np.array([state.freed_at.get(name, 0) for name in names], np.int64)
        left: Flags = np.zeros(len(state.columns.present), np.bool_)
        for other in self.replicas:
            if other != self.replica and other in self._by_owner:
                _, seen = state.last_cycles.get(replica_shard(self.shard, other), ("", 0))
                unseen = np.flatnonzero(freed_at > seen)
                if len(unseen):
                    unseen_names = [names[row] for row in unseen.tolist()]
                    left[unseen] |= turns(unseen_names, (other, self.replica), self.replica) > 0
        return left

    def wanted_by_others(self) -> Ints | None:
        """Return by row since when another replica, which comes before this one there, may be filling it right now.

        That is: it has pods of which no recorded cycle tells that it left them waiting, so it decides about them now or
        next. When the first of these was created, seconds since the epoch; `NO_CLAIM` where there is no such replica.
        None where there is none at any row.
        """
        if self.alone:
            return None
        names = self._state.columns.names
        wanted: Ints = np.full(len(self._state.columns.present), NO_CLAIM, np.int64)
        for other in self.replicas:
            groups = self._by_owner.get(other, ()) if other != self.replica else ()
            since = min(map(self._undecided_since, groups), default=NO_CLAIM)
            if since < NO_CLAIM:
                before = np.flatnonzero(turns(names, (other, self.replica), self.replica))
                wanted[before] = np.minimum(wanted[before], since)
        return wanted if (wanted < NO_CLAIM).any() else None

    def _undecided_since(self, key: str) -> int:
        """Return when the first pod of a waiting group was created of which no cycle has recorded that it left it."""
        state, scheduler = self._state, self._config.scheduler_name
        entries = (state.pods[uid] for uid in state.workload_index.workloads[key].waiting if uid in state.waiting)
        return min(
            (
                entry.pod.created_at
                for entry in entries
                if entry.reported is None and entry.pod.scheduler_name == scheduler
            ),
            default=NO_CLAIM,
        )

    def _in_pool(self, key: str) -> bool:
        """Tell whether a group's pods have the label of the shard's node pool; what has no pods has none."""
        if self._config.node_pool is None:
            return True
        workload = self._state.workload_index.workloads.get(key)
        members = () if workload is None else (*workload.waiting.values(), *workload.active.values())
        return self._config.in_pool(members[0].pod.labels if members else {})

    def _shared(self, key: str) -> str:
        workloads = self._state.workload_index.workloads
        keys = self._together(key)
        for one in keys:
            if one in workloads:
                account = self._account(workloads[one].group)
                if account:
                    return f"queue/{account}"
        for one in keys:
            if one in workloads and _regards_others(workloads[one]):
                return f"namespace/{workloads[one].group.namespace}"
        return f"group/{keys[0]}"

    def _together(self, key: str) -> list[str]:
        """Return the keys of the groups that start together with a group, itself included, sorted."""
        index = self._state.workload_index
        keys, left = {key}, [key]
        while left:
            new = index.beside(left.pop()) - keys
            keys |= new
            left += new
        return sorted(keys)

    def _account(self, group: Group) -> str:
        """Return the queue that decides which replica owns a group; empty where no bound is for it."""
        tree = self._state.queue_registry.tree_of(self._config)
        number = tree.find(group.queue, namespace="" if group.queue else group.namespace)
        if number is None:
            return ""
        bound = self._bounds.get(number)
        if bound is None:
            bound = self._bounds[number] = _bound(tree, number)
        limited, topmost = bound
        return topmost if limited or not group.preemptible else ""


def _bound(tree: QueueTree, number: int) -> tuple[bool, str]:
    """Return whether a queue or one above it has a limit, and the topmost of them that has that or a quota."""
    path = tree.paths[number]
    limited = [any(limit < UNLIMITED for limit in tree.limits[one]) for one in path]
    quota = [any(quota < UNLIMITED for quota in tree.quotas[one]) for one in path]
    bounded = [one for one, has_limit, has_quota in zip(path, limited, quota, strict=True) if has_limit or has_quota]
    return any(limited), tree.queues[bounded[-1]].name if bounded else ""


def _regards_others(workload: Workload) -> bool:
    """Tell whether where a group's pods may go depends on other groups of their namespace."""
    if any(one.topology is not None and one.topology.spread for one in workload.group.sets):
        return True
    for member in workload.waiting.values():
        rules = member.pod.rules
        if rules is not None and (rules.affinity or rules.anti_affinity or any(one.required for one in rules.spread)):
            return True
    return False
