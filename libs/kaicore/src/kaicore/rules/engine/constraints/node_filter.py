"""A rule of a class of pods about nodes: the nodes that fail it, and the reason for those that fail it first.

A class has one list of filters. A node may take a pod if it fails none of them. If it fails some, the first is its
reason. So decisions and reported reasons cannot differ.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.events.reasons.base import NodeReason
from kaicore.rules.events.reasons.node import InsufficientResource, NodeTooSmall
from kaicore.rules.numa.columns import Flags, Ints

#: Up to this many rows are looked at one by one.
_FEW = 8

#: The fields of a reason besides `nodes` and `example`; by the example's row where nodes differ in them.
Detail = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]


class NodeFilter(Protocol):
    """One rule of one class."""

    def failing(self, rows: Ints) -> Flags:
        """Tell which of some rows fail the rule now; shape (rows,)."""

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield the reasons of rows that all fail the rule; their `nodes` add up to the rows."""


@dataclass(frozen=True, slots=True)
class MaskFilter:
    """A rule that is evaluated for all rows at once.

    Attributes:
        mask: per row, whether the node fails the rule.
        detail: what the reason says besides.
        groups: per row, which of `details` is the node's instead, the lowest first; None where there is one for all.
    """

    columns: NodeColumns
    code: type[NodeReason]
    mask: Flags
    detail: Detail = field(default_factory=dict)
    groups: Ints | None = None
    details: Sequence[Mapping[str, Any]] = ()

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        failing: Flags = self.mask[rows]
        return failing

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield one reason, or one for each detail."""
        if self.groups is None:
            yield node_reason(self.columns, self.code, rows, self.detail)
            return
        groups = self.groups[rows]
        for group in np.unique(groups).tolist():
            yield node_reason(self.columns, self.code, rows[groups == group], self.details[group])


class RoomFilter:
    """Nodes that have less of a resource than the class requests: free of what pods hold, or in all."""

    def __init__(self, columns: NodeColumns, requests: Mapping[str, int], *, in_all: bool = False) -> None:
        """Args:
        requests: of one pod of the class, in the resources' units.
        in_all: whether it is about what the nodes have in all, whatever pods hold of it.
        """
        self._columns = columns
        self._requests = {name: requests[name] for name in sorted(requests) if requests[name]}
        self._in_all = in_all
        #: By column, how much of its resource.
        self._needs = [(columns.resources[name], amount) for name, amount in self._requests.items()]

    def failing(self, rows: Ints) -> Flags:
        """See `NodeFilter.failing`."""
        if len(rows) <= _FEW:
            allocatable, used = self._columns.allocatable[rows].tolist(), self._columns.used[rows].tolist()
            return np.array(list(map(self.fails, allocatable, used)), np.bool_)
        failing = np.zeros(len(rows), np.bool_)
        # Resource by resource: many times faster than any() over rows of few resources.
        for column, amount in self._needs:
            failing |= self._available_of(rows, column) < amount
        return failing

    def fails(self, allocatable: Sequence[int], used: Sequence[int]) -> bool:
        """Tell whether a row fails the rule with these amounts by resource."""
        for column, amount in self._needs:
            if allocatable[column] - (0 if self._in_all else used[column]) < amount:
                return True
        return False

    def counts(self, rows: Ints) -> Ints:
        """Return how many pods each row has room for; shape (rows,)."""
        most: Ints = np.minimum.reduce([self._available_of(rows, column) // amount for column, amount in self._needs])
        return np.maximum(most, 0)

    def reasons(self, rows: Ints) -> Iterator[NodeReason]:
        """Yield one reason for each resource, in order of their names, of the nodes that are short of it first."""
        available = np.stack([self._available_of(rows, column) for column, _ in self._needs], axis=1)
        for place, (resource, amount) in enumerate(self._requests.items()):
            short = available[:, place] < amount
            if np.count_nonzero(short):
                yield self._reason(rows[short], available[short, place], resource)
                rows, available = rows[~short], available[~short]

    def _available_of(self, rows: Ints, column: int) -> Ints:
        """Return how much there is of the resource of one column; shape (rows,)."""
        available: Ints = self._columns.allocatable[rows, column]
        return available if self._in_all else available - self._columns.used[rows, column]

    def _reason(self, rows: Ints, available: Ints, resource: str) -> NodeReason:
        """Return the reason of rows that are short of a resource; the example has the most of it."""
        columns, requested, most = self._columns, self._requests[resource], int(available.max())
        example = first_by_name(columns, rows[available == most])
        name, most_left = columns.names[example], max(most, 0)
        if self._in_all:
            return NodeTooSmall(
                nodes=len(rows), example=name, resource=resource, requested=requested, allocatable=most_left
            )
        soon = most + int(columns.releasing[example, columns.resources[resource]]) >= requested
        return InsufficientResource(
            nodes=len(rows),
            example=name,
            resource=resource,
            requested=requested,
            free=most_left,
            releasing="enough with what is being released" if soon else "",
        )


def node_reason(columns: NodeColumns, code: type[NodeReason], rows: Ints, detail: Detail) -> NodeReason:
    """Return the reason of rows, the first of them by name being the example."""
    example = first_by_name(columns, rows)
    fields = detail(example) if callable(detail) else detail
    return code(nodes=len(rows), example=columns.names[example], **fields)


def first_by_name(columns: NodeColumns, rows: Ints) -> int:
    """Return the row of the node with the first name."""
    return int(rows[columns.name_order()[rows].argmin()])


def any_mask(filters: Iterable[MaskFilter], rows: int) -> Flags:
    """Tell per row whether the node fails any of some filters."""
    failing = np.zeros(rows, np.bool_)
    for one in filters:
        failing |= one.mask
    return failing
