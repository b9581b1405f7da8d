"""Facts about pods: from the API server, and from the kubelets that run them."""

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.pod import Pod


class PodObserved(Payload, frozen=True):
    """The watcher saw a pod that is new or has changed in what scheduling needs."""

    pod: Pod


class PodDeleted(Payload, frozen=True):
    """The watcher saw a pod go, or missed it on a relist."""

    uid: str
    namespace: str
    name: str


class PodRejected(Payload, frozen=True):
    """A kubelet refused the pod: its phase is Failed for good, and any successor is another pod.

    Attributes:
        reason: `TopologyAffinityError`, `UnexpectedAdmissionError`, `OutOfcpu`, …
    """

    uid: str
    namespace: str
    name: str
    node: str
    reason: str
    message: str = ""


class PlacementObserved(Payload, frozen=True):
    """What a pod really holds on its node.

    Attributes:
        source: `exporter` (podresources of the node's kubelet) or `annotation` (another program's record on the pod).
    """

    uid: str
    namespace: str
    name: str
    node: str
    placement: Placement
    source: str = "exporter"


class PredictionMissed(Payload, frozen=True):
    """A kubelet did otherwise than was predicted; what it did stands.

    Attributes:
        policy: of its Topology Manager.
        cause: `zones` or `amounts` of an observed placement, or the reason with which it rejected the pod.
        predicted: the placement that was predicted, None where nothing was to be bound to zones.
        observed: what the pod really holds, None if it was rejected.
        message: the kubelet's, if it rejected the pod.
    """

    uid: str
    namespace: str
    name: str
    node: str
    policy: str
    cause: str
    predicted: Placement | None = None
    observed: Placement | None = None
    message: str = ""
