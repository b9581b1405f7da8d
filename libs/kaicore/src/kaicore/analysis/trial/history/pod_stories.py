"""Each pod's life in a window, and its end: the same rule for the recorded history and for a simulated one."""

from dataclasses import dataclass, field
from enum import StrEnum

from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.pods.pod_entry import PodEntry, Stage, gpus_asked
from kaicore.rules.state.pods.pod_life import LifeEvent, PodLife
from kaicore.rules.state.views import FleetView


class StoryEnd(StrEnum):
    """The end of a pod's story.

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
class PodStory(PodLife):
    """One pod's life in a window; times are recorded times in microseconds since the epoch, 0 for none.

    Attributes:
        pod: as it was when it came, or when the window began; afterwards only what its owner may change of it.
        group: key of its group.
        queue: the one that its group names, or `namespace/` and its namespace where it names none.
        gpus: that it asks for, with parts of GPUs that are shared (`capacity.gpus_asked`).
        placed_at: the time of the state on which that was decided.
        ended_at: when it was known to end: finished, rejected, or about to be deleted.
        succeeded: whether it finished well.
        grace_us: from its deletion to its end, for one that was deleted while it ran.
        checkpoints_us: how long it had run when it wrote each of its checkpoints, in order.
    """

    pod: Pod
    created_at: int
    group: str = ""
    queue: str = ""
    gpus: float = 0
    ended_at: int = 0
    end: StoryEnd = StoryEnd.OPEN
    succeeded: bool = False
    grace_us: int = 0
    checkpoints_us: list[int] = field(default_factory=list)

    @property
    def ran_us(self) -> int:
        """The run time of the pod, as far as it is over."""
        began = self.running_at or self.bound_at
        return max(self.ended_at - began, 0) if began and self.ended_at else 0

    @property
    def unsaved_us(self) -> int:
        """The time from its last checkpoint, or from its start, to its end; 0 if it has not run or not ended."""
        if not self.running_at or not self.ended_at:
            return 0
        return max(self.ended_at - self.running_at - max(self.checkpoints_us, default=0), 0)

    @property
    def lost_gpu_us(self) -> float:
        """Work that its eviction lost, microseconds times its GPUs."""
        return self.gpus * self.unsaved_us if self.end is StoryEnd.EVICTED else 0


class PodStories:
    """Takes a cluster's events in order, each after it was folded."""

    def __init__(self, state: FleetView) -> None:
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
        story = self.by_uid[pod.uid] = PodStory(pod, pod.created_at * 1_000_000, seen=pod, node=entry.node)
        self._file(story, entry)
        if entry.charged:
            story.placed_at, story.bound = entry.placed_at, entry.stage is Stage.BOUND
            story.bound_at = entry.placed_at if story.bound else 0
            story.running_at = pod.start_time * 1_000_000 or entry.started_at
            story.evicting = entry.evicting or entry.repairing
            if pod.deletion_at is not None:
                self._deleted(story, at=pod.deletion_at * 1_000_000)
        elif entry.stage is Stage.FINISHED:
            story.end = StoryEnd.REJECTED if entry.rejection is not None else StoryEnd.FINISHED
            story.ended_at = story.finished_at = self._state.recorded_at

    def take(self, payload: Payload, *, at: int) -> None:
        """Take an event in.

        Args:
            at: when it was recorded, microseconds since the epoch.
        """
        pod = payload.pod if isinstance(payload, payloads.PodObserved) else None
        story = self.by_uid.get(getattr(payload, "uid", "") if pod is None else pod.uid)
        if story is None and pod is not None:
            story = self.by_uid[pod.uid] = PodStory(pod, at)
        if story is None:
            return
        if pod is not None and not story.node:
            story.pod = pod
        part = story.take(payload, at=at)
        if pod is not None:
            self._seen(story, pod, at)
        elif part is LifeEvent.REJECTED:
            self._end(story, StoryEnd.REJECTED, at)
        elif part is LifeEvent.DELETED:
            self._deleted(story, at=at)
            self._over(story, at)

    def _seen(self, story: PodStory, pod: Pod, at: int) -> None:
        entry = self._state.pods.get(pod.uid)
        if entry is not None:
            self._file(story, entry)
        written_us = pod.checkpoint_at * 1_000_000 - story.running_at
        if story.running_at and written_us > max(story.checkpoints_us, default=0):
            story.checkpoints_us.append(written_us)
        if pod.deletion_at is not None:
            self._deleted(story, at=at)
        if pod.finished:
            story.succeeded = pod.phase == "Succeeded"
            self._over(story, at)
            self._end(story, StoryEnd.REJECTED if story.rejected else StoryEnd.FINISHED, at)

    def _file(self, story: PodStory, entry: PodEntry) -> None:
        queue, namespace = self._state.queue_of(entry)
        story.group, story.queue = entry.group, queue or f"namespace/{namespace}"
        if entry.gpus or not story.gpus:
            story.gpus = gpus_asked(entry) / WHOLE

    def _deleted(self, story: PodStory, *, at: int) -> None:
        if story.end is not StoryEnd.OPEN:
            return
        if story.evicting:
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

    @staticmethod
    def _end(story: PodStory, end: StoryEnd, at: int) -> None:
        if story.end is StoryEnd.OPEN:
            story.end, story.ended_at = end, at
