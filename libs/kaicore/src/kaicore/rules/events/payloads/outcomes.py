"""Outcomes of decisions at the API server."""

from kaicore.rules.events.payloads.base import Payload


class PodBound(Payload, frozen=True):
    """The API server took the binding."""

    uid: str
    namespace: str
    name: str
    node: str
    attempts: int = 1


class BindFailed(Payload, frozen=True):
    """The API server refused the binding for good, or did not take it in time; the pod is free again.

    Attributes:
        code: HTTP status, 0 when there was none.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    uid: str
    namespace: str
    name: str
    node: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False


class PodEvicted(Payload, frozen=True):
    """The API server took the eviction: the pod ends, and its controller makes another."""

    uid: str
    namespace: str
    name: str
    node: str
    attempts: int = 1


class EvictionFailed(Payload, frozen=True):
    """The API server refused the eviction for good, or did not take it in time.

    Attributes:
        code: HTTP status, 0 when there was none; 429 is a disruption budget that forbade it.
        gone: the pod exists no more, or is another pod's successor of the same name.
    """

    uid: str
    namespace: str
    name: str
    node: str
    code: int
    reason: str
    message: str = ""
    attempts: int = 1
    gone: bool = False
