"""One node's kubelet loop, without I/O: pods come in, instructions come out. Time is an input, in seconds of Unix time.

Pods are decided on strictly in the order in which they came. A pod's stages:

    waiting ─▶ admitted ─▶ starting ─▶ running ─▶ ended
        └────▶ rejected        └──────────┴─────▶ stopping ─▶ stopped ─▶ gone

A pod that is ended or stopped holds nothing any more; the API hears of it after a while (`lag`).

Lag of the API and podresources behind a kubelet's managers, as on real nodes.

`docs/reference/fleet.md` has the figures, under "Lag".
"""

import hashlib
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kaicore.errors import InvalidObject

from kai_fleet.kubelet import Kubelet, Rejection
from kai_fleet.node.pod_conversion import PodObject, convert_pod
from kai_fleet.node.pod_status import StatusWriter
from kai_fleet.node.tracked_pod import ACTIVE, FAILS_AT_ONCE, OVER, Stage, TrackedPod, fate_of
from kai_fleet.profiles.nodes import NodeSpec
from kai_fleet.profiles.profile import LagProfile


@dataclass(slots=True)
class Lag:
    """The lag of one node, in seconds; it may be changed while the node runs.

    How late something is about a pod depends on the profile's `seed` and the pod's name alone: a run can be repeated.

    Attributes:
        status_s: the API hears up to so much later of an end than the managers, which free at once.
        podresources_s: for up to so long after an admission, podresources shows half of it.
        sync_s: pods that arrive within so long of the first are admitted together, oldest first.
    """

    status_s: float
    podresources_s: float
    sync_s: float
    seed: int

    @classmethod
    def of(cls, profile: LagProfile, *, seed: int) -> "Lag":
        """The lag that a profile asks for."""
        return cls(profile.status, profile.podresources, profile.sync, seed)

    def of_status(self, pod: PodObject) -> float:
        """The delay of this pod's end in the API after the managers'."""
        return self.status_s and self.status_s * self._share("status", pod)

    def of_podresources(self, pod: PodObject) -> float:
        """For how long podresources shows half of this pod."""
        return self.podresources_s and self.podresources_s * self._share("podresources", pod)

    def _share(self, what: str, pod: PodObject) -> float:
        """A number from 0 to 1."""
        text = f"{self.seed}/{what}/{pod.metadata.namespace}/{pod.metadata.name}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class PatchStatus:
    """Write the pod's status."""

    pod: PodObject
    body: bytes


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Create an event about the pod."""

    pod: PodObject
    body: bytes


#: What a container ends with that is killed.
_KILLED = 137


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete the pod without grace: nothing of it is left on the node."""

    pod: PodObject


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `due` at that time."""

    when: float


@dataclass(frozen=True, slots=True)
class Decided:
    """The kubelet admitted the pod, or rejected it."""

    pod: PodObject
    rejection: Rejection | None


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something about a pod makes no sense; the rest goes on."""

    error: InvalidObject


Instruction = PatchStatus | RecordEvent | DeletePod | WakeAt | Decided | Complaint


class Agent:
    """The pods of one node."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.kubelet = Kubelet(spec.machine, spec.config)
        #: By uid.
        self.pods: dict[str, TrackedPod] = {}
        self.lag = Lag.of(spec.group.lag, seed=spec.seed)
        #: Whether pods that come fail at once, as on a broken node.
        self.fails_pods = False
        #: Pods that the kubelet is admitting, to those who ask podresources → until when.
        self.half_way: dict[str, float] = {}
        #: Whether pods came to hold something, or ceased to, since this was last set back.
        self.allocations_changed = False
        self._changed: dict[str, None] = {}
        #: Pods that came since the last sync, and when the next one is.
        self._arrivals: list[str] = []
        self._sync_at = float("inf")
        self._waiting: deque[tuple[float, str]] = deque()
        self._status = StatusWriter(spec.name, spec.internal_ip)
        self._timing = spec.group.timing
        self._random = random.Random(f"{spec.seed}/{spec.number}")
        self._ordinal = 0

    def take_changes(self) -> list[str]:
        """Return the uids of pods that have to be checkpointed anew (or are to be dropped) since the last call."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    # --- what happens ---------------------------------------------------------------------------------------------

    def synced(self, pods: Iterable[PodObject], now: float) -> list[Instruction]:
        """Take note of a complete list of the node's pods: those missing are gone, new ones come oldest first."""
        listed = sorted(pods, key=_age)
        present = {pod.metadata.uid for pod in listed}
        result: list[Instruction] = []
        for uid in [uid for uid in self.pods if uid not in present]:
            self.pod_gone(uid)
        for pod in listed:
            tracked = self.pods.get(pod.metadata.uid)
            result += self.pod_seen(pod, now)
            if tracked is None or not tracked.reported or tracked.is_unreported:
                continue
            if _is_behind(pod.status.phase, tracked.phase):
                # A write was lost, or the fleet was killed before it.
                result.append(self._report_again(tracked, now))
        return result

    def pod_seen(self, pod: PodObject, now: float) -> list[Instruction]:
        """Take note of a pod as the API has it now."""
        tracked = self.pods.get(pod.metadata.uid)
        deleting = pod.metadata.deletion_timestamp is not None
        if tracked is None:
            if pod.status.phase in ("Succeeded", "Failed") or deleting:
                return [DeletePod(pod)] if deleting else []
            return self._arrived(pod, now)
        tracked.pod = pod
        if tracked.stage in OVER and pod.status.phase == tracked.phase:
            self._changed[pod.metadata.uid] = None
        if not deleting or tracked.stage in (Stage.STOPPING, Stage.STOPPED):
            return []
        if tracked.stage in ACTIVE:
            grace = pod.metadata.deletion_grace_period_seconds
            stop_in = min(self._timing.termination_seconds, grace if grace is not None else 30)
            return self._enter(tracked, Stage.STOPPING, now + stop_in, now)
        tracked.stage, tracked.next_at = Stage.STOPPED, float("inf")
        return [DeletePod(pod)]

    def pod_gone(self, uid: str) -> None:
        """Take note that the API no longer has a pod; whatever it still holds is freed."""
        tracked = self.pods.pop(uid, None)
        if tracked is not None and tracked.stage in ACTIVE:
            self._release(uid)

    def due(self, now: float) -> list[Instruction]:
        """Do what is to be done by now."""
        result: list[Instruction] = []
        for uid in [uid for uid, until in self.half_way.items() if until <= now]:
            del self.half_way[uid]
        if self._sync_at <= now:
            result += self._take_up_arrivals(now)
        while self._waiting and self._waiting[0][0] <= now:
            _, uid = self._waiting.popleft()
            tracked = self.pods.get(uid)
            if tracked is not None and tracked.stage is Stage.WAITING:
                result += self._decide(tracked, now)
        for tracked in [tracked for tracked in self.pods.values() if tracked.next_at <= now]:
            result += self._advance(tracked, now)
        return result

    # --- stages ---------------------------------------------------------------------------------------------------

    def _arrived(self, pod: PodObject, now: float) -> list[Instruction]:
        fate, problems = fate_of(pod, self._timing)
        fate = FAILS_AT_ONCE if self.fails_pods else fate
        tracked = self.pods[pod.metadata.uid] = TrackedPod(pod, Stage.WAITING, fate)
        complaints: list[Instruction] = [Complaint(problem) for problem in problems]
        if not self.lag.sync_s:
            return complaints + self._take_up(tracked, now)
        self._arrivals.append(pod.metadata.uid)
        if len(self._arrivals) > 1:
            return complaints
        self._sync_at = now + self.lag.sync_s
        return [*complaints, WakeAt(self._sync_at)]

    def _take_up_arrivals(self, now: float) -> list[Instruction]:
        """Take up the pods that came in one sync, oldest first (`kubelet.go`, HandlePodAdditions).

        Creation times are in whole seconds; those of one second stay in the order in which they came.
        """
        arrived = [self.pods[uid] for uid in self._arrivals if uid in self.pods]
        self._arrivals, self._sync_at = [], float("inf")
        waiting = [tracked for tracked in arrived if tracked.stage is Stage.WAITING]
        waiting.sort(key=lambda tracked: _age(tracked.pod)[0])
        return [instruction for tracked in waiting for instruction in self._take_up(tracked, now)]

    def _take_up(self, tracked: TrackedPod, now: float) -> list[Instruction]:
        if not self._timing.admission_latency:
            return self._decide(tracked, now)
        when = now + self._timing.admission_latency
        self._waiting.append((when, tracked.pod.metadata.uid))
        return [WakeAt(when)]

    def _decide(self, tracked: TrackedPod, now: float) -> list[Instruction]:
        pod = tracked.pod
        try:
            model = convert_pod(pod)
        except InvalidObject as error:
            rejection: Rejection | None = Rejection("UnexpectedAdmissionError", str(error))
            complaints: list[Instruction] = [Complaint(error)]
        else:
            rejection = self.kubelet.admit(model)
            complaints = []
        if rejection is not None:
            tracked.stage, tracked.rejection = Stage.REJECTED, rejection
            self._changed[pod.metadata.uid] = None
            return [
                *complaints,
                Decided(pod, rejection),
                self._report_rejected(tracked, rejection, now),
                RecordEvent(pod, self._status.rejected_event(pod, rejection, now=now)),
            ]
        tracked.ip = self.spec.pod_ip(self._ordinal)
        self._ordinal += 1
        tracked.admitted_at = now
        self.allocations_changed = True
        if self._timing.init_seconds:
            tracked.init_left = [c.name for c in pod.spec.init_containers or () if c.restart_policy != "Always"]
        delay = self._timing.startup_delay + self._timing.startup_jitter * self._random.random()
        half_way = self.lag.of_podresources(pod)
        if not half_way:
            return [Decided(pod, None), *self._enter(tracked, Stage.ADMITTED, now + delay, now)]
        # No container starts in the middle of an admission.
        whole_at = self.half_way[pod.metadata.uid] = now + half_way
        return [
            Decided(pod, None),
            WakeAt(whole_at),
            *self._enter(tracked, Stage.ADMITTED, max(now + delay, whole_at), now),
        ]

    def _enter(self, tracked: TrackedPod, stage: Stage, until: float, now: float) -> list[Instruction]:
        """Enter a stage that ends at `until`, which may be at once."""
        tracked.stage, tracked.entered_at, tracked.next_at = stage, now, until
        self._changed[tracked.pod.metadata.uid] = None
        if until <= now:
            return self._advance(tracked, now)
        return [WakeAt(until)] if until < float("inf") else []

    def _advance(self, tracked: TrackedPod, now: float) -> list[Instruction]:
        """Leave a stage when its time has come."""
        uid = tracked.pod.metadata.uid
        match tracked.stage:
            case Stage.ADMITTED | Stage.STARTING if tracked.init_left:
                return self._start_init(tracked, now)
            case Stage.ADMITTED | Stage.STARTING:
                self.kubelet.containers_started(uid)
                tracked.started_at = now
                run_seconds = tracked.fate.run_seconds
                until = float("inf") if run_seconds is None else now + run_seconds
                return [self._report_running(tracked), *self._enter(tracked, Stage.RUNNING, until, now)]
            case Stage.RUNNING:
                self._release(uid)
                return self._report_later(tracked, Stage.ENDED, [self._report_ended(tracked, now)], now)
            case Stage.STOPPING:
                self._release(uid)
                return self._report_later(tracked, Stage.STOPPED, self._gone(tracked, now), now)
            case Stage.ENDED if tracked.reported:
                self._due_for_report(tracked)
                return [PatchStatus(tracked.pod, tracked.reported)]
            case Stage.STOPPED:
                self._due_for_report(tracked)
                return self._gone(tracked, now)
            case _:
                tracked.next_at = float("inf")
                return []

    def _gone(self, tracked: TrackedPod, now: float) -> list[Instruction]:
        """Return how the API hears that nothing of a deleted pod runs any more.

        A kubelet reports the last phase before it deletes; that is left out where the object is gone at once.
        """
        if not tracked.pod.metadata.finalizers:
            return [DeletePod(tracked.pod)]
        ended = self._status.ended(tracked.pod, now=now, since=tracked.started_at, exit_code=_KILLED)
        return [self._report(tracked, "Failed", ended), DeletePod(tracked.pod)]

    def _report_later(
        self, tracked: TrackedPod, stage: Stage, news: list[Instruction], now: float
    ) -> list[Instruction]:
        """Enter a stage of which the API hears when the status has lagged for its time, which may be at once."""
        tracked.stage, tracked.entered_at = stage, now
        lag = self.lag.of_status(tracked.pod)
        tracked.next_at = now + lag if lag else float("inf")
        return [WakeAt(tracked.next_at)] if lag else news

    def _due_for_report(self, tracked: TrackedPod) -> None:
        tracked.next_at = float("inf")
        self._changed[tracked.pod.metadata.uid] = None

    def _start_init(self, tracked: TrackedPod, now: float) -> list[Instruction]:
        name = tracked.init_left.pop(0)
        self.kubelet.containers_started(tracked.pod.metadata.uid, through=name)
        body = self._status.starting(tracked.pod, now=now, running_init=name)
        return [
            self._report(tracked, "Pending", body),
            *self._enter(tracked, Stage.STARTING, now + self._timing.init_seconds, now),
        ]

    def _release(self, uid: str) -> None:
        self.kubelet.terminated(uid)
        self.half_way.pop(uid, None)
        self._changed[uid] = None
        self.allocations_changed = True

    def _report_running(self, tracked: TrackedPod) -> PatchStatus:
        body = self._status.running(tracked.pod, now=tracked.started_at, since=tracked.admitted_at, ip=tracked.ip)
        return self._report(tracked, "Running", body)

    def _report_ended(self, tracked: TrackedPod, now: float) -> PatchStatus:
        exit_code = tracked.fate.exit_code
        body = self._status.ended(tracked.pod, now=now, since=tracked.started_at, exit_code=exit_code)
        return self._report(tracked, "Failed" if exit_code else "Succeeded", body)

    def _report_rejected(self, tracked: TrackedPod, rejection: Rejection, now: float) -> PatchStatus:
        return self._report(tracked, "Failed", self._status.rejected(tracked.pod, rejection, now=now))

    def _report_again(self, tracked: TrackedPod, now: float) -> PatchStatus:
        if tracked.stage is Stage.ENDED:
            return self._report_ended(tracked, now)
        if tracked.rejection is not None:
            return self._report_rejected(tracked, tracked.rejection, now)
        if tracked.phase == "Running":
            return self._report_running(tracked)
        return PatchStatus(tracked.pod, tracked.reported or b"")

    @staticmethod
    def _report(tracked: TrackedPod, phase: str, body: bytes) -> PatchStatus:
        tracked.reported, tracked.phase = body, phase
        return PatchStatus(tracked.pod, body)

    # --- kubelet restart ------------------------------------------------------------------------------------------

    def remember(self, tracked: TrackedPod) -> None:
        """Take up a pod from a checkpoint; the API will say what it looks like by now, in `synced`."""
        self.pods[tracked.pod.metadata.uid] = tracked
        self._ordinal += 1
        if tracked.stage is Stage.RUNNING:
            self._report_running(tracked)
        elif tracked.stage is Stage.ENDED:
            self._report_ended(tracked, tracked.started_at)
        elif tracked.rejection is not None:
            self._report_rejected(tracked, tracked.rejection, tracked.admitted_at)

    def wakes(self, now: float) -> list[WakeAt]:
        """Return when the pods that were remembered need attention.

        No stage takes longer from now on than it would from its beginning: a clock that was ahead when it began may be
        right again.
        """
        waiting = [tracked for tracked in self.pods.values() if tracked.next_at < float("inf")]
        for tracked in waiting:
            if tracked.entered_at > now:
                tracked.entered_at, tracked.next_at = now, now + tracked.next_at - tracked.entered_at
                self._changed[tracked.pod.metadata.uid] = None
        return [WakeAt(tracked.next_at) for tracked in waiting]


def _is_behind(phase: str, reported: str) -> bool:
    """True if the API is behind what was reported; it never goes back from a terminal phase."""
    order = {"Pending": 0, "Running": 1}
    return order.get(phase, 2) < order.get(reported, 2)


def _age(pod: PodObject) -> tuple[float, str, str]:
    """Sort key: oldest first, as the kubelet takes up pods when it starts."""
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else 0.0, pod.metadata.namespace, pod.metadata.name
