"""`kai policy check`: properties of a policy's answers on generated clusters; replays and cycles rest on them.

| check | for |
|---|---|
| it answers | a vector of the right length and type, in range, for every cluster |
| twice | the same facts give the same answer |
| another order | an answer does not depend on the order of the nodes |
| near | a live policy says the same of the nodes near a charge (`within`) when it is asked about these alone |
| anew | an answer does not depend on what was asked before: it comes out alike as charges come, and from the start |
| input unchanged | what a policy is given stays as it was |
| time | an answer about many nodes comes within the budget of a call |

A cluster has nodes with charges, work, groups and queues, drawn from one seed. Labels, annotations and inputs are those
that the policy declares; to ask for others, which a cycle takes for absent, is an error here. Their values are partly
such as a policy may expect (`true`, a number, a name) and partly absent: so who cannot do without one shows it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np

from kaicore.analysis.json_spelling import Answer
from kaicore.policy import (
    Facts,
    Input,
    Ints,
    NodeFinding,
    Nodes,
    Point,
    Policy,
    Queue,
    Running,
    Texts,
    Undeclared,
    Waiting,
    Work,
)
from kaicore.rules.engine.config import PolicySetting
from kaicore.rules.engine.policies.book import BUDGET_S, PolicyBook
from kaicore.rules.engine.policies.guarded import GuardedPolicy, PolicyFailed

CPU, MEMORY, GPU, PODS = "cpu", "memory", "nvidia.com/gpu", "pods"

#: Values of labels and annotations: absent, and of several kinds.
_VALUES = ("", "true", "false", "a", "b", "a.b", "r-1", "r-2", "7", "48", "100000", "2026-12-24T18:00:00Z", "ü")
#: The least of each finding, and more than the most.
_FOUND = dict.fromkeys(NodeFinding, (0, 9)) | {
    NodeFinding.ZONES: (-1, 101),
    NodeFinding.ROOM_TAKEN: (0, 9_000),
    NodeFinding.PARTS: (0, 4_000),
    NodeFinding.KEEPS_POLICY: (0, 2),
    NodeFinding.AVOIDED: (0, 2),
}
_NAMESPACES = ("default", "research", "serving", "batch")
_DAY_US = 86_400_000_000
_NOW_US = 1_790_000_000_000_000


class _Declared(dict[str, str]):
    """Labels or annotations of pods, of which only the declared ones may be asked for."""

    def __init__(self, values: Mapping[str, str], keys: Sequence[str], where: str) -> None:
        """Args:
        keys: that are declared.
        where: name of the attribute of the policy that does it.
        """
        super().__init__(values)
        self._keys, self._where = keys, where

    def _known(self, key: str) -> str:
        if key not in self._keys:
            raise Undeclared(f"{key}: is not in {self._where}")
        return key

    def __getitem__(self, key: str) -> str:
        return super().__getitem__(self._known(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._known(str(key)))

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value."""
        return super().get(self._known(key), default)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeclaredFacts(Facts):
    """Facts, of which only the declared inputs may be asked for."""

    declared: tuple[str, ...]

    def input(self, name: str, default: Any = 0) -> Any:
        """See `Facts.input`.

        Raises:
            Undeclared: the policy does not declare it.
        """
        if name not in self.declared:
            raise Undeclared(f"input {name}: is not in inputs")
        return Facts.input(self, name, default)


@dataclass(frozen=True, slots=True)
class DrawnNodes:
    """Columns of nodes, from which `Nodes` are made: each time anew, so that no call sees what another did.

    Attributes:
        labels: by key.
        allocatable: by resource.
        used: by resource.
        pods: by namespace.
        inputs: by name, then by node.
        found: by name, findings.
    """

    names: tuple[str, ...]
    labels: Mapping[str, Texts]
    allocatable: Mapping[str, Ints]
    used: Mapping[str, Ints]
    pods: Mapping[str, Ints]
    inputs: Mapping[str, Mapping[str, Input]]
    found: Mapping[str, Ints]

    def nodes(self, policy: Policy) -> Nodes:
        """Return copies of the columns, as the policy sees them."""
        return Nodes(
            self.names,
            labels={key: values.copy() for key, values in self.labels.items()},
            allocatable={name: amounts.copy() for name, amounts in self.allocatable.items()},
            used={name: amounts.copy() for name, amounts in self.used.items()},
            pods={name: counts.copy() for name, counts in self.pods.items()} if policy.tenants else None,
            inputs={name: dict(of_nodes) for name, of_nodes in self.inputs.items()},
            found={name: figures.copy() for name, figures in self.found.items()},
        )

    def ordered(self, order: Ints) -> "DrawnNodes":
        """Return the same nodes in another order: row `i` is what row `order[i]` was."""
        return DrawnNodes(
            tuple(self.names[row] for row in order.tolist()),
            {key: values[order] for key, values in self.labels.items()},
            {name: amounts[order] for name, amounts in self.allocatable.items()},
            {name: amounts[order] for name, amounts in self.used.items()},
            {name: counts[order] for name, counts in self.pods.items()},
            self.inputs,
            {name: figures[order] for name, figures in self.found.items()},
        )

    def charged(self, row: int, work: Work) -> "DrawnNodes":
        """Return the nodes with one more pod on a row."""
        used = {name: amounts.copy() for name, amounts in self.used.items()}
        for name, amount in work.requests.items():
            used.setdefault(name, np.zeros(len(self.names), np.int64))[row] += amount
        pods = {name: counts.copy() for name, counts in self.pods.items()}
        pods.setdefault(work.namespace, np.zeros(len(self.names), np.int64))[row] += 1
        return replace(self, used=used, pods=pods)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A cluster and what asks for a place in it.

    Attributes:
        what: it is, for people.
        work: classes of pods.
        groups: that wait, each with its queue.
        running: groups that may be victims.
    """

    what: str
    nodes: DrawnNodes
    work: Sequence[Work]
    groups: Sequence[tuple[Waiting, Queue]]
    running: Sequence[Running]
    facts: Facts


def drawn_clusters(policy: Policy, *, seed: int, count: int) -> Iterator[Drawn]:
    """Yield clusters: some extreme ones, then random ones.

    Args:
        policy: its declarations say which labels and inputs there are.
    """
    edges = (("no nodes", 0), ("one node", 1), ("nodes without labels", 7), ("full nodes", 7))
    for number in range(count):
        random = np.random.default_rng((seed, number))
        what, size = edges[number] if number < len(edges) else ("", int(random.integers(2, 65)))
        yield draw(policy, random, size, what=what or f"{size} nodes", bare="without" in what, full="full" in what)


def draw(
    policy: Policy,
    random: np.random.Generator,
    size: int,
    *,
    what: str = "",
    works: int = 3,
    bare: bool = False,
    full: bool = False,
) -> Drawn:
    """Return a cluster of so many nodes.

    Args:
        policy: see `drawn_clusters`.
        bare: without labels and inputs.
    """
    facts = _DeclaredFacts(
        declared=tuple(policy.inputs),
        now_us=_NOW_US + int(random.integers(0, 14 * _DAY_US)),
        inputs={} if bare else {name: _input(random) for name in policy.inputs if random.random() < 0.7},
    )
    queues = [_queue(random, name) for name in ("team", "batch")]
    classes = [_work(policy, random, bare=bare) for _ in range(works)]
    groups = [(_waiting(policy, random, facts, bare=bare), queues[number % 2]) for number in range(4)]
    running = [_running(policy, random, bare=bare) for _ in range(4)]
    return Drawn(what, _nodes(policy, random, size, bare=bare, full=full), classes, groups, running, facts)


def _nodes(policy: Policy, random: np.random.Generator, size: int, *, bare: bool, full: bool) -> DrawnNodes:
    names = tuple(f"node-{number:05}" for number in random.permutation(size).tolist())
    allocatable: dict[str, Ints] = {
        CPU: random.choice([0, 8_000, 64_000, 256_000], size),
        MEMORY: random.choice([0, 2**35, 2**40], size),
        GPU: random.choice([0, 1, 4, 8], size),
        PODS: np.full(size, 110, np.int64),
    }
    used = {
        name: amounts.copy() if full else (amounts * random.random(size)).astype(np.int64)
        for name, amounts in allocatable.items()
    }
    labels: dict[str, Texts] = {
        key: np.full(size, "", np.str_) if bare else random.choice(np.array(_VALUES, np.str_), size)
        for key in policy.node_labels
    }
    pods: dict[str, Ints] = {name: random.choice([0, 0, 0, 1, 5], size) for name in _NAMESPACES}
    inputs: dict[str, dict[str, Input]] = {
        name: {} if bare else {node: _input(random) for node in names if random.random() < 0.7}
        for name in policy.inputs
    }
    found: dict[str, Ints] = {name: random.integers(*_FOUND[NodeFinding(name)], size) for name in policy.findings}
    return DrawnNodes(names, labels, allocatable, used, pods, inputs, found)


def _input(random: np.random.Generator) -> Input:
    return int(random.integers(-10, 10**6)) if random.random() < 0.7 else str(random.choice(_VALUES))


def _texts(policy: Policy, where: str, random: np.random.Generator, *, bare: bool) -> dict[str, str]:
    keys = getattr(policy, where)
    values = {} if bare else {key: str(random.choice(_VALUES)) for key in keys if random.random() < 0.7}
    return _Declared(values, keys, where)


def _shared(policy: Policy, random: np.random.Generator, *, bare: bool) -> dict[str, Any]:
    """Return what work, waiting groups and running groups have alike."""
    return {
        "namespace": str(random.choice(_NAMESPACES)),
        "queue": str(random.choice(["", "team", "batch"])),
        "priority": int(random.choice([-5, 0, 50, 2_000_000_000])),
        "gpus": int(random.choice([0, 250, 1_000, 8_000, 64_000])),
        "labels": _texts(policy, "pod_labels", random, bare=bare),
        "annotations": _texts(policy, "pod_annotations", random, bare=bare),
    }


def _past(random: np.random.Generator) -> dict[str, Any]:
    """Return the GPU time that a group and its namespace have had."""
    return {
        "used_gpu_seconds": int(random.choice([0, 3_600, 10**9])),
        "namespace_use": int(random.integers(0, 10**6)),
    }


def _work(policy: Policy, random: np.random.Generator, *, bare: bool) -> Work:
    alike = _shared(policy, random, bare=bare)
    requests = {CPU: int(random.choice([0, 100, 8_000])), MEMORY: 2**30, PODS: 1}
    if alike["gpus"] >= 1_000:
        requests[GPU] = alike["gpus"] // 1_000
    return Work(**alike, preemptible=bool(random.random() < 0.5), requests=requests)


def _waiting(policy: Policy, random: np.random.Generator, facts: Facts, *, bare: bool) -> Waiting:
    waited = int(random.choice([0, 1, 3_600_000_000, 30 * _DAY_US]))
    return Waiting(
        **_shared(policy, random, bare=bare),
        key=f"group-{int(random.integers(1_000))}",
        created_us=facts.now_us - waited,
        waited_us=waited,
        **_past(random),
        pods=int(random.integers(1, 65)),
    )


def _running(policy: Policy, random: np.random.Generator, *, bare: bool) -> Running:
    ran = int(random.choice([0, 60_000_000, _DAY_US]))
    return Running(
        **_shared(policy, random, bare=bare),
        **_past(random),
        key=f"group-{int(random.integers(1_000))}",
        pods=int(random.integers(1, 65)),
        running_us=ran,
        lost_us=int(random.integers(0, ran + 1)),
    )


def _queue(random: np.random.Generator, name: str) -> Queue:
    return Queue(
        name=name,
        quota=int(random.choice([-1, 0, 64_000])),
        used=int(random.integers(0, 128_000)),
        fair_share=int(random.integers(0, 128_000)),
        past_use=int(random.integers(0, 10**6)),
    )


#: Nodes of the cluster on which time is taken, and calls of which the fastest counts.
NODES, _CALLS = 10_000, 3
#: Classes of pods of which the slowest counts.
_WORKS = 8
#: Points that are asked about all nodes at once.
_OF_NODES = (Point.FILTER, Point.SCORE)


class Check(StrEnum):
    """A property."""

    ANSWERS = "it answers"
    TWICE = "twice"
    ORDER = "another order"
    NEAR = "near"
    ANEW = "anew"
    UNCHANGED = "input unchanged"
    TIME = "time"


class CheckResult(Answer, frozen=True, kw_only=True):
    """A property of one point.

    Attributes:
        passed: whether it held every time.
        cases: how often it was tried.
        problem: the first case in which it did not hold, or how long an answer took.
    """

    point: str
    check: str
    passed: bool
    cases: int
    problem: str = ""


class PolicyCheck(Answer, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        passed: whether every property held.
        results: by point and check.
        notes: what is no fault, and may surprise.
    """

    name: str
    version: str
    digest: str
    points: tuple[str, ...]
    clusters: int
    passed: bool
    results: tuple[CheckResult, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Tally:
    cases: int = 0
    problem: str = ""


@dataclass(slots=True)
class _Checker:
    """Asks one point of a policy, as a cycle does.

    Attributes:
        book: has its code, and the guard.
        tallies: by property.
        follows_charges: whether an answer was another one after a charge.
        slowest_s: how long an answer about many nodes took, seconds of CPU; 0 where it was not taken.
        took: the same for people.
    """

    setting: PolicySetting
    book: PolicyBook
    point: Point
    tallies: dict[Check, _Tally] = field(default_factory=dict)
    follows_charges: bool = False
    slowest_s: float = 0.0
    took: str = ""

    def make(self) -> GuardedPolicy:
        """Return the policy without anything that it may remember."""
        ((setting, policy),) = self.book.policies([self.setting])
        return GuardedPolicy(setting, policy, self.book.guard)

    def on(self, drawn: Drawn, random: np.random.Generator) -> None:
        """Try every property on one cluster."""
        policy = self.make()
        first = self._asked(policy, drawn, drawn.what)
        if first is None:
            return
        again = self._asked(policy, drawn, drawn.what)
        self._note(Check.TWICE, _same(first, again), f"{drawn.what}: {_shown(first)}, then {_shown(again)}")
        if self.point in _OF_NODES and len(drawn.nodes.names):
            self._in_another_order(drawn, first, random)
            self._after_a_charge(policy, drawn, first, random)
            self._of_those_near(drawn, random)
        fresh = self._asked(self.make(), drawn, drawn.what)
        last = self._asked(policy, drawn, drawn.what)
        self._note(Check.ANEW, _same(last, fresh), f"{drawn.what}: {_shown(last)} after others, {_shown(fresh)} anew")

    def _in_another_order(self, drawn: Drawn, first: list[Any], random: np.random.Generator) -> None:
        order = random.permutation(len(drawn.nodes.names))
        turned = replace(drawn, nodes=drawn.nodes.ordered(order))
        answers = self._asked(self.make(), turned, f"{drawn.what} in another order")
        expected = [answer[order] for answer in first]
        where = f"{drawn.what}: {_shown(expected)} for the same nodes, {_shown(answers)} in another order"
        self._note(Check.ORDER, _same(answers, expected), where)

    def _after_a_charge(
        self, policy: GuardedPolicy, drawn: Drawn, first: list[Any], random: np.random.Generator
    ) -> None:
        row = int(random.integers(len(drawn.nodes.names)))
        charged = replace(drawn, nodes=drawn.nodes.charged(row, drawn.work[0]))
        where = f"{drawn.what}, one pod more on {drawn.nodes.names[row]}"
        incrementally, anew = self._asked(policy, charged, where), self._asked(self.make(), charged, where)
        said = f"{where}: {_shown(incrementally)} after it came, {_shown(anew)} anew"
        self._note(Check.ANEW, _same(incrementally, anew), said)
        self.follows_charges |= not _same(anew, first)

    def _of_those_near(self, drawn: Drawn, random: np.random.Generator) -> None:
        """Charge a node, and ask a policy that names a label about the nodes near it alone, and about all."""
        label = self.make().policy.within
        if label is None:
            return
        row = int(random.integers(len(drawn.nodes.names)))
        near = np.array([row])
        if label:
            texts = drawn.nodes.labels[label]
            near = np.flatnonzero(texts == texts[row])
        charged = drawn.nodes.charged(row, drawn.work[0])
        before, after, alone = (
            self._asked(self.make(), replace(drawn, nodes=nodes), drawn.what)
            for nodes in (drawn.nodes, charged, charged.ordered(near))
        )
        if before is None or after is None:
            return
        # What is near is asked about again, and all else stays.
        where = f"{drawn.what}, one pod more on {drawn.nodes.names[row]}"
        said = f"{where}: {_shown(alone)} of those near alone, {_shown([one[near] for one in after])} among all"
        self._note(Check.NEAR, _same(alone, [one[near] for one in after]), said)
        others = np.setdiff1d(np.arange(len(drawn.nodes.names)), near)
        said = f"{where}: it changes the answer about others"
        self._note(Check.NEAR, _same([one[others] for one in before], [one[others] for one in after]), said)

    def _asked(self, policy: GuardedPolicy, drawn: Drawn, where: str) -> list[Any] | None:
        """Return the answers for one cluster; None where one is none."""
        answers = []
        for call, given in _calls(policy, self.point, drawn):
            before, problem, answer = deepcopy(given), "", None
            try:
                self.book.guard.begin()
                answer = call()
            except PolicyFailed as failed:
                problem = _failure_text(failed)
            self._note(Check.ANSWERS, not problem, f"{where}: {problem}")
            self._note(Check.UNCHANGED, _unchanged(before, given), f"{where}: it changes what it was given")
            if problem:
                return None
            answers.append(answer)
        return answers

    def timed(self, drawn: Drawn, budget_s: float) -> None:
        """Take the time of a call on many nodes: the slowest of all, each as fast as it was once."""
        fastest: dict[int, float] = {}
        for _ in range(_CALLS):
            for number, (call, _) in enumerate(_calls(self.make(), self.point, drawn)):
                self.book.guard.begin()
                began = time.thread_time()
                try:
                    call()
                except PolicyFailed as failed:
                    self._note(Check.TIME, False, f"{drawn.what}: {_failure_text(failed)}")
                    return
                fastest[number] = min(fastest.get(number, budget_s * 1e6), time.thread_time() - began)
        self.slowest_s = slowest_s = max(fastest.values())
        self.took = f"{slowest_s * 1e3:.2f} ms" + (f" for {drawn.what}" if self.point in _OF_NODES else "")
        self._note(Check.TIME, slowest_s <= budget_s, f"{self.took}, more than {budget_s * 1e3:.0f} ms")

    def _note(self, check: Check, holds: bool, problem: str) -> None:
        tally = self.tallies.setdefault(check, _Tally())
        tally.cases += 1
        if not holds and not tally.problem:
            tally.problem = problem

    def results(self) -> Iterator[CheckResult]:
        """Yield what came out."""
        for check in Check:
            if check in self.tallies:
                tally = self.tallies[check]
                said = self.took if check is Check.TIME and not tally.problem else tally.problem
                yield CheckResult(
                    point=self.point, check=check, passed=not tally.problem, cases=tally.cases, problem=said
                )


def check_policy(
    setting: PolicySetting, book: PolicyBook, *, budget_s: float, seed: int = 0, clusters: int = 40
) -> PolicyCheck:
    """Try the properties of a policy on generated clusters.

    Args:
        book: has its code, and the guard under which it runs.
        budget_s: seconds of CPU that one call may take on many nodes.
        clusters: how many; the first four are extreme.
    """
    ((_, policy),) = book.policies([setting])
    checkers = [_Checker(setting, book, point) for point in Point if point in policy.points()]
    drawn = [*drawn_clusters(policy, seed=seed, count=clusters)]
    many = draw(policy, np.random.default_rng(seed), NODES, what=f"{NODES:,} nodes", works=_WORKS)
    for checker in checkers:
        random = np.random.default_rng((seed, clusters))
        for one in drawn:
            checker.on(one, random)
        checker.timed(many, budget_s)
    results = tuple(result for checker in checkers for result in checker.results())
    notes = [
        f"{checker.point}: its answer follows charges, but it is not live: it is asked once per class and cycle"
        for checker in checkers
        if checker.follows_charges and not policy.live
    ]
    notes += [
        f"{checker.point}: live without within, so it is asked about all nodes after each charge: of {NODES:,} nodes, "
        f"{BUDGET_S / checker.slowest_s:,.0f} charges use up its {BUDGET_S:g} s of a cycle, and it is left out"
        for checker in checkers
        if policy.live and policy.within is None and checker.slowest_s
    ]
    return PolicyCheck.copied(
        setting,
        clusters=clusters,
        passed=all(result.passed for result in results),
        results=results,
        notes=tuple(notes),
    )


def _calls(policy: GuardedPolicy, point: Point, drawn: Drawn) -> Iterator[tuple[Callable[[], Any], tuple[Any, ...]]]:
    facts = deepcopy(drawn.facts)
    match point:
        case Point.FILTER | Point.SCORE:
            asked = policy.filter if point is Point.FILTER else policy.score
            for work in drawn.work:
                given = (drawn.nodes.nodes(policy.policy), deepcopy(work), facts)
                yield partial(asked, *given), given
        case Point.VICTIMS:
            for running in deepcopy(drawn.running):
                yield partial(policy.victims, [running], facts), (running, facts)
        case Point.ORDER_QUEUE:
            for _, queue in deepcopy(drawn.groups):
                yield partial(policy.order_queue, [queue], facts), (queue, facts)
        case Point.ORDER | Point.ADMIT:
            of_groups = policy.order if point is Point.ORDER else policy.admit
            for group in deepcopy(drawn.groups):
                yield partial(of_groups, [group], facts), (*group, facts)


def _failure_text(failed: PolicyFailed) -> str:
    cause = failed.__cause__
    return f"{failed.left_out.why}: {failed.left_out.detail}" + (f": {cause}" if cause is not None else "")


def _same(one: Sequence[Any] | None, other: Sequence[Any] | None) -> bool:
    """True if answers are equal; also where one is none, which is a problem of its own."""
    if one is None or other is None:
        return True
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in zip(one, other, strict=True))


def _unchanged(before: Sequence[Any], after: Sequence[Any]) -> bool:
    return all(_facts_of(a) == _facts_of(b) for a, b in zip(before, after, strict=True))


def _facts_of(given: object) -> object:
    """Return what a policy was given as something that can be compared."""
    if not isinstance(given, Nodes):
        return given
    # The nodes themselves keep what they have worked out.
    parts = {name: value for name, value in vars(given).items() if name not in ("names", "_made")}
    return given.names, {name: _plain(value) for name, value in parts.items()}


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _shown(answers: Sequence[Any] | None) -> str:
    return "no answer" if answers is None else ", ".join(str(one)[:60] for one in answers[:1])
