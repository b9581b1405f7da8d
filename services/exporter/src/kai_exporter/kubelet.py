"""A client of one kubelet's podresources API.

gRPC is spoken by `grpclib`, which is Python on asyncio: it takes 3 MB where the C core takes 20 (decision 0500).

A kubelet answers with all its pods whenever it is asked, and next to none of them has changed since. So an answer of
`List` is cut into its pods' messages, and bytes that were seen before are not decoded again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from kaicore.errors import InvalidObject, KaiError

from kai_exporter import wire
from kai_exporter.wire import AllocatableResources, PodResources, WireError


@contextmanager
def _decoding(message: bytes, subject: str, field: str, what: str = "") -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise InvalidObject(
            subject, f"podresources {field}", message[:40], f"{what}cannot be decoded ({error})"
        ) from error


def pod_messages(answer: bytes, *, subject: str) -> list[bytes]:
    """Return the encoded `PodResources` of an encoded `ListPodResourcesResponse`; `subject` is the node.

    Raises InvalidObject: the bytes are no such message.
    """
    with _decoding(answer, subject, "List"):
        return wire.messages_of(answer)


def decode_pod(message: bytes, *, subject: str) -> PodResources:
    """Decode one pod's message; raises as `pod_messages`."""
    with _decoding(message, subject, "List", "a pod "):
        return wire.decode_pod(message)


def decode_allocatable(answer: bytes, *, subject: str) -> AllocatableResources:
    """Decode an answer to `GetAllocatableResources`; raises as `pod_messages`."""
    with _decoding(answer, subject, "GetAllocatableResources"):
        return wire.decode_allocatable(answer)


_LIST = "/v1.PodResourcesLister/List"
_GET_ALLOCATABLE_RESOURCES = "/v1.PodResourcesLister/GetAllocatableResources"

#: Seconds that a kubelet may take to answer.
ANSWER_S = 10.0

#: Bytes; kubelets limit themselves to the same.
MAX_ANSWER = 16 * 1024 * 1024


class KubeletUnavailable(KaiError):
    """A kubelet's podresources API does not answer; names the socket and the reason."""


class _Undecoded(CodecBase):
    """Messages as they are on the wire."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, _message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, _message_type: Any) -> bytes:
        return data


class PodResourcesClient:
    """Asks for what all pods hold, and hands out the answer undecoded."""

    def __init__(self, socket: str) -> None:
        """Args: socket: path of the unix socket, usually `/var/lib/kubelet/pod-resources/kubelet.sock`."""
        self._socket = socket
        self._channel = Channel(path=socket, codec=_Undecoded())

    async def list(self) -> bytes:
        """Return an encoded `ListPodResourcesResponse`.

        Raises KubeletUnavailable: there was no answer, or it was an error.
        """
        return await self._ask(_LIST)

    async def allocatable(self) -> bytes:
        """Return an encoded `AllocatableResourcesResponse`; served since 1.23, and always on since 1.28.

        Raises KubeletUnavailable: there was no answer, or it was an error.
        """
        return await self._ask(_GET_ALLOCATABLE_RESOURCES)

    async def _ask(self, path: str) -> bytes:
        method: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(self._channel, path, bytes, bytes)
        try:
            answer = await method(b"", timeout=ANSWER_S)
        except GRPCError as error:
            raise KubeletUnavailable(f"{self._socket}: {error.status.name}: {error.message}") from error
        except TimeoutError as error:
            raise KubeletUnavailable(f"{self._socket}: no answer in {ANSWER_S:g} s") from error
        except (OSError, ProtocolError, StreamTerminatedError) as error:
            raise KubeletUnavailable(f"{self._socket}: {type(error).__name__}: {error}") from error
        if len(answer) > MAX_ANSWER:
            raise KubeletUnavailable(f"{self._socket}: an answer of {len(answer)} bytes, more than {MAX_ANSWER}")
        return answer

    async def close(self) -> None:
        """Close the connection."""
        self._channel.close()
