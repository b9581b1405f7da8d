"""The page of predictions: how well kubelets were predicted, over the whole log up to a moment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kaicore.analysis.ask.projections.questions import Decisions
from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.state.pods.agreement import NO_FAULT, Agreement
from kaicore.rules.state.views import FleetView, PodsView

from kai_api.pages.frame import Part, parts

#: Nodes that are listed, those with most misses first; and of the last misses.
_MOST_NODES, _MOST_MISSES = 50, 50


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
class HourAccuracy:
    """The accuracy of predictions in an hour with at least one.

    Attributes:
        rate: how many of the observed pods were on the predicted zones, in hundredths; None where none was observed.
    """

    at: str
    bar: tuple[Part, ...]
    observed: int
    rejected: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Predictions:
    """The accuracy of predictions of kubelets.

    Attributes:
        observed: placements that were compared.
        rate: how many of them were exactly as predicted, in hundredths; None where none was compared.
        bar: of the three kinds of agreement.
        rejections: by the kubelet's reason.
        unobserved: pods that run on zones, and have not been observed.
        hours: the last first; none where no read models are kept.
        disbelieved: observations that were not believed.
        promises: reserved starts, by what became of them (`Counters.promises`).
        kept: how many groups of those that started were no later than was promised to them first, in hundredths; None
            where no promise with a time has come to its start.
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
    hours: tuple[HourAccuracy, ...] = ()
    promises: tuple[tuple[str, int], ...] = ()
    kept: float | None = None


def predictions(state: FleetView, hours: Sequence[Decisions] = ()) -> Predictions:
    """Return the model of the page about predictions.

    Args:
        state: of the cluster.
        hours: what was decided by the hour, the last hours up to there.
    """
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
            CauseCount(policy, cause, count, round(100 * count / most, 2), cause in NO_FAULT)
            for (policy, cause), count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        ),
        nodes=tuple(
            NodeMisses(node, by_cause.total(), ", ".join(f"{count} {cause}" for cause, count in by_cause.most_common()))
            for node, by_cause in ordered
        ),
        last=tuple(_last(state)),
        unobserved=sum(is_unobserved(state, entry) for entry in state.pods.values()),
        hours=tuple(_hour(one) for one in reversed(hours)),
        disbelieved=sum(counters.disbelieved.values()),
        promises=tuple((key.replace("/", ": "), count) for key, count in sorted(counters.promises.items())),
        kept=_kept(counters.promises),
    )


def _kept(promises: Mapping[str, int]) -> float | None:
    started = promises.get("kept", 0) + promises.get("late", 0)
    return round(100 * promises.get("kept", 0) / started, 2) if started else None


def _hour(hour: Decisions) -> HourAccuracy:
    observed = hour.agreed + hour.contradicted
    kinds = (
        ("held", "on the predicted zones", hour.agreed),
        ("bad", "on others", hour.contradicted),
        ("releasing", "rejected", hour.rejected),
    )
    return HourAccuracy(
        at=f"{hour.at[:13].replace('T', ' ')}:00",
        bar=parts(observed + hour.rejected, ((kind, label, count, str(count)) for kind, label, count in kinds)),
        observed=observed,
        rejected=hour.rejected,
        rate=round(100 * hour.agreed / observed, 2) if observed else None,
    )


def _last(state: PodsView) -> list[LastMiss]:
    """Return the last misses of pods that are still there."""
    last = []
    for uid, miss in state.misses.explained.items():
        entry = state.pods.get(uid)
        if entry is not None:
            last.append(LastMiss(miss.at, entry.pod.namespace, entry.pod.name, miss.node, miss.cause))
    return sorted(last, key=lambda miss: -miss.position)[:_MOST_MISSES]
