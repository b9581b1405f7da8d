"""Judgement of what is said of pods: what is new, what is not as predicted, what is to be read again.

podresources read in the middle of an admission shows what was given so far: CPUs without memory, say, and the whole a
moment later. So only the second of two equal reads of a pod counts. What two looks of an exporter at its kubelet have
in common lasts.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from kaicore.errors import InvalidObject
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.events.observation import charging, content_digest, observation, prediction_missed, zones_of
from kaicore.rules.events.payloads import PlacementObserved, PredictionMissed
from kaicore.rules.model.placement import Placement, Provenance
from kaicore.rules.state.pods.agreement import MissCause, contradiction, falls_short

from kai_ingest.known_pod import KnownPod, Miss, Unresolved, is_empty, reported_placement
from kai_ingest.projection import IngestProjection
from kai_ingest.reports import Report, Unaccepted, read_pod

#: How many pods are remembered.
_KEPT = 10_000


class EqualReads:
    """The last read of each pod that has to be read again."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[bytes, int]] = OrderedDict()

    def again(self, uid: str, content: bytes, *, at: int) -> bool:
        """Tell whether the same was read before, and remember it for the next time.

        Args:
            uid: the pod's uid.
            content: digest of what was read.
            at: when, by the node's clock; a report that is sent twice is one read.
        """
        before = self._last.get(uid)
        if before is not None and before[0] == content:
            return before[1] < at
        self._last[uid] = content, at
        self._last.move_to_end(uid)
        if len(self._last) > _KEPT:
            self._last.popitem(last=False)
        return False

    def settled(self, uid: str) -> None:
        """Forget a pod: what it holds is no question any more."""
        self._last.pop(uid, None)


_NOTHING_PREDICTED = Placement(Provenance.PREDICTED)


@dataclass(slots=True)
class News:
    """An observation to append.

    Attributes:
        pod: the pod's name.
        event: the observation.
        first: it is the pod's first.
        miss: the prediction that it contradicts.
        charges: it changes what the pod's node is accounted to hold.
        version: of the pod's stream, up to which the pod was known.
    """

    pod: KnownPod
    event: NewEvent
    first: bool
    charges: bool
    version: int
    miss: NewEvent | None = None

    def unit(self, *, charges: bool) -> Unit:
        """Return what to append: one that does not charge the node only holds while the pod's stream stands still."""
        events = (self.event,) if self.miss is None else (self.event, self.miss)
        if charges:
            return charging(Unit(events), self.pod.node, pods=(self.pod.uid,))
        return Unit(events, expect={f"pod/{self.pod.uid}": self.version})


@dataclass(slots=True)
class Judged:
    """A report and what follows from it."""

    report: Report
    news: list[News] = field(default_factory=list)
    unknown: list[Unaccepted] = field(default_factory=list)
    refused: list[Unaccepted] = field(default_factory=list)
    again: list[Unaccepted] = field(default_factory=list)
    missed: list[NewEvent] = field(default_factory=list)
    unchanged: int = 0


class Judge:
    """Judges by what ingest knows of a cluster, and by what was said before."""

    def __init__(self, projection: IngestProjection, cluster: str) -> None:
        """Args:
        projection: what is known.
        cluster: the name of the cluster.
        """
        self._projection = projection
        self._cluster = cluster
        self._reads = EqualReads()

    def pod(self, value: object, report: Report, judged: Judged, seen: set[tuple[str, str]]) -> None:
        """Judge one pod of a report.

        Args:
            value: as reported.
            report: the report.
            judged: what follows is added to it.
            seen: the pods of the report so far, by namespace and name.

        Raises:
            InvalidObject: something impossible is said of it.
            Unresolved: it is not known, or not yet.
        """
        pod = read_pod(value, node=report.node)
        key = (pod.namespace, pod.name)
        if key in seen:
            raise InvalidObject(f"report of Node {report.node}", "pods", "/".join(key), "this pod is named twice")
        seen.add(key)
        known_pod = self._projection.resolve(
            pod.namespace, pod.name, node=report.node, uid=pod.uid, observed_at=report.observed_at
        )
        placement = reported_placement(pod)
        self._projection.check_zones(known_pod, zones_of(placement))
        cause = self._contradicts(known_pod, placement)
        if cause is None:
            self._reads.settled(known_pod.uid)
            lasts = True
        else:
            lasts = self._reads.again(known_pod.uid, content_digest(placement), at=report.observed_at)
        news = not self._says_nothing_new(known_pod, placement)
        if (
            cause is not None
            and news
            and not lasts
            and falls_short(known_pod.predicted or _NOTHING_PREDICTED, placement)
        ):
            problem = "less than was predicted: half of an admission, or to be read once more"
            raise Unresolved(Miss.HALF, f"Pod {known_pod.subject}: containers: {problem}")
        certain = lasts or pod.checked
        if cause is not None and not certain:
            judged.again.append(Unaccepted(pod.namespace, pod.name, "not as predicted: to be read once more"))
        if not news:
            judged.unchanged += 1
            if cause is not None and certain and known_pod.record is not None:
                missed = self._missed(known_pod, placement, cause)
                judged.missed.append(
                    prediction_missed(missed, follows=known_pod.record.id, occurred_at=report.observed_at)
                )
            return
        self._projection.check_held(known_pod, placement)
        observed = self.news(known_pod, placement, "exporter", occurred_at=report.observed_at)
        if cause is not None and certain:
            missed = self._missed(known_pod, placement, cause)
            observed.miss = prediction_missed(missed, follows=observed.event.id, occurred_at=report.observed_at)
        judged.news.append(observed)

    def _says_nothing_new(self, known_pod: KnownPod, placement: Placement) -> bool:
        if known_pod.record is None:
            # That a pod holds nothing is news only where it was thought to hold something.
            return is_empty(placement) and known_pod.predicted is None
        return known_pod.record.exporter and known_pod.record.content == content_digest(placement)

    def news(self, pod: KnownPod, placement: Placement, source: str, *, occurred_at: int) -> News:
        """Return an observation as it is to be appended.

        Args:
            pod: the pod's name.
            placement: what it holds.
            source: as in `PlacementObserved`.
            occurred_at: when it was seen, microseconds since the epoch.
        """
        event = observation(
            self._cluster,
            PlacementObserved(pod.uid, pod.namespace, pod.name, pod.node, placement, source),
            previous=pod.record.id if pod.record is not None else None,
            occurred_at=occurred_at,
            cause=pod.cause if source == "annotation" else None,
        )
        return News(
            pod,
            event,
            first=pod.record is None,
            charges=self._projection.charges(pod, placement),
            version=pod.version,
        )

    def _contradicts(self, pod: KnownPod, placement: Placement) -> MissCause | None:
        """The contradiction of an exporter's observation and the prediction; None without one or if recorded."""
        if not pod.placed or pod.missed:
            return None
        return contradiction(pod.predicted or _NOTHING_PREDICTED, placement)

    def _missed(self, pod: KnownPod, placement: Placement, cause: MissCause) -> PredictionMissed:
        policy = self._projection.policy(pod.node)
        return PredictionMissed(pod.uid, pod.namespace, pod.name, pod.node, policy, cause, pod.predicted, placement)
