"""How well kubelets were predicted: over the whole log up to a moment."""

from collections import Counter
from dataclasses import dataclass

from kaicore.rules.state.agreement import Agreement
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.contradiction import MissCause

from kai_api.pages.bars import Part, parts

#: Nodes that are listed, those with most misses first; and of the last misses.
_MOST_NODES, _MOST_MISSES = 50, 50

#: What a kubelet that is ahead of the API, or a report that came too early, makes of a prediction that was right.
_NO_FAULT = frozenset({MissCause.RELEASED_EARLIER, MissCause.HALF_READ, MissCause.OLDEST_FIRST})


@dataclass(frozen=True, slots=True)
class CauseCount:
    """Misses of one cause under one policy; `expected` where that is no fault of the prediction."""

    policy: str
    cause: str
    count: int
    share: float
    expected: bool


@dataclass(frozen=True, slots=True)
class NodeMisses:
    """Misses of one node's kubelet."""

    node: str
    count: int
    causes: str


@dataclass(frozen=True, slots=True)
class LastMiss:
    """A miss and where in the log it is."""

    position: int
    namespace: str
    name: str
    node: str
    cause: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """How well kubelets were predicted.

    Attributes:
        observed: placements that were compared.
        rate: how many of them were exactly as predicted, in hundredths; None where none was compared.
        bar: of the three kinds of agreement.
        rejections: by the kubelet's reason.
        unobserved: pods that run, were predicted, and have not been observed.
        disbelieved: observations that were not believed.
    """

    observed: int
    rate: float | None
    bar: tuple[Part, ...]
    agreement: tuple[tuple[str, int], ...]
    placed: int
    rejections: tuple[tuple[str, int], ...]
    causes: tuple[CauseCount, ...]
    nodes: tuple[NodeMisses, ...]
    last: tuple[LastMiss, ...]
    unobserved: int
    disbelieved: int


def predictions(state: ClusterState) -> Predictions:
    """Return the model of the page about predictions."""
    counters = state.counters
    agreement = {kind: counters.agreement.get(kind.value, 0) for kind in Agreement}
    observed = sum(agreement.values())
    causes: Counter[tuple[str, str]] = Counter()
    by_node: dict[str, Counter[str]] = {}
    for node, by_cause in counters.misses.items():
        for key, count in by_cause.items():
            policy, _, cause = key.partition("/")
            causes[policy, cause] += count
            by_node.setdefault(node, Counter())[cause] += count
    most = max(causes.values(), default=1)
    words = {Agreement.EXACT: "as predicted", Agreement.SAME_ZONES: "same zones", Agreement.DIFFERENT: "otherwise"}
    kinds = {Agreement.EXACT: "held", Agreement.SAME_ZONES: "placed", Agreement.DIFFERENT: "bad"}
    ordered = sorted(by_node.items(), key=lambda item: (-item[1].total(), item[0]))[:_MOST_NODES]
    return Predictions(
        observed=observed,
        rate=round(100 * agreement[Agreement.EXACT] / observed, 2) if observed else None,
        bar=parts(observed, ((kinds[kind], words[kind], count, str(count)) for kind, count in agreement.items())),
        agreement=tuple((words[kind], count) for kind, count in agreement.items()),
        placed=counters.placed,
        rejections=tuple(sorted(counters.rejections.items(), key=lambda item: (-item[1], item[0]))),
        causes=tuple(
            CauseCount(policy, cause, count, round(100 * count / most, 2), cause in _NO_FAULT)
            for (policy, cause), count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        ),
        nodes=tuple(
            NodeMisses(node, by_cause.total(), ", ".join(f"{count} {cause}" for cause, count in by_cause.most_common()))
            for node, by_cause in ordered
        ),
        last=tuple(_last(state)),
        unobserved=sum(
            entry.predicted is not None and entry.observed is None and entry.charged and entry.pod.phase == "Running"
            for entry in state.pods.values()
        ),
        disbelieved=sum(counters.disbelieved.values()),
    )


def _last(state: ClusterState) -> list[LastMiss]:
    """Return the last misses of pods that are still there."""
    last = []
    for uid, miss in state.misses.explained.items():
        entry = state.pods.get(uid)
        if entry is not None:
            last.append(LastMiss(miss.at, entry.pod.namespace, entry.pod.name, miss.node, miss.cause))
    return sorted(last, key=lambda miss: -miss.position)[:_MOST_MISSES]
