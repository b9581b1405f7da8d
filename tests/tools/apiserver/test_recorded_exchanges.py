"""The recorded sequence of a real API server gets the same answers from this one."""

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.tools.apiserver.client import NODES, Answer, Client
from tests.tools.apiserver.recording import Correspondence, subset_differences, without_managed_fields

Compare = Callable[[Any, Any], list[str]]

FIRST_AFTER_RESTART = "list continue after compaction: Expired"
WATCH_WITH_TRAFFIC = "watch pods from resourceVersion"


def _only_what_we_serve(theirs: Any, ours: Any) -> list[str]:
    return subset_differences(ours, theirs)


def _groups_we_serve(theirs: Any, ours: Any) -> list[str]:
    """Kubernetes 1.37 serves DeviceTaintRules in v1; the recording is of a server before it."""
    unlike = subset_differences(ours, theirs)
    return [one for one in unlike if not one.endswith("versions[v1].resources[devicetaintrules]: not recorded")]


def _paths_we_serve(theirs: Any, ours: Any) -> list[str]:
    return [f"{path}: not recorded" for path in ours["paths"] if path not in theirs["paths"]]


def _a_list_of_passing_checks(theirs: str, ours: str) -> list[str]:
    shape = re.compile(r"(\[\+\][-\w/]+ ok\n)+readyz check passed\n")
    return [] if shape.fullmatch(theirs) and shape.fullmatch(ours) else [f"{ours!r}"]


#: Where this server says something else than the recording on purpose: how it is compared instead, and why.
DEVIATIONS: dict[str, tuple[Compare, str]] = {
    "apis": (_only_what_we_serve, "only groups that the simulation serves are listed"),
    "api v1 resources": (_only_what_we_serve, "no proxy, exec, attach and port-forward: no container runs"),
    "openapi v3 index": (_paths_we_serve, "only groups that the simulation serves; the hashes are of our documents"),
    "aggregated discovery /api": (_only_what_we_serve, "as `api v1 resources`"),
    "aggregated discovery /apis": (_groups_we_serve, "as `apis`, and what came after the recording"),
    "readyz verbose": (_a_list_of_passing_checks, "the checks are the simulation's own"),
}


def _blanked(name: str, theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Blank the parts that differ on purpose.

    - `api`: the server's own address.
    - Tables: the columns' descriptions are this server's own words.
    - A refused change of a pod's spec: the real one appends a diff of its Go structs, this one of the JSON.
    - An expired watch names the oldest version that is remembered, which has no counterpart.
    """
    if name == "api":
        for side in (theirs, ours):
            side["serverAddressByClientCIDRs"][0]["serverAddress"] = ""
    if isinstance(theirs, dict) and theirs.get("kind") == "Table":
        for side in (theirs, ours):
            for column in side["columnDefinitions"]:
                column["description"] = bool(column["description"]) or column["type"] == "integer"
        for column in ours["columnDefinitions"]:
            column["description"] = True
    if name.startswith("patch spec"):
        for side in (theirs, ours):
            for answer_part in (side, side["details"]["causes"][0]):
                answer_part["message"] = answer_part["message"].partition("\n")[0]
    return theirs, ours


def _differences(exchange: dict[str, Any], answer: Answer, pairs: Correspondence) -> list[str]:
    recorded, name = exchange["response"], exchange["name"]
    unlike = [] if answer.status == recorded["status"] else [f"status {answer.status}, recorded {recorded['status']}"]
    for header, value in recorded.get("headers", {}).items():
        if answer.headers.get(header) != value:
            unlike.append(f"{header}: {answer.headers.get(header)!r}, recorded {value!r}")
    theirs = recorded["body"]
    ours = answer.text if isinstance(theirs, str) else answer.json
    if not name.startswith("server-side apply"):
        ours = without_managed_fields(ours)
    if name in DEVIATIONS:
        return unlike + DEVIATIONS[name][0](theirs, ours)
    theirs, ours = _blanked(name, theirs, ours)
    return unlike + pairs.differences(theirs, ours)


def _event_differences(exchange: dict[str, Any], events: list[dict[str, Any]], pairs: Correspondence) -> list[str]:
    theirs, ours = exchange["response"]["events"], without_managed_fields(events)
    for side in (theirs, ours):
        for event in side:
            if event["type"] == "ERROR":
                message = event["object"]["message"]
                event["object"]["message"] = re.sub(r"\(\d+\)", "(oldest)", message)
    return pairs.differences(theirs, ours)


class Replay:
    """Sends the recorded requests and collects what is different."""

    def __init__(self, data_dir: Path, exchanges: list[dict[str, Any]]) -> None:
        self.exchanges = exchanges
        self.pairs = Correspondence()
        self.unlike: list[str] = []
        self._data_dir = data_dir

    def _server(self) -> ApiServer:
        # The recorded server ran alone, without a controller manager.
        return ApiServer(ApiServerOptions(data_dir=self._data_dir, controllers=False))

    async def run(self) -> None:
        restart = next(i for i, exchange in enumerate(self.exchanges) if exchange["name"] == FIRST_AFTER_RESTART)
        watch = next(i for i, exchange in enumerate(self.exchanges) if exchange["name"] == WATCH_WITH_TRAFFIC)
        async with self._server() as server, Client(server.http_url, server.admin_token) as client:
            await self._send(self.exchanges[: watch - 3], server, client)
            await self._send_while_watching(client, self.exchanges[watch - 3 : watch], self.exchanges[watch])
            await self._send(self.exchanges[watch + 1 : restart], server, client)
            await self._unrecorded_churn(client, self.exchanges[restart])
        async with self._server() as server, Client(server.http_url, server.admin_token) as client:
            await self._send(self.exchanges[restart:], server, client)

    async def _send(self, exchanges: list[dict[str, Any]], server: ApiServer, client: Client) -> None:
        for exchange in exchanges:
            if exchange["name"] in ("wrong token", "no token (anonymous)"):
                token = "wrong" if exchange["name"] == "wrong token" else None
                async with Client(server.http_url, token) as stranger:
                    await self._one(exchange, stranger)
            else:
                await self._one(exchange, client)

    async def _one(self, exchange: dict[str, Any], client: Client) -> None:
        if "events" in exchange["response"]:
            answer = await client.get(self.pairs.translate(exchange["request"]["path"]))
            events = [json.loads(line) for line in answer.text.splitlines()]
            different = [] if answer.status == 200 else [f"status {answer.status}"]
            self._note(exchange, different + _event_differences(exchange, events, self.pairs))
            return
        self._note(exchange, _differences(exchange, await self._request(exchange, client), self.pairs))

    async def _request(self, exchange: dict[str, Any], client: Client) -> Answer:
        request = exchange["request"]
        headers = {"Accept": request["accept"]} if "accept" in request else {}
        return await client.request(
            request["method"],
            self.pairs.translate(request["path"]),
            request.get("body"),
            content_type=request.get("contentType", "application/json"),
            headers=headers,
        )

    async def _send_while_watching(self, client: Client, during: list[dict[str, Any]], watch: dict[str, Any]) -> None:
        path = self.pairs.translate(watch["request"]["path"].replace("watch=1&", ""))
        async with client.watch(path) as stream:
            for exchange in during:
                await self._one(exchange, client)
            async with asyncio.timeout(60):
                events = [await stream.next() for _ in watch["response"]["events"]]
        self._note(watch, _event_differences(watch, events, self.pairs))

    async def _unrecorded_churn(self, client: Client, expired: dict[str, Any]) -> None:
        """Between two recorded requests, a page of nodes was listed and a client patched the first one three times."""
        page = await client.get(f"{NODES}?limit=2")
        recorded_token = expired["request"]["path"].rpartition("continue=")[2]
        self.pairs.tokens[recorded_token] = page.json["metadata"]["continue"]
        for value in ("1", "2", "3"):
            await client.merge(f"{NODES}/n1", {"metadata": {"annotations": {"x": value}}})

    def _note(self, exchange: dict[str, Any], different: list[str]) -> None:
        self.unlike += [f"{exchange['name']}: {difference}" for difference in different]


async def test_the_recorded_sequence_gets_the_recorded_answers(
    recorded_exchanges: list[dict[str, Any]], tmp_path: Path
) -> None:
    replay = Replay(tmp_path, recorded_exchanges)
    await replay.run()
    assert not replay.unlike, "\n".join(replay.unlike)


def test_every_deviation_is_of_a_recorded_exchange(recorded_exchanges: list[dict[str, Any]]) -> None:
    assert DEVIATIONS.keys() <= {exchange["name"] for exchange in recorded_exchanges}
