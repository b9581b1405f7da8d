"""The policies' say about the nodes for one class of pods: which nodes they refuse, and which they prefer.

A policy that is not live is asked once per class and cycle, about the nodes as the cycle begins. So its answer depends
on nothing that the cycle decides, and holds for all work with the same values of the facts that it looked at. A live
one is asked again once the cycle has charged any node: about all nodes, or those near it that the policy declares. The
rows that this changes are ranked anew.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from kaicore.policy import Facts, Flags, Ints, Point, PolicyBand, Work
from kaicore.rules.engine.config import PolicySetting
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.node_score import (
    BANDS,
    BIAS,
    FULL,
    NEVER,
    OFFSETS,
    Band,
    Levels,
    score_range,
    with_part,
)
from kaicore.rules.engine.placement.pod_class import TENANT, PodClass, PolicyWork
from kaicore.rules.engine.policies.class_rules import MOST_FULL
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.policies.node_facts import NodeFacts
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.queues.tree import gpus_of


@dataclass(frozen=True, slots=True)
class RefusedNodes:
    """The nodes that one policy refuses, by row."""

    policy: str
    reason: str
    refused: Flags


@dataclass(frozen=True, slots=True)
class PolicyScore:
    """The scores of one policy, by row; 0 where there is no node."""

    policy: str
    band: PolicyBand
    scores: Ints


@dataclass(slots=True)
class _Answers:
    """The answers of one policy about some work; those of a live one change.

    Attributes:
        refusals: none where the policy does not filter.
        scores: none where it does not score.
        settled: whether it looked at nothing that the cycle's charges change.
    """

    refusals: tuple[RefusedNodes, ...]
    scores: tuple[PolicyScore, ...]
    settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _WatchedWork(Work):
    """Work that knows which of its facts were looked at."""

    seen: set[str] = field(default_factory=set, repr=False, compare=False)

    def __getattribute__(self, name: str) -> object:
        if name != "seen" and not name.startswith("__"):
            object.__getattribute__(self, "seen").add(name)
        return object.__getattribute__(self, name)


class _KnownAnswers:
    """The answers of one policy so far; one holds for all work with the same values of what it looked at.

    Answers that say the same are one object, so that what follows from them is worked out once.
    """

    def __init__(self) -> None:
        #: The answer that looked at no fact.
        self.always: _Answers | None = None
        #: Whether any answer looked at what pods ask for, and not at their work alone.
        self.by_size = False
        #: By the names of facts that were looked at, and then by their values.
        self._answers: dict[tuple[str, ...], dict[tuple[object, ...], _Answers]] = {}
        self._by_content: dict[tuple[bytes, ...], _Answers] = {}

    def of(self, pod_class: PodClass, setting: PolicySetting) -> _Answers | None:
        """Return the answer about the work of a class; None where there is none yet."""
        if self.always is not None:
            return self.always
        for names, of_facts in self._answers.items():
            found = of_facts.get(_values(pod_class, setting, names))
            if found is not None:
                return found
        return None

    def keep(self, pod_class: PodClass, setting: PolicySetting, seen: set[str], answers: _Answers) -> _Answers:
        """Keep an answer about the work of a class that was just asked for; returns the one that stands for it.

        Args:
            seen: names of what was looked at; what is no fact itself follows from facts that were looked at, too.
        """
        names = tuple(sorted(seen & _FACTS.keys()))
        self.by_size = self.by_size or not _OF_SIZE.isdisjoint(names)
        content = (
            *(one.refused.tobytes() for one in answers.refusals),
            *(one.scores.tobytes() for one in answers.scores),
        )
        answers = self._by_content.setdefault(content, answers)
        if not names:
            self.always = answers
        self._answers.setdefault(names, {})[_values(pod_class, setting, names)] = answers
        return answers


def _gpus(pod_class: PodClass, work: PolicyWork, setting: PolicySetting) -> int:
    share = pod_class.gpu_share
    return gpus_of(pod_class.requests) * WHOLE + (0 if share is None else share.milli * share.devices)


#: The facts of the work of a class, as a policy sees them: labels and annotations only that its setting names.
_FACTS: dict[str, Callable[[PodClass, PolicyWork, PolicySetting], object]] = {
    "namespace": lambda _, work, __: work.namespace,
    "queue": lambda _, work, __: work.queue,
    "priority": lambda _, work, __: work.priority,
    "preemptible": lambda _, work, __: work.preemptible,
    "requests": lambda pod_class, _, __: MappingProxyType(pod_class.requests),
    "gpus": _gpus,
    "shares_gpu": lambda pod_class, _, __: pod_class.gpu_share is not None,
    "claims": lambda pod_class, _, __: pod_class.claimed,
    "labels": lambda _, work, setting: _declared(work.labels, setting.pod_labels),
    "annotations": lambda _, work, setting: _declared(work.annotations, setting.pod_annotations),
}
#: Those that classes with the same work may differ in.
_OF_SIZE = frozenset({"requests", "gpus", "shares_gpu", "claims"})
#: Returns a finding about rows as they are charged now, by its name.
Find = Callable[[str, Ints], Ints]


def _facts(pod_class: PodClass, setting: PolicySetting, names: Iterable[str]) -> list[Any]:
    work = pod_class.work
    assert work is not None, "asked for classes with work"
    return [_FACTS[name](pod_class, work, setting) for name in names]


def _values(pod_class: PodClass, setting: PolicySetting, names: Iterable[str]) -> tuple[object, ...]:
    facts = _facts(pod_class, setting, names)
    return tuple([tuple(sorted(one.items())) if type(one) is MappingProxyType else one for one in facts])


_LEVELS = PolicyBand.PREFERRED


class _Say:
    """The say of several policies together.

    Attributes:
        refusals: of each policy that filters.
        scores: of each policy that scores.
        refused: by row, whether any of them refuses it.
        refuses: whether there was such a row at first.
        refused_rows: the same for a look at one row: bytes are read faster than an array.
        levels: by row, how much they prefer it; None where none says.
        shared_levels: the same, for all classes with this say.
        full: by row, the part of the band of that name that they fill once for all; None where they do not.
        replaced: the other bands that they fill in place of the built-in rules, with the parts of all rows.
        replaced_rows: the same for a look at one row.
        fill: the answers that fill them; these are kept, so their identity tells them apart.
    """

    def __init__(self, answers: Sequence[_Answers], rows: int, *, live: bool = False) -> None:
        self.fill = tuple(id(given) for given in answers if any(one.band is not _LEVELS for one in given.scores))
        self.refusals = [one for given in answers for one in given.refusals]
        self.scores = [one for given in answers for one in given.scores]
        every = slice(None)
        self.refused: Flags = np.zeros(rows, np.bool_)
        self.refused[every] = self._refused(every)
        self.refuses = bool(self.refused.any())
        self.refused_rows = bytearray(self.refused.tobytes())
        self._sums = {band: self._sum(band, every) for band in dict.fromkeys(one.band for one in self.scores)}
        self.levels: Ints | None = self._sums.get(PolicyBand.PREFERRED)
        self.shared_levels = None if self.levels is None else Levels(self.levels)
        self.full = None if live else self._sums.get(PolicyBand.FULL)
        self.replaced: list[tuple[Band, Ints]] = [
            (BANDS[band.value], scores)
            for band, scores in sorted(self._sums.items())
            if band is not _LEVELS and scores is not self.full
        ]
        self.replaced_rows = [
            (band.step, band.most - band.least + 1, band.least, scores.data) for band, scores in self.replaced
        ]

    def renew(self, rows: Ints) -> None:
        """Take over what the answers, which were changed in place, are now about rows."""
        refused = self.refused[rows] = self._refused(rows)
        for row, is_refused in zip(rows.tolist(), refused.tolist(), strict=True):
            self.refused_rows[row] = is_refused
        for band, scores in self._sums.items():
            scores[rows] = self._sum(band, rows)

    def _refused(self, rows: Ints | slice) -> Flags:
        total = np.zeros_like(self.refused[rows])
        for one in self.refusals:
            total |= one.refused[rows]
        return total

    def _sum(self, band: PolicyBand, rows: Ints | slice) -> Ints:
        """Return the scores of rows in a band, as parts of their whole score."""
        first, *others = [one.scores[rows] for one in self.scores if one.band is band]
        if not others:
            return first + OFFSETS[band]
        total: Ints = first + others[0]
        for one in others[1:]:
            total += one
        least, most = score_range(band)
        np.clip(total, least, most, out=total)
        total += OFFSETS[band]
        return total


class NodePolicies:
    """The policies of one cycle that place pods."""

    def __init__(self, policies: Iterable[GuardedPolicy], nodes: NodeFacts, columns: NodeColumns, facts: Facts) -> None:
        """Args:
        policies: of the cycle; those that place nothing are left aside.
        nodes: of the shard.
        columns: as the cycle begins, which nothing changes.
        facts: of the cycle.
        """
        self._policies = [one for one in policies if one.setting.places]
        self._nodes, self._columns, self._facts = nodes, columns, facts
        self.rows = len(columns.present)
        #: By policy, what it said that is asked once; and by these answers, what they say together.
        self._known = {one.setting.name: _KnownAnswers() for one in self._policies}
        #: By the identity of work, that work and what policies say of all classes that have it: classes of one size or
        #: another, where no policy asks for the size.
        self._of_work: dict[int, tuple[PolicyWork, ClassPolicies | None]] = {}
        self._together: dict[tuple[int, ...], _Say] = {}
        #: See `handicap`, by the answers that fill the band, with what was given.
        self._handicaps: dict[tuple[int, ...], tuple[Ints, Ints]] = {}

    def of_class(self, pod_class: PodClass, columns: NodeColumns, find: Find) -> "ClassPolicies | None":
        """Return what the policies say about a class; None where none decides about its work.

        Args:
            columns: of the statement that pods are placed on.
            find: returns findings about the class on them.
        """
        work = pod_class.work
        if work is None:
            return None
        known = self._of_work.get(id(work))
        if known is not None:
            return known[1]
        policies = [one for one in self._policies if one.setting.decides_for(work.queue)]
        found = ClassPolicies(self, pod_class, columns, policies, find) if policies else None
        if found is None or not (found.live or any(one.by_size for one in self._known.values())):
            self._of_work[id(work)] = work, found
        return found

    def ask_once(self, one: GuardedPolicy, pod_class: PodClass) -> _Answers:
        """Ask a policy about a class as the cycle begins, unless it has an answer that holds for its work."""
        known, setting = self._known[one.setting.name], one.setting
        answers = known.of(pod_class, setting)
        if answers is None:
            work = _work_of(pod_class, setting)
            given = self.ask(one, work, self._columns)
            answers = known.keep(pod_class, setting, work.seen, given)
        return answers

    def together(self, answers: Sequence[_Answers]) -> _Say:
        """Return what answers that are kept until the cycle's end say together."""
        key = tuple(map(id, answers))
        say = self._together.get(key)
        if say is None:
            say = self._together[key] = _Say(answers, self.rows)
            of_nodes = None if say.levels is None else say.levels[self._nodes.rows]
            if of_nodes is not None and (of_nodes == of_nodes[:1]).all():
                # Who prefers all nodes alike prefers none.
                say.levels = say.shared_levels = None
        return say

    def handicap(self, say: _Say, below: Ints) -> Ints:
        """See `ClassPolicies.handicap`; classes for which the band is filled alike share it."""
        if say.full is None:
            return below
        known = self._handicaps.get(say.fill)
        if known is None or known[0] is not below:
            known = self._handicaps[say.fill] = below, below + MOST_FULL - say.full * FULL
        return known[1]

    def ask(self, one: GuardedPolicy, work: Work, columns: NodeColumns, find: Find | None = None) -> _Answers:
        """Ask a policy about some work, with what is charged to the nodes in some columns."""
        name, policy = one.setting.name, one.policy
        refusals: tuple[RefusedNodes, ...] = ()
        scores: tuple[PolicyScore, ...] = ()
        if one.has(Point.FILTER):
            refusals = (RefusedNodes(name, policy.reason, np.zeros(self.rows, np.bool_)),)
        if one.has(Point.SCORE):
            scores = (PolicyScore(name, PolicyBand(policy.band), np.zeros(self.rows, np.int64)),)
        answers = _Answers(refusals, scores)
        self.ask_again(one, work, columns, answers, find)
        return answers

    def ask_again(
        self,
        one: GuardedPolicy,
        work: Work,
        columns: NodeColumns,
        answers: _Answers,
        find: Find | None,
        *,
        charged: Ints | None = None,
    ) -> Ints:
        """Ask a policy, and change its answers in place; returns the rows that this changes.

        Args:
            columns: with what is charged to the nodes.
            answers: that it gave before.
            find: returns findings about the work's class; None where it is no live one.
            charged: rows that were charged since then; None for all.
        """
        policy, charges = one.policy, set[str]()
        about = self._nodes
        if charged is not None and policy.within is not None:
            about = about.near(charged, policy.within)
            if not len(about.rows):
                return about.rows
        rows = about.rows
        tenants = columns.marks.by_name(TENANT) if policy.tenants else {}
        # Before it is asked: what its guard interrupts must be nothing of ours.
        found = {name: find(name, rows) for name in policy.findings} if find is not None else {}
        nodes = about.seen_by(policy, columns, tenants, charges, found)
        differs = np.zeros(len(rows), np.bool_)
        for refusal in answers.refusals:
            refused = ~one.filter(nodes, work, self._facts)
            differs |= refusal.refused[rows] != refused
            refusal.refused[rows] = refused
        for score in answers.scores:
            scores = one.score(nodes, work, self._facts)
            differs |= score.scores[rows] != scores
            score.scores[rows] = scores
        answers.settled = answers.settled and not (charges or found)
        changed: Ints = rows[differs]
        return changed


class ClassPolicies:
    """The policies' say about one class on one statement's nodes.

    Attributes:
        live: whether any of them is asked again after charges.
        rescores: whether `of_rows` changes any score.
        alike: the same for classes about which the policies say the same as long as the cycle lasts.
        refusals: the nodes that each policy refuses that filters.
        levels: by row, how much the policies prefer it; None where none says.
        shared_levels: the same, for rankings.
        fill: the same for classes for which the policies fill the same bands alike, as long as the cycle lasts.
        fills_fullness: whether they fill the band of fullness once for all.
    """

    def __init__(
        self,
        policies: NodePolicies,
        pod_class: PodClass,
        columns: NodeColumns,
        asked: Sequence[GuardedPolicy],
        find: Find,
    ) -> None:
        """Args:
        columns: of the statement.
        asked: those that decide about the class.
        find: returns findings about the class.
        """
        self._policies, self._columns, self._find = policies, columns, find
        once = [policies.ask_once(one, pod_class) for one in asked if not one.policy.live]
        #: The live ones, each with the work as it sees it and its answers.
        self._live: list[tuple[GuardedPolicy, Work, _Answers]] = []
        for one in asked:
            if one.policy.live:
                work = _work_of(pod_class, one.setting)
                self._live.append((one, work, policies.ask(one, work, columns, find)))
        answers = [*once, *(given for _, _, given in self._live)]
        self._say = say = _Say(answers, policies.rows, live=True) if self._live else policies.together(once)
        self.alike: object = say
        self.refusals: Sequence[RefusedNodes] = say.refusals
        self.levels, self.shared_levels, self.fill = say.levels, say.shared_levels, say.fill
        self.fills_fullness = say.full is not None
        self.live = bool(self._live)
        self.rescores = self.live or bool(self._say.replaced)

    @property
    def refused(self) -> Flags | None:
        """By row, whether any of them refuses it; None where they refuse none, or live ones say that anew."""
        return self._say.refused if self._say.refuses and not self.live else None

    def renew(self, charged: Collection[int]) -> Ints:
        """Ask the live policies again, about the nodes as they are charged now; returns the rows that this changes.

        Args:
            charged: the rows that were charged since the last time.
        """
        rows, ask = np.array([*{*charged}], np.int64), self._policies.ask_again
        # Those that looked at nothing that charges change say the same.
        changed = [
            ask(one, work, self._columns, given, self._find, charged=rows)
            for one, work, given in self._live
            if not given.settled
        ]
        if not changed:
            return np.zeros(0, np.int64)
        renewed: Ints = changed[0] if len(changed) == 1 else np.unique(np.concatenate(changed))
        if len(renewed):
            self._say.renew(renewed)
        return renewed

    def handicap(self, below: Ints) -> Ints:
        """Return what rows' scores are below those of their states, by that band too; nobody is to change it.

        Args:
            below: what they are without it.
        """
        return self._policies.handicap(self._say, below)

    def of_rows(self, rows: Ints, scores: Ints) -> Ints:
        """Return the scores of rows with the bands that policies fill, `NEVER` for rows that live ones refuse now.

        Not with that of fullness, if they fill it once for all: `handicap` has it.

        What others refuse is not eligible anyway.
        """
        if not self.rescores:
            return scores
        able = scores != NEVER
        if self.live:
            able &= ~self._say.refused[rows]
        for band, parts in self._say.replaced:
            # Of rows that are not able it means nothing: to leave them out costs more than to reckon with them.
            scores = with_part(scores, band, parts[rows])
        return np.where(able, scores, NEVER)

    def of_row(self, row: int, score: int) -> int:
        """Return the score of one row as `of_rows` does."""
        if score == NEVER or (self.live and self._say.refused_rows[row]):
            return NEVER
        # `with_part`, for each charge of a node.
        for step, size, least, parts in self._say.replaced_rows:
            score += (parts[row] - (score + BIAS) // step % size - least) * step
        return score

    def preferred(self, ranking: Ints) -> Ints:
        """Return a ranking of rows with only those that the policies prefer most, of those that are wanted at all."""
        wanted = ranking != NEVER
        if self.levels is None or not wanted.any():
            return ranking
        return np.where(wanted & (self.levels == self.levels[wanted].max()), ranking, NEVER)

    def scores_of(self, row: int) -> dict[str, int]:
        """Return the scores of one row, by policy; for explanations."""
        return {one.policy: int(one.scores[row]) for one in self._say.scores}


def _work_of(pod_class: PodClass, setting: PolicySetting) -> _WatchedWork:
    return _WatchedWork(**dict(zip(_FACTS, _facts(pod_class, setting, _FACTS), strict=True)))


def _declared(values: Mapping[str, str], keys: Iterable[str]) -> Mapping[str, str]:
    return MappingProxyType({key: values[key] for key in keys if key in values})
