"""The waiting groups by the replica that decides about them, kept between cycles.

The owner of a group depends on the group, its pods, and the groups that it starts together with. It also depends on the
list of replicas, the queues, and the node pool: the *basis*. While the basis is unchanged, only changed groups are
evaluated again.
"""

from collections.abc import Callable, Mapping

from kaicore.rules.queues.tree import QueueTree
from kaicore.rules.state.workload_index import WorkloadIndex


class GroupOwners:
    """Waiting groups by owner, as of the last `update`."""

    def __init__(self) -> None:
        self._tree: QueueTree | None = None
        self._basis: object = None
        self._owners: dict[str, str] = {}
        self._groups: dict[str, set[str]] = {}

    @property
    def owners(self) -> Mapping[str, str]:
        """Who decides about a waiting group, by its key; those of no replica of the shard are missing."""
        return self._owners

    @property
    def groups(self) -> Mapping[str, set[str]]:
        """Keys of waiting groups, by the replica that decides about them; replicas without any are missing."""
        return self._groups

    def update(
        self, index: WorkloadIndex, tree: QueueTree, basis: object, owner_of: Callable[[str], str | None]
    ) -> None:
        """Bring it up to date.

        Args:
            index: of the groups.
            tree: the queues, another one whenever they have changed.
            basis: what else owners depend on, for all groups alike.
            owner_of: tells who decides about a waiting group, by its key; None for no replica.
        """
        changed = index.take_changed()
        if changed is None or tree is not self._tree or basis != self._basis:
            self._tree, self._basis = tree, basis
            # Those of another basis may be in use.
            self._owners, self._groups = {}, {}
            changed = set(index.pending)
        for key in changed:
            before = self._owners.pop(key, None)
            owner = owner_of(key) if key in index.pending else None
            if owner is not None:
                self._owners[key] = owner
            if owner == before:
                continue
            if before is not None:
                self._groups[before].discard(key)
                if not self._groups[before]:
                    del self._groups[before]
            if owner is not None:
                self._groups.setdefault(owner, set()).add(key)
