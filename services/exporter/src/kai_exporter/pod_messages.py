"""Cut an answer of podresources `List` into its pods' messages without decoding them.

A kubelet answers with all its pods whenever it is asked, and next to none of them has changed since. The bytes of a pod
that were seen before need not be decoded again.
"""

from kaicore.errors import InvalidObject

from kai_exporter import wire
from kai_exporter.wire import AllocatableResources, PodResources, WireError


def pod_messages(answer: bytes, *, subject: str) -> list[bytes]:
    """Return the encoded `PodResources` of an encoded `ListPodResourcesResponse`.

    Args:
        answer: what the kubelet answered.
        subject: the node, for the error.

    Raises:
        InvalidObject: the bytes are no such message.
    """
    try:
        return wire.messages_of(answer)
    except WireError as error:
        raise InvalidObject(subject, "podresources List", answer[:40], f"cannot be decoded ({error})") from error


def decode_pod(message: bytes, *, subject: str) -> PodResources:
    """Decode one pod's message.

    Raises:
        InvalidObject: the bytes are no such message.
    """
    try:
        return wire.decode_pod(message)
    except WireError as error:
        raise InvalidObject(subject, "podresources List", message[:40], f"a pod cannot be decoded ({error})") from error


def decode_allocatable(answer: bytes, *, subject: str) -> AllocatableResources:
    """Decode an answer to `GetAllocatableResources`.

    Raises:
        InvalidObject: the bytes are no such message.
    """
    try:
        return wire.decode_allocatable(answer)
    except WireError as error:
        field = "podresources GetAllocatableResources"
        raise InvalidObject(subject, field, answer[:40], f"cannot be decoded ({error})") from error
