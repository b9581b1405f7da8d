"""Those who read a cluster, and those who ask them: projector, webhook and API, their servers, and what is checked."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec
from kaicore.analysis.ask.projections.store import Generation

from tests.given.logs.projected import Tables
from tests.simulation.api import ApiServer
from tests.simulation.http import AppServer, HttpClient, NoAnswer, Response
from tests.simulation.loop import Process
from tests.simulation.plan import TOPOLOGIES, Arrival
from tests.simulation.reading_checker import ReadingChecker
from tests.simulation.reading_clients import Author, Reader
from tests.simulation.reading_services import Answers, Judge, project
from tests.simulation.views import MemoryViews, NetworkViews

if TYPE_CHECKING:
    from tests.simulation.site import Site
    from tests.simulation.world import World

#: Seconds after the last fault in which readers must have caught up.
_CATCHES_UP_S = 60.0

#: Seconds in which read models follow an event when nothing fails: a cycle may come just as the end is looked at.
_FOLLOWS_S = 5.0

#: Seconds after which a webhook has surely tried a log again that failed.
_WEBHOOK_S = 4.0

Body = Coroutine[Any, Any, None]


class Reading:
    def __init__(self, world: "World", site: "Site") -> None:
        self._world, self._site = world, site
        self.checker = ReadingChecker(site.checker)
        self._views = MemoryViews(self._saved)
        self._judge: Judge
        self._webhook_server, self._api_server = (
            AppServer(f"{name}{site.suffix}", world.server(f"{name}{site.suffix}").process)
            for name in ("webhook", "kai-api")
        )
        self._reader: Reader
        self.author: Author
        self._author_process: Process

    def begin(self, add: Callable[[str, Callable[[Process], Body]], None], api: ApiServer) -> None:
        """Start the services and those who ask them; `add` makes a place for a process."""
        add("projector-0", self._project)
        add("webhook-0", self._judging)
        add("api-0", self._answering)
        add("reader-0", self._read)
        add("author-0", self._write)
        api.webhooks_answer(self._post)

    # --- the services -------------------------------------------------------------------------------------------------

    def _project(self, process: Process) -> Body:
        world = self._world
        views = NetworkViews(process, world.network, world.log_server, self._views)
        return project(world.place(process, self._site), views)

    def _saved(self, cluster: str, generation: Generation, tables: Tables) -> None:
        self.checker.saved(generation, tables)
        self._world.tell(f"read models {cluster} {generation.number} {generation.position}")

    def _judging(self, process: Process) -> Body:
        judge = self._judge = Judge(self._world.place(process, self._site))

        def asked(scope: dict[str, Any], data: bytes) -> Callable[[Response], None]:
            look = self.checker.reviewed(process.name, data, up_to_date=b'"uid":"last"' in data)
            return lambda response: look(response, judge.topologies.book is not None)

        self._webhook_server.begin(process, judge.app, asked)
        return judge.run()

    def _answering(self, process: Process) -> Body:
        answers = Answers(self._world.place(process, self._site))

        def asked(scope: dict[str, Any], data: bytes) -> Callable[[Response], None]:
            return self.checker.asked(scope["path"], scope["query_string"].decode())

        self._api_server.begin(process, answers.app, asked)
        return answers.run()

    # --- those who ask ------------------------------------------------------------------------------------------------

    def _client(self, process: Process, server: AppServer) -> HttpClient:
        return HttpClient(self._world.loop, process, self._world.network, server)

    def _read(self, process: Process) -> Body:
        self._reader = Reader(self._client(process, self._api_server), self._site.cluster, self.checker)
        return self._reader.run()

    async def _write(self, process: Process) -> None:
        hubs = [self._client(process, server) for server in self._world.hub_servers]
        webhook = self._client(process, self._webhook_server)
        self.author = Author(self._site.client(process), webhook, hubs, self._world.wrong)
        self._author_process = process
        await asyncio.Event().wait()

    def create(self, one: Arrival) -> None:
        """Have the author create something, or delete a topology."""
        self._author_process.start(self.author.create(one))

    def submit(self, name: str, manifests: list[Any]) -> None:
        self._author_process.start(self.author.submit(name, manifests))

    async def _post(self, webhook: Any, review: Any) -> Any:
        """Send a review to the webhook, as the API server does."""
        client = self._client(self._site.api_server.process, self._webhook_server)
        response = await client.ask("POST", "/validate", msgspec.json.encode(review), patience_s=5.0)
        if response.status != 200:
            raise NoAnswer(str(response.status))
        return msgspec.json.decode(response.body)["response"]

    # --- in the end ---------------------------------------------------------------------------------------------------

    async def check_end(self) -> None:
        """With nothing that fails any more, all readers tell what the log says."""
        head = self.checker.head
        await self._until(lambda: self._caught_up(head), _CATCHES_UP_S)
        self._site.checker.now = self._world.loop.time()
        for how, position in (("pages", self._reader.paged), ("stream", self._reader.streamed)):
            if position < head:
                self._site.checker.wrong(f"{how} of events reached {position} in the end, of {head}")
        await asyncio.sleep(_WEBHOOK_S)
        shown = self.checker.head
        await self._until(lambda: self._projected() >= shown, _FOLLOWS_S)
        self._site.checker.now = self._world.loop.time()
        self.checker.check_read_models(self._views.live(self._site.cluster), shown)
        for topology in TOPOLOGIES:
            if not await self.author.review(topology):
                self._site.checker.wrong("the webhook does not answer in the end")

    async def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until something holds, for so long at most; what does not hold then is for the checks."""
        end = self._world.loop.time() + seconds
        while self._world.loop.time() < end and not holds():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.5)

    def _projected(self) -> int:
        live = self._views.live(self._site.cluster)
        return live[0].position if live else 0

    def _caught_up(self, head: int) -> bool:
        return min(self._reader.paged, self._reader.streamed, self._projected()) >= head
