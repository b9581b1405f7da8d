"""The policies' say about the nodes for one class of pods: which nodes they refuse, and which they prefer.

A policy that is not live is asked once per class and cycle, about the nodes as the cycle begins. So its answer depends
on nothing that the cycle decides. If it has not looked at the work, the answer holds for all classes. A live one is
asked again, about all nodes, once the cycle has charged any of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from kaicore.policy import MOST, Facts, Flags, Ints, Point, PolicyBand, Work
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.node_score import BANDS, NEVER, Band, with_part
from kaicore.rules.engine.placement.pod_class import TENANT, PodClass
from kaicore.rules.engine.policies.guarded import GuardedPolicy
from kaicore.rules.engine.policies.node_facts import NodeFacts
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.queues.tree import gpus_of

#: What a policy's score of 0 is in the band that it replaces.
_LEAST = {PolicyBand.ROOM_TAKEN: -MOST, PolicyBand.FULL: 0}


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
    """The answers of some policies about one class."""

    refusals: list[RefusedNodes] = field(default_factory=list)
    scores: list[PolicyScore] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WatchedWork(Work):
    """Work that knows which of its facts were looked at."""

    seen: list[str] = field(default_factory=list, repr=False, compare=False)

    def __getattribute__(self, name: str) -> object:
        if name != "seen" and not name.startswith("__"):
            object.__getattribute__(self, "seen").append(name)
        return object.__getattribute__(self, name)


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
        self._rows = len(columns.present)
        #: By the class's key: what the policies say that are asked once.
        self._asked_once: dict[str, _Answers] = {}
        #: By policy: what those say that do not look at the work.
        self._of_any_work: dict[str, _Answers] = {}

    def of_class(self, pod_class: PodClass, columns: NodeColumns) -> "ClassPolicies | None":
        """Return what the policies say about a class; None where none decides about its work.

        Args:
            pod_class: the class.
            columns: of the statement that pods are placed on.
        """
        work = pod_class.work
        policies = [] if work is None else [one for one in self._policies if one.setting.decides_for(work.queue)]
        if not policies:
            return None
        once = self._asked_once.get(pod_class.key)
        if once is None:
            settled = [one for one in policies if not one.policy.live]
            once = self._asked_once[pod_class.key] = self._ask_once(settled, pod_class)
        return ClassPolicies(self, pod_class, columns, once, [one for one in policies if one.policy.live])

    def _ask_once(self, policies: Sequence[GuardedPolicy], pod_class: PodClass) -> _Answers:
        """Ask policies about a class as the cycle begins, but those with an answer that holds for any work."""
        answers = _Answers()
        for one in policies:
            known, work = self._of_any_work.get(one.setting.name), _work_of(pod_class)
            if known is None:
                known = self.ask([one], work, self._columns)
                if not work.seen:
                    self._of_any_work[one.setting.name] = known
            answers.refusals += known.refusals
            answers.scores += known.scores
        return answers

    def ask(self, policies: Sequence[GuardedPolicy], work: Work, columns: NodeColumns) -> _Answers:
        """Ask policies about some work, with what is charged to the nodes in some columns."""
        answers = _Answers()
        placed = self._placed(columns) if any(one.policy.tenants for one in policies) else {}
        for one in policies:
            name, policy = one.setting.name, one.policy
            nodes = self._nodes.seen_by(policy, columns, placed)
            if one.has(Point.FILTER):
                refused = np.zeros(self._rows, np.bool_)
                refused[self._nodes.rows] = ~one.filter(nodes, work, self._facts)
                answers.refusals.append(RefusedNodes(name, policy.reason, refused))
            if one.has(Point.SCORE):
                scores = np.zeros(self._rows, np.int64)
                scores[self._nodes.rows] = one.score(nodes, work, self._facts)
                answers.scores.append(PolicyScore(name, PolicyBand(policy.band), scores))
        return answers

    def _placed(self, columns: NodeColumns) -> dict[str, Ints]:
        """Return how many pods the cycle has placed on each row, by namespace."""
        placed = {}
        for namespace, counts in columns.marks.by_name(TENANT).items():
            vector = placed[namespace] = np.zeros(self._rows, np.int64)
            vector[list(counts)] = list(counts.values())
        return placed


class ClassPolicies:
    """The policies' say about one class on one statement's nodes.

    Attributes:
        refusals: of each policy that filters.
        scores: of each policy that scores.
        live: whether any of them is asked again after charges.
    """

    def __init__(
        self,
        policies: NodePolicies,
        pod_class: PodClass,
        columns: NodeColumns,
        once: _Answers,
        live: Sequence[GuardedPolicy],
    ) -> None:
        """Args:
        policies: of the cycle.
        pod_class: the class.
        columns: of the statement.
        once: the answers of the policies that are asked once.
        live: the others.
        """
        self._policies, self._class, self._columns = policies, pod_class, columns
        self._once, self._asked_again = once, live
        self.live = bool(live)
        self.renew()

    def renew(self) -> None:
        """Ask the live policies again, about the nodes as they are charged now."""
        answers = (
            self._policies.ask(self._asked_again, _work_of(self._class), self._columns) if self.live else _Answers()
        )
        self.refusals = [*self._once.refusals, *answers.refusals]
        self.scores = [*self._once.scores, *answers.scores]
        self._refused: Flags = np.zeros(len(self._columns.present), np.bool_)
        for refusal in self.refusals:
            self._refused |= refusal.refused
        #: For a look at one row: a list is read faster than an array.
        self._refused_rows = self._refused.tobytes()
        bands = dict.fromkeys(one.band for one in self.scores)
        sums = {band: self._sum(band) for band in bands}
        #: By row, how much the policies prefer it; None where none says.
        self.levels: Ints | None = sums.pop(PolicyBand.PREFERRED, None)
        self._replaced: list[tuple[Band, Ints]] = [
            (BANDS[band.value], scores + _LEAST[band]) for band, scores in sorted(sums.items())
        ]

    def of_rows(self, rows: Ints, scores: Ints) -> Ints:
        """Return the scores of rows with the bands that policies fill, `NEVER` for rows that they refuse."""
        for band, parts in self._replaced:
            able = scores != NEVER
            scores = scores.copy()
            scores[able] = with_part(scores[able], band, parts[rows[able]])
        return np.where(self._refused[rows], NEVER, scores)

    def of_row(self, row: int, score: int) -> int:
        """Return the score of one row as `of_rows` does."""
        if score == NEVER or self._refused_rows[row]:
            return NEVER
        for band, parts in self._replaced:
            score = with_part(score, band, int(parts[row]))
        return score

    def preferred(self, ranking: Ints) -> Ints:
        """Return a ranking of rows with only those that the policies prefer most, of those that are wanted at all."""
        wanted = ranking != NEVER
        if self.levels is None or not wanted.any():
            return ranking
        return np.where(wanted & (self.levels == self.levels[wanted].max()), ranking, NEVER)

    def _sum(self, band: PolicyBand) -> Ints:
        total = np.zeros(len(self._columns.present), np.int64)
        for one in self.scores:
            if one.band is band:
                total += one.scores
        return np.minimum(total, MOST)

    def scores_of(self, row: int) -> dict[str, int]:
        """Return the scores of one row, by policy; for explanations."""
        return {one.policy: int(one.scores[row]) for one in self.scores}


def _work_of(pod_class: PodClass) -> _WatchedWork:
    work = pod_class.work
    assert work is not None, "asked for classes with work"
    share = pod_class.gpu_share
    parts = 0 if share is None else share.milli * share.devices
    return _WatchedWork(
        namespace=work.namespace,
        queue=work.queue,
        priority=work.priority,
        preemptible=work.preemptible,
        requests=MappingProxyType(pod_class.requests),
        gpus=gpus_of(pod_class.requests) * WHOLE + parts,
        labels=MappingProxyType(work.labels),
        annotations=MappingProxyType(work.annotations),
    )
