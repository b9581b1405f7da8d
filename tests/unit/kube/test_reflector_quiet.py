"""A day on which nothing happens: kinds without objects, of which real API servers send no bookmarks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kaicore.errors import ClusterError, ClusterUnavailable
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import Change, Relist
from kaicore.kube.wire.objects import NodeObject
from kaicore.kube.wire.resources import NODES

from tests.given.doubles.virtual_time import run_virtually

DAY_S = 86_400


class SilentServer:
    """An API server with an empty kind; a watch brings nothing, and ends when asked to or when it is cut off."""

    def __init__(self, *, cut_after_s: float | None = None) -> None:
        self.cut_after_s = cut_after_s
        self.lists = self.watches = 0

    async def list_page(self, path: str, **_: Any) -> bytes:
        self.lists += 1
        return b'{"metadata": {"resourceVersion": "7"}, "items": []}'

    @asynccontextmanager
    async def watch(self, path: str, *, resource_version: str, timeout_s: int) -> AsyncIterator[AsyncIterator[Any]]:
        self.watches += 1
        yield self._silence(timeout_s)

    async def _silence(self, timeout_s: float) -> AsyncIterator[list[bytes]]:
        await asyncio.sleep(min(timeout_s, self.cut_after_s or timeout_s))
        if self.cut_after_s is not None and self.cut_after_s < timeout_s:
            raise ClusterUnavailable("WATCH: ClientPayloadError: cut off")
        for lines in ():
            yield lines


class Failures:
    def __init__(self) -> None:
        self.errors: list[ClusterError] = []

    def listed(self, kind: str, why: Relist, objects: int) -> None: ...
    def watching(self, kind: str) -> None: ...
    def answered(self, kind: str) -> None: ...

    def failed(self, kind: str, error: ClusterError) -> None:
        self.errors.append(error)


async def follow(server: SilentServer, failures: Failures) -> None:
    async def take(_: list[Change[NodeObject]]) -> None: ...

    reflector = Reflector(server, NODES, take, observer=failures, jitter=lambda: 0.5)  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DAY_S):
            await reflector.run()


@pytest.mark.parametrize("cut_after_s", [None, 60.0])
def test_a_day_of_quiet_is_no_failure_and_needs_no_second_list(cut_after_s: float | None) -> None:
    server, failures = SilentServer(cut_after_s=cut_after_s), Failures()
    run_virtually(follow(server, failures))
    assert failures.errors == []
    assert server.lists == 1
    assert server.watches == pytest.approx(DAY_S / (cut_after_s or 450), rel=0.02)


def test_watches_that_are_cut_at_once_are_a_failure() -> None:
    server, failures = SilentServer(cut_after_s=1.0), Failures()
    run_virtually(follow(server, failures))
    assert failures.errors
    assert server.lists > 1
