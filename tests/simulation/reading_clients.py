"""Those who ask: a client that reads on in a log over the API, and an author of objects and dispatches."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
from kaicore.errors import ClusterError
from kaicore.kube.api.client import KubeClient

from tests.simulation.http import HttpClient, NoAnswer, Stream
from tests.simulation.plan import Arrival
from tests.simulation.reading_checker import ReadingChecker

#: Seconds between two questions, and until one that had no answer is asked again.
_PAUSE_S, _AGAIN_S = 0.4, 0.3

#: Events of a page.
_PAGE = 40


class Reader:
    """Reads a cluster's log by pages and as a stream, and lists its pods.

    Attributes:
        paged: the last position of the pages.
        streamed: the last position of the stream.
    """

    def __init__(self, client: HttpClient, cluster: str, checker: ReadingChecker) -> None:
        self._client, self._cluster, self._checker = client, cluster, checker
        self.paged = self.streamed = 0

    async def run(self) -> None:
        await asyncio.gather(self._read_pages(), self._read_stream(), self._list_pods())

    async def _read_pages(self) -> None:
        while True:
            page = await self._asked(f"events?after={self.paged}&limit={_PAGE}")
            for item in page["items"] if page else ():
                self.paged = self._checker.read("pages of events", item, after=self.paged)
            await asyncio.sleep(_PAUSE_S)

    async def _list_pods(self) -> None:
        while True:
            await self._asked("pods")
            await asyncio.sleep(2 * _PAUSE_S)

    async def _asked(self, what: str) -> Any:
        try:
            response = await self._client.ask("GET", f"/v1/clusters/{self._cluster}/{what}")
        except NoAnswer:
            return None
        return msgspec.json.decode(response.body) if response.status == 200 else None

    async def _read_stream(self) -> None:
        while True:
            # As a browser does: it says where it was when its connection broke.
            headers = ((b"last-event-id", str(self.streamed).encode()),)
            with suppress(NoAnswer, aiohttp.ClientError):
                stream = await self._client.open(f"/v1/clusters/{self._cluster}/events/stream", headers=headers)
                try:
                    await self._follow(stream)
                finally:
                    stream.close()
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self, stream: Stream) -> None:
        text = b""
        while piece := await stream.readany():
            text += piece
            *blocks, text = text.split(b"\n\n")
            for block in blocks:
                fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if not line.startswith(b":"))
                if b"data" in fields:
                    item = msgspec.json.decode(fields[b"data"])
                    self.streamed = self._checker.read("stream of events", item, after=self.streamed)


class Author:
    """Creates topologies and groups, which the webhook judges, and submits dispatches to the hub until one answers.

    Attributes:
        pending: dispatches that no hub has answered yet.
    """

    def __init__(
        self, client: KubeClient, webhook: HttpClient, hubs: list[HttpClient], wrong: Callable[[str], None]
    ) -> None:
        """`wrong` is called for answers that should not have been given."""
        self._client, self._webhook, self._hubs, self._wrong = client, webhook, hubs, wrong
        self.pending: dict[str, None] = {}

    async def create(self, one: Arrival) -> None:
        """Have an object made, or a topology deleted; a write without an answer is left."""
        topologies = "/apis/kai.scheduler/v1alpha1/topologies"
        with suppress(ClusterError):
            if one.kind == "no-topology":
                await self._client.delete(f"{topologies}/{one.name}", {"apiVersion": "v1", "kind": "DeleteOptions"})
            elif one.kind == "topology":
                levels = [{"nodeLabel": "example.com/rack"}]
                body = {"apiVersion": "kai.scheduler/v1alpha1", "kind": "Topology", "metadata": {"name": one.name}}
                await self._client.post(topologies, body | {"spec": {"levels": levels}})
            else:
                path = "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups"
                await self._client.post(path, judged_group(one.name, one.topology))

    async def submit(self, name: str, manifests: list[Any]) -> None:
        """Submit a dispatch, as often as it takes."""
        self.pending[name] = None
        data, tries = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": manifests}), 0
        while True:
            hub, tries = self._hubs[tries % len(self._hubs)], tries + 1
            with suppress(NoAnswer):
                response = await hub.ask("POST", f"/v1/dispatches?name={name}", data)
                if response.status in (200, 201):
                    del self.pending[name]
                    return
                if response.status < 500:
                    self._wrong(f"POST dispatch {name}: {response.status} {response.body.decode()}")
                    return
            await asyncio.sleep(_AGAIN_S)

    async def review(self, topology: str) -> bool:
        """Have the webhook judge a group that names a topology; return whether it did."""
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        kind = {"group": "scheduling.run.ai", "version": "v2alpha2", "kind": "PodGroup"}
        request = {"uid": "last", "kind": kind, "operation": "CREATE", "object": judged_group("last", topology)}
        try:
            await self._webhook.ask("POST", "/validate", msgspec.json.encode(review | {"request": request}))
        except NoAnswer:
            return False
        return True


def judged_group(name: str, topology: str) -> dict[str, Any]:
    constraint = {"topology": topology, "requiredTopologyLevel": "example.com/rack"}
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"minMember": 1, "queue": "alpha", "topologyConstraint": constraint},
    }
