"""Differences between two moments of a cluster: rows that are new, gone or changed, field by field."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kaicore.analysis.ask.answers import (
    KINDS,
    DiffAnswer,
    DiffQuestion,
    DiffSide,
    FieldChange,
    Row,
    RowChange,
    RowSelection,
)
from kaicore.analysis.ask.listing import list_rows
from kaicore.analysis.ask.topologies import topologies_of
from kaicore.analysis.ask.topology_answers import DomainAnswer, TopologyQuestion
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import InvalidObject
from kaicore.rules.state.views import ClusterView, FleetView
from kaicore.spelling import did_you_mean

#: Which filters make sense for a kind, beside none; the kind is left out where another one is given.
_FILTERS: dict[str, frozenset[str]] = {
    "nodes": frozenset({"node"}),
    "topology": frozenset(),
    "queues": frozenset({"queue"}),
    "groups": frozenset({"namespace", "queue"}),
    "pods": frozenset({"namespace", "node", "queue"}),
    "zones": frozenset({"node"}),
}

#: Fields of a row that another kind tells.
_TOLD_ELSEWHERE = {"nodes": {"zones"}}

_FlatRow = dict[str, str]


class ComparedState:
    """The rows of one state that a comparison looks at."""

    def __init__(self, state: ClusterView, wanted: DiffQuestion) -> None:
        """Take the rows that are wanted.

        Args:
            state: not looked at again.
            wanted: what is compared.

        Raises:
            InvalidObject: there is no such kind, or it has not what is filtered by.
        """
        self.cluster = state.cluster
        self.side = DiffSide(position=state.position, recorded_at=time_text(state.recorded_at))
        #: By kind and key: a name, and all fields as text.
        self.rows = {kind: dict(_rows(state, kind)) for kind in _kinds(wanted)}
        #: Keys by kind of those that the filters let through.
        self.let_through = {kind: _let_through(state, kind, wanted, rows) for kind, rows in self.rows.items()}


def compare(before: ComparedState, after: ComparedState) -> DiffAnswer:
    """Return what is different."""
    changes = [change for kind in before.rows for change in _compare(kind, before, after)]
    counts: dict[str, dict[str, int]] = {}
    for change in changes:
        of_kind = counts.setdefault(change.kind, {"added": 0, "removed": 0, "changed": 0})
        of_kind[change.change] += 1
    return DiffAnswer(cluster=before.cluster, before=before.side, after=after.side, counts=counts, changes=changes)


def _kinds(wanted: DiffQuestion) -> Sequence[str]:
    given = {name for name in ("namespace", "node", "queue") if getattr(wanted, name)}
    if not wanted.kind:
        return [kind for kind in KINDS if given <= _FILTERS[kind]]
    if wanted.kind not in KINDS:
        close = did_you_mean(wanted.kind, KINDS)
        raise InvalidObject("diff", "kind", wanted.kind, f"is none of {', '.join(KINDS)}{close}")
    if wrong := sorted(given - _FILTERS[wanted.kind]):
        raise InvalidObject("diff", wrong[0], getattr(wanted, wrong[0]), f"{wanted.kind} cannot be filtered by it")
    return [wanted.kind]


def _compare(kind: str, before: ComparedState, after: ComparedState) -> Iterator[RowChange]:
    old, new = before.rows[kind], after.rows[kind]
    # What a filter lets through at one of both moments: a pod that left a node did change.
    keys = before.let_through[kind] | after.let_through[kind]
    for key in sorted(keys):
        (name, was), (_, is_now) = old.get(key, ("", {})), new.get(key, ("", {}))
        if was == is_now:
            continue
        fields = [
            FieldChange(field=field, before=was.get(field, ""), after=is_now.get(field, ""))
            for field in dict.fromkeys((*was, *is_now))
            if was.get(field, "") != is_now.get(field, "")
        ]
        change = "added" if key not in old else "removed" if key not in new else "changed"
        yield RowChange(kind=kind, name=name or new[key][0], change=change, fields=fields)


def _rows(state: ClusterView, kind: str) -> Iterator[tuple[str, tuple[str, _FlatRow]]]:
    if kind == "topology":
        yield from _domains(state)
        return
    for row in list_rows(state, kind, RowSelection()):
        fields = {
            name: value for name, value in msgspec.to_builtins(row).items() if name not in _TOLD_ELSEWHERE.get(kind, ())
        }
        yield _key(row), (_name(row), dict(_flat(fields)))


def _let_through(
    state: ClusterView, kind: str, wanted: DiffQuestion, rows: Mapping[str, tuple[str, _FlatRow]]
) -> set[str]:
    if kind == "topology" or not (wanted.namespace or wanted.node or wanted.queue):
        return set(rows)
    name = wanted.queue if kind == "queues" else ""
    queue = "" if kind == "queues" else wanted.queue
    selection = RowSelection(name=name, namespace=wanted.namespace, node=wanted.node, queue=queue)
    return {_key(row) for row in list_rows(state, kind, selection)}


def _key(row: Row) -> str:
    """Return what a row is known by: of two pods of one name the later one is another pod."""
    uid = getattr(row, "uid", "")
    return f"{_name(row)} {uid}" if uid else _name(row)


def _name(row: Row) -> str:
    key = getattr(row, "key", "")
    namespace = getattr(row, "namespace", "")
    return key or (f"{namespace}/{row.name}" if namespace else row.name)  # type: ignore[union-attr]


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Write fields within fields as one path; items of lists go by their resource or name."""
    within = f"{path}." if path else ""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(item, f"{within}{name}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for item in value:
            key = next((field for field in ("resource", "group", "pod") if field in item), "")
            name = item[key] if key else "/".join(item[part] for part in ("namespace", "name") if part in item)
            rest = {field: part for field, part in item.items() if field not in (key, "namespace", "name")}
            yield from _flat(rest, f"{within}{name}")
    elif isinstance(value, list):
        yield path, ",".join(map(str, value))
    elif isinstance(value, bool):
        yield path, "yes" if value else "no"
    else:
        yield path, str(value)


def _domains(state: FleetView) -> Iterator[tuple[str, tuple[str, _FlatRow]]]:
    """Return the domains of all topologies: how many nodes each has, and not what they use, which nodes tell."""
    for topology in topologies_of(state, TopologyQuestion()).topologies:
        name = topology.name or topology.kind
        yield name, (name, {"nodes": str(topology.nodes), "problems": "; ".join(topology.problems)})
        stack = [(name, domain) for domain in topology.domains]
        while stack:
            above, domain = stack.pop()
            path = f"{above}/{domain.name}"
            yield path, (path, _domain(domain))
            stack += [(path, below) for below in domain.domains]


def _domain(domain: DomainAnswer) -> _FlatRow:
    return {
        "level": domain.level,
        "nodes": str(domain.nodes),
        "available": str(domain.available),
        "idle": str(domain.idle),
        **{f"allocatable.{item.resource}": item.allocatable for item in domain.resources},
    }
