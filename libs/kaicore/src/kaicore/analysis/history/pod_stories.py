"""The course of each pod, from events: the same rule for the recorded history and for a simulated one."""

from dataclasses import dataclass
from enum import StrEnum

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.pod import Pod, is_kubelet_rejection
from kaicore.rules.queues.resources import GPU, counted
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import PodEntry, Stage


class StoryEnd(StrEnum):
    """How a pod's story ended.

    Attributes:
        OPEN: it has not, as far as the window goes.
        FINISHED: it succeeded or failed by itself.
        REJECTED: its kubelet refused it.
        EVICTED: a cycle decided so.
        LOST: its node went, or was not ready, before it did.
        DELETED: somebody else deleted it.
    """

    OPEN = "open"
    FINISHED = "finished"
    REJECTED = "rejected"
    EVICTED = "evicted"
    LOST = "lost"
    DELETED = "deleted"


@dataclass(slots=True)
class PodStory:
    """One pod; times are recorded times in microseconds since the epoch, 0 for what has not happened.

    Attributes:
        pod: as it was when it came, or when the window began; afterwards only what its owner may change of it.
        group: key of its group.
        queue: the one that its group names, or `namespace/` and its namespace where it names none.
        gpus: that it asks for.
        node: where it was placed last.
        placed_at: the time of the state on which that was decided.
        ended_at: when it was known to end: finished, rejected, or about to be deleted.
        gone_at: when the API server had it no more.
        succeeded: whether it finished well.
        deciding: a cycle decided to evict it, and the eviction has not failed.
        grace_us: from its deletion to its end, for one that was deleted while it ran.
    """

    pod: Pod
    created_at: int
    group: str = ""
    queue: str = ""
    gpus: int = 0
    node: str = ""
    placed_at: int = 0
    bound_at: int = 0
    running_at: int = 0
    observed_at: int = 0
    evicted_at: int = 0
    ended_at: int = 0
    gone_at: int = 0
    end: StoryEnd = StoryEnd.OPEN
    succeeded: bool = False
    deciding: bool = False
    grace_us: int = 0

    @property
    def ran_us(self) -> int:
        """How long it ran, as far as it is over."""
        began = self.running_at or self.bound_at
        return max(self.ended_at - began, 0) if began and self.ended_at else 0


class PodStories:
    """Takes a cluster's events in order, each after it was folded."""

    def __init__(self, state: ClusterState) -> None:
        """Begin with the pods that a state has.

        Args:
            state: folded on by the caller.
        """
        self.by_uid: dict[str, PodStory] = {}
        self._state = state
        for uid in sorted(state.pods):
            self._begin(state.pods[uid])

    def _begin(self, entry: PodEntry) -> None:
        pod = entry.pod
        story = self.by_uid[pod.uid] = PodStory(pod, pod.created_at * 1_000_000, node=entry.node)
        self._file(story, entry)
        if entry.charged:
            story.placed_at = entry.placed_at
            story.bound_at = entry.placed_at if entry.stage is Stage.BOUND else 0
            story.running_at = pod.start_time * 1_000_000 or entry.started_at
            story.deciding = entry.evicting or entry.repairing
            if pod.deletion_at is not None:
                self._deleted(story, at=pod.deletion_at * 1_000_000)
        elif entry.stage is Stage.FINISHED:
            story.end = StoryEnd.REJECTED if entry.rejection is not None else StoryEnd.FINISHED
            story.ended_at = self._state.recorded_at

    def take(self, payload: Payload, *, at: int) -> None:
        """Take an event in.

        Args:
            payload: of the event.
            at: when it was recorded, microseconds since the epoch.
        """
        match payload:
            case payloads.PodObserved(pod):
                self._seen(pod, at)
            case payloads.PodDeleted(uid=uid):
                self._gone(uid, at)
            case payloads.PodRejected(uid=uid):
                self._end(uid, StoryEnd.REJECTED, at)
            case payloads.PodPlaced(uid=uid, node=node):
                if story := self.by_uid.get(uid):
                    story.node, story.placed_at = node, at
            case payloads.PodBound(uid=uid, node=node):
                if story := self.by_uid.get(uid):
                    story.node, story.bound_at = node, at
            case payloads.PlacementObserved(uid=uid):
                if (story := self.by_uid.get(uid)) and not story.observed_at:
                    story.observed_at = at
            case payloads.EvictionDecided(uid=uid) | payloads.HealRequested(uid=uid):
                if story := self.by_uid.get(uid):
                    story.deciding = True
            case payloads.PodEvicted(uid=uid):
                if story := self.by_uid.get(uid):
                    story.deciding, story.evicted_at = True, at
            case payloads.EvictionFailed(uid=uid):
                if story := self.by_uid.get(uid):
                    story.deciding = False
            case _:
                pass

    def _seen(self, pod: Pod, at: int) -> None:
        story = self.by_uid.get(pod.uid)
        if story is None:
            story = self.by_uid[pod.uid] = PodStory(pod, at)
        elif not story.node:
            story.pod = pod
        entry = self._state.pods.get(pod.uid)
        if entry is not None:
            self._file(story, entry)
        if pod.node_name:
            story.node = pod.node_name
            story.bound_at = story.bound_at or at
        if pod.phase == "Running":
            story.running_at = story.running_at or at
        if pod.deletion_at is not None:
            self._deleted(story, at=at)
        if pod.finished:
            story.succeeded = pod.phase == "Succeeded"
            self._over(story, at)
            self._end(pod.uid, StoryEnd.REJECTED if is_kubelet_rejection(pod) else StoryEnd.FINISHED, at)

    def _file(self, story: PodStory, entry: PodEntry) -> None:
        queue, namespace = self._state.queue_of(entry)
        story.group, story.queue = entry.group, queue or f"namespace/{namespace}"
        story.gpus = counted(entry.requests).get(GPU, 0)

    def _deleted(self, story: PodStory, *, at: int) -> None:
        if story.end is not StoryEnd.OPEN:
            return
        if story.deciding:
            story.end = StoryEnd.EVICTED
        else:
            story.end = StoryEnd.LOST if story.node and not self._is_well(story.node) else StoryEnd.DELETED
        story.ended_at = at

    def _is_well(self, node: str) -> bool:
        row = self._state.columns.rows.get(node)
        fact = None if row is None else self._state.columns.facts[row]
        return fact is not None and fact.ready

    def _over(self, story: PodStory, at: int) -> None:
        """A pod that was being deleted holds nothing any more."""
        if story.end in (StoryEnd.EVICTED, StoryEnd.LOST, StoryEnd.DELETED) and not story.grace_us:
            story.grace_us = at - story.ended_at

    def _gone(self, uid: str, at: int) -> None:
        story = self.by_uid.get(uid)
        if story is not None and not story.gone_at:
            self._deleted(story, at=at)
            self._over(story, at)
            story.gone_at = at

    def _end(self, uid: str, end: StoryEnd, at: int) -> None:
        story = self.by_uid.get(uid)
        if story is not None and story.end is StoryEnd.OPEN:
            story.end, story.ended_at = end, at
