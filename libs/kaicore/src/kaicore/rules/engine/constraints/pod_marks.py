"""Marks that placed pods leave on their nodes for the rules of others, counted per row.

A mark is a text: a selection that selects the pod, a term that it carries, a host port, a claim. `NodeColumns` has the
marks of all charged pods beside their amounts. A cycle works on a copy, where `charge` and its inverse keep the sums
over topology domains that its rules look at.
"""

from collections.abc import Hashable, Iterable
from copy import copy
from functools import lru_cache
from hashlib import sha256
from typing import TypeVar

import msgspec
import numpy as np

from kaicore.rules.model.pod import HostPort, PodRules
from kaicore.rules.model.selector import PodSelector, Selection
from kaicore.rules.numa.columns import Flags, Ints

#: Up to this many domains that changed are looked up one by one.
_FEW = 8

_Key = TypeVar("_Key", bound=Hashable)
_encoder = msgspec.msgpack.Encoder(order="deterministic")


class CarriedTerm(msgspec.Struct, frozen=True):
    """A term of a pod that decides about others as long as the pod is there.

    Attributes:
        weight: what it adds to the score of the pod's domain for one of the others; None: it keeps them out of it.
    """

    selection: str
    topology_key: str
    weight: int | None


#: What a required affinity term of a placed pod is worth to a pod that it selects (kube-scheduler's
#: `hardPodAffinityWeight`).
HARD_AFFINITY_WEIGHT = 1


@lru_cache(maxsize=65536)
def selection_mark(selection: Selection) -> str:
    """Return the mark of pods that a selection selects; equal selections have equal marks on every machine."""
    return "s:" + sha256(_encoder.encode(sorted(selection, key=_encoder.encode))).hexdigest()[:16]


@lru_cache(maxsize=65536)
def term_mark(term: CarriedTerm) -> str:
    """Return the mark of pods that carry a term."""
    return "t:" + sha256(_encoder.encode(term)).hexdigest()[:16]


def port_mark(port: HostPort) -> str:
    """Return the mark of pods that hold a host port."""
    return f"p:{port.protocol}/{port.port}/{port.ip}"


def claim_mark(key: str) -> str:
    """Return the mark of pods that use a claim, by `namespace/name`."""
    return f"c:{key}"


def settled_mark(key: str) -> str:
    """Return the mark of pods that were placed before this cycle and use a claim, by `namespace/name`.

    Room that is kept for a pod leaves none: it comes and goes within a cycle, and the claim's volume with it.
    """
    return f"v:{key}"


def kept_mark(mark: str) -> str:
    """Return the mark, besides a selection's, of pods for which room is kept: they are not there yet."""
    return f"k:{mark}"


def kept_marks(marks: Iterable[str]) -> tuple[str, ...]:
    """Return the marks of a pod for which room is kept, which has others when it is there."""
    marks = tuple(marks)
    return (*marks, *(kept_mark(mark) for mark in marks if mark.startswith("s:")))


def selections(rules: PodRules) -> tuple[Selection, ...]:
    """Return every selection that a pod's rules, and others' view of them, have to know about."""
    single: list[PodSelector] = [term.selector for term in (*rules.affinity, *rules.anti_affinity)]
    single += [preferred.term.selector for preferred in rules.preferred_pods]
    single += [constraint.selector for constraint in rules.spread]
    distinct: dict[Selection, None] = {(selector,): None for selector in single}
    if rules.affinity:
        distinct[tuple(term.selector for term in rules.affinity)] = None
    return tuple(distinct)


def carried_terms(rules: PodRules) -> tuple[CarriedTerm, ...]:
    """Return the terms that a placed pod turns on others: its anti-affinity, and its preferences both ways."""
    weighted = [
        *((term, None) for term in rules.anti_affinity),
        *((term, HARD_AFFINITY_WEIGHT) for term in rules.affinity),
        *((preferred.term, preferred.weight) for preferred in rules.preferred_pods),
    ]
    return tuple(CarriedTerm(selection_mark((term.selector,)), term.topology_key, weight) for term, weight in weighted)


def carried_marks(rules: PodRules) -> tuple[str, ...]:
    """Return the marks that a pod leaves whichever pod selects it, one for each of its terms and host ports."""
    return (*map(term_mark, carried_terms(rules)), *map(port_mark, rules.host_ports))


class DomainSums:
    """A mark's counts summed over the domains of a label, kept up to date by the marks that it was asked of.

    Attributes:
        codes: each row's domain; -1 for rows that are not counted.
    """

    __slots__ = ("_at_rows", "_changed", "_domains", "codes", "sums")

    def __init__(
        self, values: tuple[Ints, list[str]], counts: dict[int, int], *, counting: Flags | None = None
    ) -> None:
        """Args:
        values: each row's domain, -1 without, and the domains (`NodeColumns.label_values`).
        counting: rows that are counted; None for all.
        """
        self._domains, names = values
        self.codes: Ints = self._domains if counting is None else np.where(counting, self._domains, -1)
        self.sums: Ints = np.zeros(len(names), np.int64)
        self._at_rows: Ints | None = None
        self._changed: set[int] = set()
        for row, count in counts.items():
            self.add(row, count)

    def add(self, row: int, count: int) -> None:
        """Count at a row."""
        code = int(self.codes[row]) if row < len(self.codes) else -1
        if code >= 0:
            self.sums[code] += count
            self._changed.add(code)

    def at_rows(self) -> Ints:
        """Return the sum of each row's domain, 0 without a domain; not to be changed."""
        if self._at_rows is None or len(self._changed) > _FEW:
            self._at_rows = np.zeros(len(self._domains), np.int64)
            if len(self.sums):
                self._at_rows = np.where(self._domains >= 0, self.sums[self._domains], 0)
        else:
            for code in self._changed:
                self._at_rows[self._domains == code] = self.sums[code]
        self._changed.clear()
        return self._at_rows


class PodMarks:
    """Counts of marks per row, and the terms that the cluster's classes carry."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}
        #: Marks of which this copy may change the counts; None: all, for this is no copy.
        self._own: set[str] | None = None
        self._sums: dict[str, list[DomainSums]] = {}
        self._shared_sums: dict[tuple[str, str], DomainSums] = {}
        self._carried: dict[str, dict[CarriedTerm, int]] = {}
        #: Host ports of the cluster's classes, and how many classes ask for each.
        self._ports: dict[HostPort, int] = {}
        #: Changes so far.
        self.changes = 0

    def copy(self) -> "PodMarks":
        """Return marks that a cycle can change; counts are copied when they are changed first."""
        other = copy(self)
        other._counts = dict(self._counts)  # noqa: SLF001 - of the same class
        other._own = set()  # noqa: SLF001
        other._sums, other._shared_sums = {}, {}  # noqa: SLF001
        return other

    def charge(self, row: int, marks: Iterable[str], *, sign: int = 1) -> None:
        """Count a pod's marks at a row, or take them off again with `sign=-1`."""
        for mark in marks:
            counts = self._mutable(mark)
            count = counts.get(row, 0) + sign
            if count:
                counts[row] = count
            else:
                counts.pop(row, None)
                if not counts and self._own is None:
                    del self._counts[mark]
            for sums in self._sums.get(mark, ()):
                sums.add(row, sign)
            self.changes += 1

    def counts(self, mark: str) -> dict[int, int]:
        """Return how often a mark is at which rows; not to be changed."""
        return self._counts.get(mark, {})

    def by_name(self, prefix: str) -> dict[str, dict[int, int]]:
        """Return how often the marks that begin so are at which rows, by the rest of the mark; not to be changed."""
        return {mark.removeprefix(prefix): rows for mark, rows in self._counts.items() if mark.startswith(prefix)}

    def sums(self, mark: str, key: str, values: tuple[Ints, list[str]], *, counting: Flags | None = None) -> DomainSums:
        """Return a mark's sums over the domains of a label, which later charges keep up to date.

        Args:
            values: the label's value per row, as `NodeColumns.label_values` gives them.
            counting: rows that count; None for all.
        """
        domain_sums = self._shared_sums.get((mark, key)) if counting is None else None
        if domain_sums is None:
            domain_sums = DomainSums(values, self.counts(mark), counting=counting)
            self._sums.setdefault(mark, []).append(domain_sums)
            if counting is None:
                self._shared_sums[mark, key] = domain_sums
        return domain_sums

    # What classes bring along.

    def add_rules(self, rules: PodRules, *, sign: int = 1) -> None:
        """Know of the terms and ports of a class, or forget them with its end (`sign=-1`)."""
        for term in carried_terms(rules):
            by_selection = self._carried.setdefault(term.selection, {})
            _count(by_selection, term, sign)
            if not by_selection:
                del self._carried[term.selection]
        for port in rules.host_ports:
            _count(self._ports, port, sign)

    def terms_on(self, selected: Iterable[str]) -> list[CarriedTerm]:
        """Return the carried terms that are about pods with these selection marks, in a fixed order."""
        terms = [term for mark in selected for term in self._carried.get(mark, ())]
        return sorted(terms, key=term_mark)

    def conflicting_ports(self, port: HostPort) -> list[HostPort]:
        """Return the ports, of pods known so far, that cannot be held on one node with this one.

        Source: kube-scheduler's `HostPortInfo.CheckConflict`: same protocol and port, same address or one of them all.
        """
        wildcard = HostPort(port.port, port.protocol).ip
        return sorted(
            other
            for other in {*self._ports, port}
            if (other.port, other.protocol) == (port.port, port.protocol)
            and (other.ip == port.ip or wildcard in (other.ip, port.ip))
        )

    def _mutable(self, mark: str) -> dict[int, int]:
        counts = self._counts.get(mark)
        if counts is None:
            counts = self._counts[mark] = {}
        elif self._own is not None and mark not in self._own:
            counts = self._counts[mark] = dict(counts)
        if self._own is not None:
            self._own.add(mark)
        return counts


def _count(counts: dict[_Key, int], key: _Key, sign: int) -> None:
    counts[key] = counts.get(key, 0) + sign
    if not counts[key]:
        del counts[key]
