"""The nodes as policies see them: columns of a cycle, made when they are asked for, which nothing can write to."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from kaicore.policy import Input, Ints, NodeFinding, Nodes, Policy, Texts
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
    """Some rows as the built-in policies see them, as they are charged now: the amounts, and what was found."""

    def __init__(self, columns: NodeColumns, rows: Ints, found: Mapping[str, Ints]) -> None:
        """Args:
        columns: as they are now.
        rows: of the nodes.
        found: findings by name; of the others, 0 was found.
        """
        self._columns, self._rows, self._found = columns, rows, found

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

    def found(self, finding: NodeFinding) -> Ints:
        """See `Nodes.found`."""
        vector = self._found.get(finding)
        return np.zeros(len(self._rows), np.int64) if vector is None else vector


#: So many parts of the nodes are kept for the next question about them.
_MOST_PARTS = 4096


class NodeFacts:
    """The nodes of one cycle's shard, or some of them, for all its policies.

    Attributes:
        rows: the rows of the nodes, in the order of the policies' vectors.
    """

    def __init__(
        self,
        columns: NodeColumns,
        rows: Ints,
        tenants: Mapping[str, Ints],
        inputs: Mapping[str, Mapping[str, Input]],
    ) -> None:
        """Args:
        columns: as the cycle begins.
        rows: of the nodes.
        tenants: by namespace, how many pods are charged to each row.
        inputs: by name, the facts from outside by the node's name.
        """
        self._columns, self._tenants, self._inputs = columns, tenants, inputs
        self.rows = rows
        names = columns.all_names
        self._names = names if len(self.rows) == len(names) else tuple(names[row] for row in self.rows.tolist())
        self._labels: dict[str, Texts] = {}
        self._made: dict[tuple[object, ...], Any] = {}
        self._allocatable = self._amounts(columns, columns.allocatable)
        #: By label, the number of its value by row, -1 for a row without a node; and by number, the rows.
        self._domains: dict[str, tuple[Ints, list[Ints]]] = {}
        self._parts: dict[tuple[str, int], NodeFacts] = {}

    def near(self, rows: Ints, label: str) -> "NodeFacts":
        """Return the nodes that have the same value of a label as some rows; with an empty label, these rows alone."""
        if label not in self._domains:
            self._domains[label] = self._by_domain(label)
        domain_of, rows_of = self._domains[label]
        numbers = sorted({*domain_of[rows].tolist()} - {-1})
        if len(numbers) != 1:
            near = [rows_of[number] for number in numbers]
            return self._part(np.concatenate(near) if near else np.zeros(0, np.int64))
        key = label, numbers[0]
        if key not in self._parts:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            self._parts[key] = self._part(rows_of[numbers[0]])
        return self._parts[key]

    def _part(self, rows: Ints) -> "NodeFacts":
        return self if len(rows) == len(self.rows) else NodeFacts(self._columns, rows, self._tenants, self._inputs)

    def _by_domain(self, label: str) -> tuple[Ints, list[Ints]]:
        domain_of = np.full(len(self._columns.present), -1, np.int64)
        texts = self._label(label) if label else np.arange(len(self.rows))
        _, numbers, counts = np.unique(texts, return_inverse=True, return_counts=True)
        domain_of[self.rows] = numbers
        by_domain = self.rows[np.argsort(numbers, kind="stable")]
        return domain_of, np.split(by_domain, np.cumsum(counts)[:-1]) if len(counts) else []

    def seen_by(
        self,
        policy: Policy,
        charged: NodeColumns,
        placed: Mapping[str, Mapping[int, int]],
        looked_at: set[str],
        found: Mapping[str, Ints],
    ) -> Nodes:
        """Return the nodes for a policy.

        Args:
            charged: with what is charged to the nodes: as the cycle begins, or now.
            placed: by namespace, how many pods the cycle has placed on rows.
            looked_at: takes up what the policy looks at that charges change.
            found: findings that the policy declares, by name.
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
            found={name: _fixed(vector) for name, vector in found.items()},
            made=self._made,
            numbered=self._numbered,
        )

    def _numbered(self, key: str) -> tuple[Texts, Ints]:
        """See `Nodes.domains`; the nodes keep the values of a label as numbers, from one cycle to the next."""
        codes, values = self._columns.label_values(key)
        # A label that is empty counts like none.
        texts = np.array([*values, ""], np.str_)
        distinct, place = np.unique(texts, return_inverse=True)
        of_nodes = place[codes[self.rows]]
        there = np.zeros(len(distinct), np.bool_)
        there[of_nodes] = True
        places: Ints = (np.cumsum(there) - 1)[of_nodes]
        return _fixed(distinct[there]), _fixed(places)

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

    def _pods(self, namespace: str, placed: Mapping[str, Mapping[int, int]]) -> Ints:
        before, counts = self._tenants.get(namespace), placed.get(namespace, {})
        total = np.zeros(len(self.rows), np.int64) if before is None else before[self.rows]
        if len(self.rows) <= len(counts):
            total += [counts.get(row, 0) for row in self.rows.tolist()]
        elif counts:
            given = np.zeros(len(self._columns.present), np.int64)
            given[list(counts)] = list(counts.values())
            total += given[self.rows]
        return _fixed(total)


def _fixed(vector: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return a copy in memory that nothing can make writeable."""
    return np.frombuffer(vector.tobytes(), vector.dtype)
