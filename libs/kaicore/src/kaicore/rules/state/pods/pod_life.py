"""The life of one pod as its events say it: the one fold that stories, timelines, traces and statistics render.

It needs no state of the cluster, so it works on a part of a log as well. On a whole log it agrees with the pod's entry
in the state (`kaicore.rules.state.pods.transitions`) on the node and on waiting; a test compares both event by event.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Pod, is_kubelet_rejection


class LifeStage(StrEnum):
    """A pod's status.

    Attributes:
        WAITING: it has no node.
        PLACED: a cycle chose its node.
        BOUND: the API server has its node.
        RUNNING: it was seen running.
        LEAVING: it is being deleted, or its eviction was decided and has not failed.
        ENDED: it succeeded.
        FAILED: it failed, or a kubelet rejected it.
        GONE: the API server has it no more.
    """

    WAITING = "waiting"
    PLACED = "placed"
    BOUND = "bound"
    RUNNING = "running"
    LEAVING = "leaving"
    ENDED = "ended"
    FAILED = "failed"
    GONE = "gone"


class LifeEvent(StrEnum):
    """The part of an event in a pod's life; a `PodObserved` is one of the first four, each of which comes once.

    Attributes:
        SEEN: the pod was seen for the first time.
        STARTED: it was first seen running.
        LEAVING: its deletion was first seen.
        FINISHED: it was first seen succeeded or failed, other than by a kubelet's rejection.
        REJECTED: a kubelet rejected it; the watcher records that with the status that shows it.
    """

    SEEN = "seen"
    STARTED = "started"
    LEAVING = "leaving"
    FINISHED = "finished"
    REJECTED = "rejected"
    PLACED = "placed"
    NOMINATED = "nominated"
    BOUND = "bound"
    BIND_FAILED = "bind failed"
    OBSERVED = "observed"
    EVICTION_DECIDED = "eviction decided"
    EVICTED = "evicted"
    EVICTION_FAILED = "eviction failed"
    DELETED = "deleted"


def is_waiting(pod: Pod, *, unplaced: bool, vanished: bool) -> bool:
    """Return whether a cycle may place a pod, now or later; all that counts or lists waiting pods means this.

    Args:
        unplaced: it is there, and has neither a node nor an end.
        vanished: the API server does not have it, as a failed bind reported.
    """
    return unplaced and not vanished and pod.deletion_at is None


@dataclass(slots=True, kw_only=True)
class PodLife:
    """One pod's life up to an event; times are recorded times in microseconds since the epoch, 0 for none.

    Attributes:
        seen: the pod as it was seen last; None before the first time.
        node: where it is placed or bound, or was when it ended.
        bound: the API server has its node.
        predicted: the zones that the cycle which placed it predicted.
        nominated: the node of the last nomination.
        waits_since: position of the event with which it began to wait as it does now; 0 while it does not wait.
        evicting: its eviction was decided or done, and has not failed.
        rejected: a kubelet rejected it.
        vanished: the API server does not have it, as a failed bind reported.
        running_at: when it was first seen running.
        placed_at: when it was last placed.
        bound_at: when it was bound, or first seen on a node.
        observed_at: when its zones were first observed.
        evicted_at: when the API server took its last eviction.
        finished_at: when it was first known to have succeeded, failed or been rejected.
    """

    seen: Pod | None = None
    node: str = ""
    bound: bool = False
    predicted: Placement | None = None
    nominated: str = ""
    waits_since: int = 0
    evicting: bool = False
    rejected: bool = False
    vanished: bool = False
    placed_at: int = 0
    bound_at: int = 0
    running_at: int = 0
    observed_at: int = 0
    evicted_at: int = 0
    finished_at: int = 0
    gone_at: int = 0

    @property
    def leaving(self) -> bool:
        """True if it is being deleted or evicted."""
        return self.evicting or (self.seen is not None and self.seen.deletion_at is not None)

    @property
    def waiting(self) -> bool:
        """See `is_waiting`."""
        unplaced = not (self.node or self.finished_at or self.gone_at)
        return self.seen is not None and is_waiting(self.seen, unplaced=unplaced, vanished=self.vanished)

    @property
    def stage(self) -> LifeStage:
        """The pod's status."""
        if self.gone_at:
            return LifeStage.GONE
        if self.finished_at:
            succeeded = self.seen is not None and self.seen.phase == "Succeeded"
            return LifeStage.ENDED if succeeded else LifeStage.FAILED
        if self.leaving:
            return LifeStage.LEAVING
        if self.running_at:
            return LifeStage.RUNNING
        if self.bound:
            return LifeStage.BOUND
        return LifeStage.PLACED if self.node else LifeStage.WAITING

    def take(self, payload: payloads.Payload, *, at: int, position: int = 0) -> LifeEvent | None:
        """Take in an event of the pod; return its part in the pod's life, None for one that has none.

        Args:
            at: when it was recorded, microseconds since the epoch.
        """
        part = self._apply(payload, at)
        if not self.waiting:
            self.waits_since = 0
        elif not self.waits_since:
            self.waits_since = position
        return part

    def _apply(self, payload: payloads.Payload, at: int) -> LifeEvent | None:
        match payload:
            case payloads.PodObserved(pod):
                return self._see(pod, at)
            case payloads.PodPlaced(node=node, placement=placement):
                self.node, self.predicted, self.placed_at = node, placement, at
            case payloads.PodNominated(node=node):
                self.nominated = node
            case payloads.PodBound(node=node):
                self.node, self.bound, self.bound_at = node, True, at
            case payloads.BindFailed(node=node, gone=gone):
                if node == self.node and not self.bound:
                    self.node, self.predicted, self.vanished = "", None, gone
            case payloads.PlacementObserved():
                self.observed_at = self.observed_at or at
            case payloads.PodRejected(node=node):
                self.node, self.rejected = node, True
                self.finished_at = self.finished_at or at
            case payloads.EvictionDecided() | payloads.RepairRequested():
                self.evicting = True
            case payloads.PodEvicted():
                self.evicting, self.evicted_at = True, at
            case payloads.EvictionFailed():
                self.evicting = False
            case payloads.PodDeleted():
                self.gone_at = self.gone_at or at
            case _:
                pass
        return _PARTS.get(type(payload))

    def _see(self, pod: Pod, at: int) -> LifeEvent | None:
        before, self.seen = self.seen, pod
        if pod.node_name:
            self.node, self.bound, self.bound_at = pod.node_name, True, self.bound_at or at
        if pod.finished:
            if self.finished_at:
                return None
            self.finished_at, self.rejected = at, is_kubelet_rejection(pod)
            return None if self.rejected else LifeEvent.FINISHED
        if pod.phase == "Running" and not self.running_at:
            self.running_at = at
            return LifeEvent.STARTED
        if before is None:
            return LifeEvent.SEEN
        return LifeEvent.LEAVING if pod.deletion_at is not None and before.deletion_at is None else None


_PARTS: dict[type[payloads.Payload], LifeEvent] = {
    payloads.PodPlaced: LifeEvent.PLACED,
    payloads.PodNominated: LifeEvent.NOMINATED,
    payloads.PodBound: LifeEvent.BOUND,
    payloads.BindFailed: LifeEvent.BIND_FAILED,
    payloads.PlacementObserved: LifeEvent.OBSERVED,
    payloads.PodRejected: LifeEvent.REJECTED,
    payloads.EvictionDecided: LifeEvent.EVICTION_DECIDED,
    payloads.RepairRequested: LifeEvent.EVICTION_DECIDED,
    payloads.PodEvicted: LifeEvent.EVICTED,
    payloads.EvictionFailed: LifeEvent.EVICTION_FAILED,
    payloads.PodDeleted: LifeEvent.DELETED,
}


class LifeStep(NamedTuple):
    """An event with its part in the life of its pod, and that life after it."""

    event: Event
    payload: payloads.Payload
    part: LifeEvent | None
    life: PodLife


def life_steps(events: Iterable[Event]) -> Iterator[LifeStep]:
    """Yield each event of pods' streams with its pod's life; the lives are changed by the events that follow."""
    lives: dict[str, PodLife] = {}
    for event in events:
        payload = decode_payload(event)
        life = lives.setdefault(event.stream, PodLife())
        part = life.take(payload, at=event.recorded_at, position=event.position)
        yield LifeStep(event, payload, part, life)
