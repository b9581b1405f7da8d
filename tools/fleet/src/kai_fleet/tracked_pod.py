"""A node's kubelet's record of one pod; `agent` has the stages' order."""

import enum
from dataclasses import dataclass, field

from kai_fleet.kubelet import Rejection
from kai_fleet.lifecycle import Fate
from kai_fleet.wire import PodObject


class Stage(enum.StrEnum):
    """Where a pod is in its life on the node."""

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
        """Whether the pod is over and the API will hear of it later."""
        return self.stage in (Stage.ENDED, Stage.STOPPED) and self.next_at < float("inf")
