"""The nodes as policies see them: columns of a cycle, made when they are asked for, which nothing can write to."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kaicore.policy import Flags, Input, Ints, Nodes, Policy, Texts
from kaicore.rules.engine.placement.node_columns import NodeColumns

_Scalar = TypeVar("_Scalar", bound=np.generic)
_Vector = TypeVar("_Vector", Ints, Texts)


class _Lazy(Mapping[str, _Vector]):
    """Vectors by name, each made once; a set takes up the names that were asked for."""

    def __init__(
        self,
        names: Callable[[], Iterator[str]],
        make: Callable[[str], _Vector],
        looked_at: set[str] | None = None,
    ) -> None:
        self._looked_at = looked_at
        self._names: Callable[[], Iterator[str]] = names
        self._make: Callable[[str], _Vector] = make
        self._made: dict[str, _Vector] = {}

    def __getitem__(self, name: str) -> _Vector:
        if name not in self._made:
            if name not in self:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        if self._looked_at is not None:
            self._looked_at.add(str(name))
        return any(name == one for one in self._names())

    def __iter__(self) -> Iterator[str]:
        return self._names()

    def __len__(self) -> int:
        return sum(1 for _ in self._names())


class NodesOfRows(Nodes):
    """Some rows as the built-in policies see them, as they are charged now: the amounts only."""

    def __init__(self, columns: NodeColumns, rows: Ints) -> None:
        self._columns, self._rows = columns, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def resources(self) -> tuple[str, ...]:
        """See `Nodes.resources`; in no order."""
        return tuple(self._columns.resources)

    def allocatable(self, resource: str) -> Ints:
        """See `Nodes.allocatable`; of a resource that is known."""
        vector: Ints = self._columns.allocatable[self._rows, self._columns.resources[resource]]
        return vector

    def used(self, resource: str) -> Ints:
        """See `Nodes.used`; of a resource that is known."""
        vector: Ints = self._columns.used[self._rows, self._columns.resources[resource]]
        return vector

    def free(self, resource: str) -> Ints:
        """See `Nodes.free`; of a resource that is known."""
        return self.allocatable(resource) - self.used(resource)


class NodeFacts:
    """The nodes of one cycle's shard, for all its policies.

    Attributes:
        rows: the rows of the nodes, in the order of the policies' vectors.
    """

    def __init__(
        self,
        columns: NodeColumns,
        present: Flags,
        tenants: Mapping[str, Ints],
        inputs: Mapping[str, Mapping[str, Input]],
    ) -> None:
        """Args:
        columns: as the cycle begins.
        present: by row, whether it is a node of the shard.
        tenants: by namespace, how many pods are charged to each row.
        inputs: by name, the facts from outside by the node's name.
        """
        self._columns, self._tenants, self._inputs = columns, tenants, inputs
        self.rows: Ints = np.flatnonzero(present[: len(columns.names)])
        names = columns.names
        self._names = tuple(names) if len(self.rows) == len(names) else tuple(names[row] for row in self.rows.tolist())
        self._labels: dict[str, Texts] = {}
        self._made: dict[tuple[object, ...], Any] = {}
        self._allocatable = self._amounts(columns, columns.allocatable)

    def seen_by(self, policy: Policy, charged: NodeColumns, placed: Mapping[str, Ints], looked_at: set[str]) -> Nodes:
        """Return the nodes for a policy.

        Args:
            policy: the policy.
            charged: with what is charged to the nodes: as the cycle begins, or now.
            placed: by namespace, how many pods the cycle has placed on each row.
            looked_at: takes up what the policy looks at that charges change.
        """
        keys = policy.node_labels
        return Nodes(
            self._names,
            labels=_Lazy(lambda: iter(keys), self._label),
            allocatable=self._allocatable,
            used=self._amounts(charged, charged.used, looked_at),
            pods=_Lazy(lambda: iter({*self._tenants, *placed}), lambda name: self._pods(name, placed), looked_at)
            if policy.tenants
            else None,
            inputs={name: self._inputs.get(name, {}) for name in policy.inputs},
            made=self._made,
        )

    def _label(self, key: str) -> Texts:
        vector = self._labels.get(key)
        if vector is None:
            texts = self._columns.label_texts(key)
            whole = len(self.rows) == len(texts)
            vector = self._labels[key] = texts if whole else _fixed(texts[self.rows])
        return vector

    def _amounts(self, columns: NodeColumns, amounts: Ints, looked_at: set[str] | None = None) -> "_Lazy[Ints]":
        known = columns.resources
        return _Lazy(lambda: iter(known), lambda name: _fixed(amounts[self.rows, known[name]]), looked_at)

    def _pods(self, namespace: str, placed: Mapping[str, Ints]) -> Ints:
        total = np.zeros(len(self._columns.names), np.int64)
        for counts in (self._tenants.get(namespace), placed.get(namespace)):
            if counts is not None:
                total += counts[: len(total)]
        return _fixed(total[self.rows])


def _fixed(vector: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return a copy in memory that nothing can make writeable."""
    return np.frombuffer(vector.tobytes(), vector.dtype)
