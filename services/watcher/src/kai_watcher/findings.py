"""Findings in watched objects: invalid parts, reported once for each object, and the age of topologies.

Lines that were already logged about each object: a line is logged again only when it differs.
"""

from collections.abc import Sequence

from kaicore.errors import InvalidObject
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectKey, ObjectSeen
from kaicore.kube.kinds.kind import Kind
from kaicore.kube.kinds.table import POD, TOPOLOGY
from kaicore.kube.normalize.fields import changed_at
from kaicore.kube.normalize.node import zone_usage
from kaicore.kube.wire.objects import TopologyObject
from kaicore.kube.wire.resources import ObjectT
from kaicore.rules.events.envelope import Unit
from kaicore.rules.events.payloads import PodDeleted, PodObserved
from kaicore.rules.numa.own_policy import malformed_annotations
from kaicore.runtime.service.logs import Logger

from kai_watcher.metrics import WatcherMetrics


class ReportedLines:
    """Remembers what was last said of each object of each kind."""

    def __init__(self) -> None:
        self._said: dict[tuple[str, ObjectKey], tuple[str, ...]] = {}

    def news(self, kind: str, key: ObjectKey, lines: tuple[str, ...]) -> tuple[str, ...]:
        """Return those lines that were not said of an object when last something was said of it."""
        before = self._said.get((kind, key), ())
        if lines:
            self._said[kind, key] = lines
        else:
            self.forget(kind, key)
        return tuple(line for line in lines if line not in before)

    def forget(self, kind: str, key: ObjectKey) -> None:
        """Take note that an object is gone."""
        self._said.pop((kind, key), None)


class Findings:
    """Logs and counts what is found."""

    def __init__(self, metrics: WatcherMetrics, log: Logger) -> None:
        """Args:
        metrics: to count with.
        log: to say it in.
        """
        self._metrics = metrics
        self._log = log
        #: What was said of pods' annotations, by uid.
        self._malformed: dict[str, tuple[str, ...]] = {}
        self._lost_parts = ReportedLines()

    def refused(self, kind: Kind[ObjectT], error: InvalidObject) -> None:
        """Take note of an object that makes no sense as a whole."""
        self._metrics.refused(kind.name)
        self._log.warning("object refused", kind=kind.name, error=str(error))

    def read(self, kind: Kind[ObjectT], change: Change[ObjectT], lost: Sequence[InvalidObject], *, now: int) -> None:
        """Take note of a change, and of the parts of its object that make no sense and were left out.

        Args:
            kind: the object's.
            change: what happened to the object.
            lost: an error for each part.
            now: microseconds since the epoch.
        """
        if isinstance(change, ObjectGone):
            self._lost_parts.forget(kind.name, change.key)
        elif isinstance(change, ObjectSeen):
            metadata = change.object.metadata
            key = ObjectKey(metadata.namespace, metadata.name)
            for line in self._lost_parts.news(kind.name, key, tuple(map(str, lost))):
                self._metrics.lost_part(kind.name)
                self._log.warning("part of an object left out", kind=kind.name, error=line)
        if kind.name == TOPOLOGY.name:
            self._topology(change, now)

    def recorded(self, unit: Unit) -> None:
        """Take note of what makes no sense in a pod's fact; what comes of it the scheduler tells."""
        match unit.events[0].payload:
            case PodObserved(pod):
                self._metrics.topology_lag.pod(pod)
                problems = tuple(malformed_annotations(pod))
                malformed = (*filter(None, [pod.malformed]), *map(str, problems))
                if malformed and malformed != self._malformed.get(pod.uid):
                    self._malformed[pod.uid] = malformed
                    if pod.malformed:
                        self._metrics.refused(POD.name)
                        self._log.warning("malformed pod", pod=pod.subject, error=pod.malformed)
                    for error in problems:
                        self._metrics.malformed(error.field)
                        self._log.warning("malformed annotation", error=str(error))
            case PodDeleted(uid):
                self._metrics.topology_lag.pod_gone(uid)
                self._malformed.pop(uid, None)
            case _:
                pass

    def _topology(self, change: Change[ObjectT], now: int) -> None:
        if isinstance(change, ObjectSeen) and isinstance(change.object, TopologyObject):
            meta = change.object.metadata
            used = zone_usage(change.object)
            self._metrics.topology_ages.changed(meta.name, (changed_at(meta) or now) / 1e6, used)
        elif isinstance(change, ObjectGone):
            self._metrics.topology_ages.gone(change.key.name)
