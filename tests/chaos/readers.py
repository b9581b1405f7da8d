"""Those who only read: the API and the webhook are asked while things fail, and in the end read models are compared."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import aiohttp
import psycopg
from kaicore.analysis.ask.hours.kept import keep_hours
from kaicore.analysis.ask.hours.report import account_digest, account_of
from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.store import OF_GENERATIONS, ViewStore
from kaicore.ledger.log.postgres import PostgresLog

from tests.chaos.recording import Recorder
from tests.chaos.world import CLUSTER, World

#: Seconds between two questions.
_PAUSE_S = 0.3

#: Seconds that an answer may take, and in which there must be a good one once nothing fails any more.
_ANSWER_S, _PATIENCE_S = 10.0, 90.0


class Readers:
    """Asks until `stop`.

    Attributes:
        wrong: answers that should not have been given.
        answered: how many questions had an answer, by who was asked.
        failed: how many had none, which is what faults are for.
    """

    def __init__(self, world: World, recorder: Recorder) -> None:
        self._world, self._recorder = world, recorder
        self._read = 0
        self.wrong: list[str] = []
        self.answered = {"api": 0, "webhook": 0}
        self.failed = {"api": 0, "webhook": 0}

    async def run(self, seconds: float) -> None:
        """Go on for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    await self._ask_all()
                    await asyncio.sleep(_PAUSE_S)

    async def end(self) -> None:
        """Wait until both answer, and the API has shown everything that is in the log."""
        before = dict(self.answered)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while True:
                    shown = self._read
                    await self._ask_all()
                    if self._read == shown and all(self.answered[name] > before[name] for name in before):
                        return
        silent = [name for name in before if self.answered[name] == before[name]]
        self.wrong += [f"{name}: no answer for {_PATIENCE_S:.0f} s after the last fault" for name in silent]

    async def _ask_all(self) -> None:
        for name, ask in (("api", self._ask_api), ("webhook", self._ask_webhook)):
            try:
                await ask()
            except (aiohttp.ClientError, TimeoutError, OSError):
                self.failed[name] += 1
            else:
                self.answered[name] += 1

    async def _ask_api(self) -> None:
        """Read on in the log; what is answered must be there for good, which the checker sees to."""
        page = await self._asked("GET", self._world.address("api", f"v1/clusters/{CLUSTER}/events?after={self._read}"))
        for item in page["items"]:
            if item["position"] != self._read + 1:
                self.wrong.append(f"api: event {item['position']} follows event {self._read}")
            self._read = item["position"]
            self._recorder.observed(CLUSTER, item["position"], item["hash"])

    async def _ask_webhook(self) -> None:
        for levels, allowed in (([{"nodeLabel": "example.com/rack"}], True), ([], False)):
            topology = {
                "apiVersion": "kai.scheduler/v1alpha1",
                "kind": "Topology",
                "metadata": {"name": "reviewed"},
                "spec": {"levels": levels},
            }
            request = {
                "uid": "reviewed",
                "operation": "CREATE",
                "kind": {"group": "kai.scheduler", "version": "v1alpha1", "kind": "Topology"},
                "name": "reviewed",
                "object": topology,
            }
            review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
            answer = await self._asked("POST", self._world.address("webhook", "validate"), review)
            if answer["response"]["allowed"] is not allowed:
                self.wrong.append(f"webhook: a topology of {len(levels)} levels: {answer['response']}")

    @staticmethod
    async def _asked(method: str, url: str, body: Any = None) -> Any:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session,
            session.request(method, url, json=body, ssl=False) as response,
        ):
            return json.loads(await response.read())


async def read_models_differ(world: World) -> list[str]:
    """Compare what projectors kept while things failed with what is projected anew."""
    url = world.postgres.url_of("kai_project")
    async with await PostgresLog.open(url) as log, await ViewStore.open(url, application="chaos") as store:
        kept = await Builder.resume(log, store, CLUSTER)
        await kept.catch_up()
        anew = await Builder.anew(log, store, CLUSTER)
        while await anew.step():
            pass
        await keep_hours(log, CLUSTER)
        summed, counted = [await account_of(log, CLUSTER, 0, 1 << 62, from_kept=one) for one in (True, False)]
    wrong = []
    if account_digest(summed) != account_digest(counted):
        wrong.append("the account of GPU-hours: kept hours do not sum up to the log's")
    for month in counted.periods:
        by_owner, by_model = ([one.held for one in rows.values()] for rows in (month.owners, month.models))
        if [*map(sum, zip(*by_owner, strict=True))] != [*map(sum, zip(*by_model, strict=True))]:
            wrong.append(f"the account of GPU-hours of {month.month} does not add up")
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        for table in OF_GENERATIONS:
            of_one = f"FROM {table.fullname} t WHERE (cluster, generation) = (%s, %s)"
            rows = [
                await connection.execute(f"SELECT (to_jsonb(t) - 'generation')::text {of_one}", [CLUSTER, number])
                for number in (kept.generation.number, anew.generation.number)
            ]
            left, right = [{str(row) for (row,) in await cursor.fetchall()} for cursor in rows]
            wrong += [f"read model {table.name}: kept or anew alone: {row}" for row in sorted(left ^ right)[:2]]
    return wrong
