"""Causes of placements that were observed otherwise than predicted. Some causes are known only seconds later.

A kubelet may be ahead of the API server: that shows when the API server reports the end of the pods that held the
zones. A report may show half of an admission: that shows when the whole is reported. So a miss stays open for a while,
and is counted under one cause in the end.
"""

from collections.abc import Iterable, Mapping

import msgspec

from kaicore.rules.events.payloads import PredictionMissed
from kaicore.rules.state.charges.early_release import EarlyReleases, Explanation, KubeletAdmission
from kaicore.rules.state.counters import Counters
from kaicore.rules.state.pods.agreement import NO_FAULT, MissCause, contradiction
from kaicore.rules.state.pods.pod_entry import PodEntry

#: The time after a miss in which later events may explain it, microseconds.
OPEN_US = 5_000_000

#: After so long, what is less likely is tried as well, microseconds: nothing likelier came.
_LAST_RESORT_US = 4_000_000

#: Causes by which pods that came later are elsewhere as well.
_FOLLOWED = (NO_FAULT - {MissCause.HALF_READ}) | {MissCause.INIT_KEPT}

#: Explanations that are kept, for pods that are gone as well.
_MOST_KEPT = 1000


class OpenMiss(msgspec.Struct, frozen=True):
    """A miss without a certain cause yet.

    Attributes:
        at: position of its event.
        recorded_at: when that was, microseconds since the epoch.
        admission: of its pod, once that has ended: its explanation may come only then.
    """

    uid: str
    node: str
    policy: str
    cause: str
    at: int
    recorded_at: int
    admission: KubeletAdmission | None = None


class ExplainedMiss(msgspec.Struct, frozen=True):
    """A miss and its cause.

    Attributes:
        at: position of its event.
        charged_at: as the pod's entry has it, 0 where that was gone.
        released: pods that the kubelet had released before the API server reported their end.
    """

    uid: str
    node: str
    cause: str
    at: int
    charged_at: int = 0
    released: tuple[str, ...] = ()


class PredictionMisses:
    """Open misses, and the last explained ones, by uid of the pod."""

    def __init__(self, pods: Mapping[str, PodEntry], early_releases: EarlyReleases, counters: Counters) -> None:
        self.open: dict[str, OpenMiss] = {}
        self.explained: dict[str, ExplainedMiss] = {}
        self._pods = pods
        self._early_releases = early_releases
        self._counters = counters

    def take(self, missed: PredictionMissed, *, at: int, now: int) -> None:
        """Take in a miss. A rejection explains itself; an observation is explained as soon as the log has the reason.

        Args:
            missed: the miss; what the pod really holds has an event of its own.
            now: when that was recorded, microseconds since the epoch.
        """
        if missed.observed is None:
            self._counters.missed_on(missed.node, missed.policy, missed.cause)
            return
        self.open[missed.uid] = OpenMiss(missed.uid, missed.node, missed.policy, missed.cause, at, now)
        self._explain_on(missed.node)

    def update(self, entry: PodEntry, node: str, *, ended: bool) -> None:
        """Follow the end of a pod, or its observation: it may tell why placements on its node are not as predicted.

        Args:
            node: to which it is charged, or was until it ended.
            ended: it ended; what it got there is kept in mind.
        """
        if not self.open:
            return
        if ended and (miss := self.open.get(entry.pod.uid)) is not None:
            admission = self._early_releases.admission(entry, node)
            self.open[miss.uid] = msgspec.structs.replace(miss, admission=admission)
        self._explain_on(node)

    def _explain_on(self, node: str) -> None:
        """Find out why placements on a node are not as predicted, by what the log has had since."""
        for miss in self._open_on(node):
            admission = miss.admission or self._admission(miss.uid)
            if admission is None:
                continue
            if admission.predicted is not None and not contradiction(admission.predicted, admission.observed):
                self._close(miss, MissCause.HALF_READ)
            else:
                self._close_if_explained(miss, admission, self._early_releases.explain(admission))

    def _open_on(self, node: str) -> list[OpenMiss]:
        return sorted((miss for miss in self.open.values() if miss.node == node), key=lambda miss: (miss.at, miss.uid))

    def _close_if_explained(self, miss: OpenMiss, admission: KubeletAdmission, explanation: Explanation | None) -> None:
        if explanation is None or (explanation.but_init and miss.cause == MissCause.INIT_KEPT):
            return
        if explanation.released:
            self._close(miss, MissCause.RELEASED_EARLIER, explanation.released)
        elif explanation.by_age:
            self._close(miss, MissCause.OLDEST_FIRST)
        elif others := [other for other in self._before(admission) if other.cause in _FOLLOWED]:
            # The others are elsewhere than predicted, and this one for the same reason.
            self._close(miss, others[-1].cause, others[-1].released)
        elif admission.predicted is not None and any(one.uncertain for one in admission.predicted.containers):
            # The prediction itself says that it was open where others are.
            self._close(miss, MissCause.NOT_OBSERVED_YET)
        elif explanation.but_init:
            self._close(miss, MissCause.INIT_KEPT)

    def _admission(self, uid: str) -> KubeletAdmission | None:
        entry = self._pods.get(uid)
        if entry is None or not entry.charged:
            return None
        return self._early_releases.admission(entry, entry.node)

    def expire(self, now: int) -> None:
        """Close the open misses that nothing will explain any more, with the cause that was recorded."""
        due = [miss for miss in self.open.values() if miss.recorded_at + OPEN_US <= now]
        for node in sorted({miss.node for miss in due}):
            old = [miss for miss in self._open_on(node) if miss.recorded_at + _LAST_RESORT_US <= now]
            for miss in old:
                admission = miss.admission or self._admission(miss.uid)
                if admission is not None:
                    explanation = self._early_releases.explain(admission, last_resort=True)
                    self._close_if_explained(miss, admission, explanation)
            for miss in old:
                # Pods after it may be elsewhere for that reason.
                if miss.cause == MissCause.INIT_KEPT and miss.uid in self.open:
                    self._close(miss, miss.cause)
            self._explain_on(node)
        for miss in due:
            if miss.uid in self.open:
                self._close(miss, miss.cause)

    def restore(self, open_: Iterable[OpenMiss], explained: Iterable[ExplainedMiss]) -> None:
        """Put back what a snapshot has."""
        self.open = {miss.uid: miss for miss in open_}
        self.explained = {miss.uid: miss for miss in explained}

    def _close(self, miss: OpenMiss, cause: str, released: tuple[str, ...] = ()) -> None:
        admission = miss.admission or self._admission(miss.uid)
        charged_at = admission.charged_at if admission is not None else 0
        del self.open[miss.uid]
        self.explained.pop(miss.uid, None)
        self.explained[miss.uid] = ExplainedMiss(miss.uid, miss.node, cause, miss.at, charged_at, released)
        if len(self.explained) > _MOST_KEPT:
            del self.explained[next(iter(self.explained))]
        self._counters.missed_on(miss.node, miss.policy, cause)

    def _before(self, admission: KubeletAdmission) -> list[ExplainedMiss]:
        """Return the explained misses of pods that came to a node before another, known after that was decided on."""
        return [
            miss
            for miss in self.explained.values()
            if miss.node == admission.node
            and 0 < miss.charged_at < admission.charged_at
            and miss.at > admission.decided_at
        ]
