"""A client of one kubelet's podresources API."""

from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from kaicore.errors import KaiError
from kaicore.kube.podresources import GET_ALLOCATABLE_RESOURCES, LIST

#: Seconds that a kubelet may take to answer.
ANSWER_S = 10.0

#: Bytes; kubelets limit themselves to the same.
MAX_ANSWER = 16 * 1024 * 1024

#: A kubelet that restarts is back within seconds. The pool of connections is not shared with other channels, and what
#: the environment says of proxies is for other servers.
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class KubeletUnavailable(KaiError):
    """A kubelet's podresources API does not answer; names the socket and the reason."""


class PodResourcesClient:
    """Asks for what all pods hold, and hands out the answer undecoded."""

    def __init__(self, socket: str) -> None:
        """Args: socket: path of the unix socket, usually `/var/lib/kubelet/pod-resources/kubelet.sock`."""
        self._socket = socket
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._list = self._channel.unary_unary(LIST)
        self._allocatable = self._channel.unary_unary(GET_ALLOCATABLE_RESOURCES)

    async def list(self) -> bytes:
        """Return an encoded `ListPodResourcesResponse`.

        Raises:
            KubeletUnavailable: there was no answer, or it was an error.
        """
        return await self._ask(self._list)

    async def allocatable(self) -> bytes:
        """Return an encoded `AllocatableResourcesResponse`; served since 1.23, and always on since 1.28.

        Raises:
            KubeletUnavailable: there was no answer, or it was an error.
        """
        return await self._ask(self._allocatable)

    async def _ask(self, call: Callable[..., Any]) -> bytes:
        try:
            answer: bytes = await call(b"", timeout=ANSWER_S)
        except grpc.aio.AioRpcError as error:
            raise KubeletUnavailable(f"{self._socket}: {error.code().name}: {error.details()}") from error
        return answer

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()
