"""A node's kubelet's record of one pod; `agent` has the stages' order.

Durations of a pod's life on a node, from its annotations and the profile.
"""

import enum
from dataclasses import dataclass, field

from kaicore.errors import InvalidObject

from kai_fleet.kubelet import Rejection
from kai_fleet.node.pod_conversion import PodObject
from kai_fleet.profiles.profile import TimingProfile

#: How long the pod's containers run, in seconds; it then ends whatever its restart policy.
RUN_SECONDS = "simulator.kai.scheduler/run-seconds"
#: What its containers exit with.
EXIT_CODE = "simulator.kai.scheduler/exit-code"

_LONGEST_S = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Fate:
    """The plan for an admitted pod: seconds it runs (None: forever), and its exit code."""

    run_seconds: float | None
    exit_code: int


#: The plan for any pod on a node that is broken.
FAILS_AT_ONCE = Fate(0.05, 1)


def fate_of(pod: PodObject, timing: TimingProfile) -> tuple[Fate, list[InvalidObject]]:
    """Return the pod's fate, and what is wrong with its annotations; a wrong one counts as absent."""
    annotations = pod.metadata.annotations or {}
    problems: list[InvalidObject] = []
    run_seconds = None if pod.spec.restart_policy == "Always" else timing.run_seconds
    if (text := annotations.get(RUN_SECONDS)) is not None:
        try:
            run_seconds = _number(text)
        except ValueError:
            problems.append(InvalidObject(str(pod), RUN_SECONDS, text, "not a number of seconds"))
    exit_code = 0
    if (text := annotations.get(EXIT_CODE)) is not None:
        if text.isascii() and text.isdigit() and int(text) < 256:
            exit_code = int(text)
        else:
            problems.append(InvalidObject(str(pod), EXIT_CODE, text, "not an exit code from 0 to 255"))
    return Fate(run_seconds, exit_code), problems


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _LONGEST_S:
        raise ValueError(text)
    return value


class Stage(enum.StrEnum):
    """The stage of a pod's life on the node."""

    WAITING = "waiting"
    ADMITTED = "admitted"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    ENDED = "ended"
    REJECTED = "rejected"


#: Stages in which the pod holds what it was given.
ACTIVE = frozenset({Stage.ADMITTED, Stage.STARTING, Stage.RUNNING, Stage.STOPPING})

#: Stages of which nothing comes any more: what was said of them must not be forgotten before the API has it.
OVER = frozenset({Stage.ENDED, Stage.REJECTED})


@dataclass(slots=True)
class TrackedPod:
    """A pod that this node has heard of and that is not gone from the API yet."""

    pod: PodObject
    stage: Stage
    fate: Fate
    #: When the kubelet admitted it, and when its app containers started.
    admitted_at: float = 0.0
    started_at: float = 0.0
    #: When the stage began, and when it ends by itself; infinite when it does not.
    entered_at: float = 0.0
    next_at: float = float("inf")
    ip: str = ""
    #: Init containers that are still to run, in order.
    init_left: list[str] = field(default_factory=list)
    #: Why the kubelet did not admit it.
    rejection: Rejection | None = None
    #: The last status that was written, and its phase.
    reported: bytes | None = None
    phase: str = "Pending"

    @property
    def is_unreported(self) -> bool:
        """True if the pod is over and the API will learn of it later."""
        return self.stage in (Stage.ENDED, Stage.STOPPED) and self.next_at < float("inf")
