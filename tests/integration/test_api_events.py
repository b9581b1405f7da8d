"""Events over HTTP: pages, the live stream, CloudEvents; and what the API says of itself."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from fastapi.openapi.models import OpenAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.life.traces import EventAnswer, event_answer
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id

from tests.conftest import module_database_url as superuser_url
from tests.given.cluster.factory import pod
from tests.given.examples import examples
from tests.integration.test_api_access import make_key, serving

__all__ = ["superuser_url"]

#: Of the specification 1.0.2, section "Context Attributes".
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")


async def record(log: EventLog, cluster: str, *names: str, namespace: str = "default") -> int:
    """Append a fact about a new pod for each name; return the log's end."""
    units = []
    for name in names:
        one = pod(name, namespace=namespace, uid=f"uid-{namespace}-{name}", cpu=1)
        event_id = derived_id(cluster, namespace, name)
        payload = payloads.PodObserved(one)
        units.append(Unit((NewEvent(event_id, f"pod/{one.uid}", payload, "watcher", 7_000_000, one.subject),)))
    outcomes = await log.append(cluster, units)
    return outcomes[-1].positions[-1]


async def sent(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    """Yield the id and the data of what a stream sends, what has no data included."""
    identity, data = "", None
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        field, _, value = line.partition(": ")
        if field == "id":
            identity = value
        elif field == "data":
            data = json.loads(value)
        elif not line and identity:
            yield identity, data
            identity, data = "", None


async def take(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    taken: list[tuple[str, Any]] = []
    async with asyncio.timeout(60):
        async for item in sent(response):
            taken.append(item)
            if len(taken) == count:
                break
    return taken


async def test_pages_of_events_go_on_where_the_last_one_ended_until_the_log_does(
    postgres_log: EventLog, cluster_name: str
) -> None:
    head = await record(postgres_log, cluster_name, *(f"p{number}" for number in range(5)))
    async with serving(postgres_log, anonymous="loopback") as client:
        path, seen = f"/v1/clusters/{cluster_name}/events?limit=2&after=0", []
        while len(seen) < 5:
            async with client._session.get(client.url + path) as response:
                page = await response.json()
                path = response.links["next"]["url"].raw_path_qs
            seen += [item["position"] for item in page["items"]]
        assert (seen, page["next"], page["position"]) == ([1, 2, 3, 4, 5], head, head)
        assert (await client.get(path))["items"] == []
        await record(postgres_log, cluster_name, "later")
        assert [item["subject"] for item in (await client.get(path))["items"]] == ["default/later"]
        wrong = await client.get(f"/v1/clusters/{cluster_name}/events?type=PodPlacd", status=400)
        assert "did you mean 'PodPlaced'" in wrong["error"]


async def test_pages_of_a_list_are_of_one_position_whatever_is_recorded_between_them(
    postgres_log: EventLog, cluster_name: str
) -> None:
    await record(postgres_log, cluster_name, "b", "d", "f")
    here = f"/v1/clusters/{cluster_name}/pods?limit=2"
    async with serving(postgres_log, anonymous="loopback") as client:
        first = await client.get(here)
        await record(postgres_log, cluster_name, "a", "c", "e")
        second = await client.get(f"{here}&after={first['next']}")
        assert [row["name"] for row in first["items"] + second["items"]] == ["b", "d", "f"]
        assert (second["position"], second["next"]) == (first["position"], "")
        assert "not the `next`" in (await client.get(f"{here}&after=7", status=400))["error"]
        assert "same moment" in (await client.get(f"{here}&after={first['next']}&at=1", status=400))["error"]


async def test_a_stream_goes_on_after_the_last_event_id_without_loss_and_says_how_far_it_is(
    postgres_log: EventLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kai_api.events._HEARTBEAT_S", 0.05)
    await record(postgres_log, cluster_name, "a", "b")
    async with serving(postgres_log, anonymous="loopback") as client:
        url = f"{client.url}/v1/clusters/{cluster_name}/events/stream"
        async with client._session.get(f"{url}?after=0&subject=default/a") as response:
            assert response.content_type == "text/event-stream"
            (first, _), (reached, nothing) = await take(response, 2)
            assert (first, reached, nothing) == ("1", "2", None), "what is not wanted is passed by, too"
        names = [f"n{number}" for number in range(30)]
        await record(postgres_log, cluster_name, *names)
        async with client._session.get(url, headers={"Last-Event-ID": reached}) as response:
            resumed = await take(response, 30)
            assert [data["subject"] for _, data in resumed] == [f"default/{name}" for name in names]
            await record(postgres_log, cluster_name, "live")
            live = [data for _, data in await take(response, 1) if data]
            while not live:
                live = [data for _, data in await take(response, 1) if data]
            assert live[0]["subject"] == "default/live"
        for headers, problem in (({"Last-Event-ID": "x"}, "is no position"), ({"Last-Event-ID": "999"}, "ends at 33")):
            async with client._session.get(url, headers=headers) as response:
                assert (response.status, problem in await response.text()) == (400, True)


async def test_head_is_answered_as_get_without_a_body_also_where_that_has_no_end(
    postgres_log: EventLog, cluster_name: str
) -> None:
    await record(postgres_log, cluster_name, "a")
    async with serving(postgres_log, anonymous="loopback") as client:
        url = f"{client.url}/v1/clusters/{cluster_name}"
        for path, kind in (("/pods", "application/json"), ("/events/stream", "text/event-stream")):
            async with client._session.head(url + path) as response:
                assert (response.status, response.content_type, await response.read()) == (200, kind, b"")
        async with client._session.head(f"{url}/nothing") as response:
            assert response.status == 404


async def test_events_are_valid_cloud_events_in_batches_and_in_the_stream(
    postgres_log: EventLog, cluster_name: str
) -> None:
    await record(postgres_log, cluster_name, "a", "b")
    here = f"/v1/clusters/{cluster_name}/events"
    async with serving(postgres_log, anonymous="loopback") as client:
        async with client._session.get(
            client.url + here, headers={"Accept": "application/cloudevents-batch+json"}
        ) as response:
            assert response.content_type == "application/cloudevents-batch+json"
            batch = await response.json(content_type=None)
        async with client._session.get(f"{client.url}{here}/stream?after=0&format=cloudevents") as response:
            assert [data for _, data in await take(response, 2)] == batch
    assert len({(event["source"], event["id"]) for event in batch}) == 2
    for event in batch:
        data = event.pop("data")
        assert all(_ATTRIBUTE.fullmatch(name) for name in event), event.keys()
        assert all(
            value != "" and (isinstance(value, str | bool) or -(2**31) <= value < 2**31) for value in event.values()
        )
        assert (event["specversion"], event["type"], data["pod"]["namespace"]) == ("1.0", "kai.PodObserved", "default")
        assert datetime.fromisoformat(event["time"]).tzinfo is not None
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", event["traceparent"])


async def test_a_caller_of_one_namespace_gets_its_events_and_no_others(
    postgres_log: EventLog, cluster_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    red = make_key(file, "red", f"{cluster_name}/red", capsys=capsys)
    await record(postgres_log, cluster_name, "x", "y", namespace="blue")
    await record(postgres_log, cluster_name, "x", namespace="red")
    here = f"/v1/clusters/{cluster_name}/events"
    async with serving(postgres_log, file=file) as client:
        page = await client.get(here, key=red)
        assert ([item["subject"] for item in page["items"]], page["next"]) == (["red/x"], 3)
        assert (await client.get(f"{here}?subject=blue/x", key=red))["items"] == []
        await client.get(f"{here}?namespace=blue", key=red, status=403)
        headers = {"Authorization": f"Bearer {red}"}
        async with client._session.get(f"{client.url}{here}/stream?after=0", headers=headers) as response:
            assert [data["subject"] for _, data in await take(response, 1)] == ["red/x"]


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    """The contents of `/openapi.json`."""

    async def ask() -> dict[str, Any]:
        from kaicore.ledger.log.memory import MemoryLog

        async with serving(MemoryLog(clock=lambda: 0), anonymous="loopback") as client:
            answer: dict[str, Any] = await client.get("/openapi.json")
            return answer

    return asyncio.run(ask())


def test_the_description_is_valid_and_complete(description: dict[str, Any]) -> None:
    OpenAPI.model_validate(description)
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(description))
    assert {"Why", "Listing", "EventPage"} <= set(names) <= description["components"]["schemas"].keys()
    assert "HTTPValidationError" not in names
    for path, item in description["paths"].items():
        assert path.startswith("/v1/"), path
        for method, operation in item.items():
            assert operation.get("description"), f"{method} {path} says nothing of itself"
            declared = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
            assert declared == set(re.findall(r"{(\w+)}", path)), path


async def test_no_question_however_odd_makes_the_api_fail(
    postgres_log: EventLog, cluster_name: str, description: dict[str, Any]
) -> None:
    await record(postgres_log, cluster_name, "a", "b")
    # Those of processes of their own need the database's address, and the stream does not end.
    slow = ("/stream", "/replay", "/audit", "/calibration", "/what-if", "/report", "/shadow-report")
    asked = [
        (path, [one["name"] for one in item["get"].get("parameters", ()) if one["in"] == "query"])
        for path, item in description["paths"].items()
        if "get" in item and not path.endswith(slow)
    ]
    words = st.sampled_from(
        [
            "",
            "a",
            "default",
            "pods",
            "Pod",
            "Job",
            "0",
            "-1",
            "1-1",
            "99999999999999999999",
            "true",
            "ä",
            "a/b",
            "%",
            "1h",
        ]
    ) | st.text("az09-./:*", max_size=8)

    @settings(max_examples=examples(150), deadline=None)
    @given(st.data())
    def choose(data: st.DataObject) -> None:
        path, parameters = data.draw(st.sampled_from(asked))
        values = {"cluster": cluster_name}
        filled = re.sub(r"{(\w+)}", lambda match: quote(values.get(match[1]) or data.draw(words) or "x"), path)
        named = data.draw(st.lists(st.sampled_from(parameters), max_size=3)) if parameters else []
        chosen.append((filled, [(name, data.draw(words)) for name in named if name != "wait"]))

    chosen: list[tuple[str, list[tuple[str, str]]]] = []
    choose()
    async with serving(postgres_log, anonymous="loopback", burst=10_000) as client:
        for path, query in chosen:
            url = f"{client.url}{path}"
            async with client._session.get(url, params=query) as response:
                assert response.status < 500, f"{path} {query}: {await response.text()}"
                if response.status >= 400:
                    assert (await response.json())["error"], path


async def test_streams_beyond_the_limit_of_one_caller_are_refused(
    postgres_log: EventLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kai_api.events._STREAMS_EACH", 1)
    await record(postgres_log, cluster_name, "a")
    async with serving(postgres_log, anonymous="loopback") as client:
        path = f"/v1/clusters/{cluster_name}/events/stream?after=0"
        async with client._session.get(client.url + path) as response:
            await take(response, 1)
            assert "as many streams" in (await client.get(path, status=429))["error"]


async def test_streams_of_the_past_take_turns_so_that_other_questions_wait_for_one_turn_only(
    postgres_log: EventLog, cluster_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams, events = 20, 120
    spelled = most = 0

    def counted(event: Event) -> EventAnswer:
        nonlocal spelled
        spelled += 1
        return event_answer(event)

    await record(postgres_log, cluster_name, *(f"p{number}" for number in range(events)))
    monkeypatch.setattr("kai_api.events.event_answer", counted)
    async with serving(postgres_log, anonymous="loopback") as client:
        url = f"{client.url}/v1/clusters/{cluster_name}/events/stream?after=0"

        async def positions() -> list[str]:
            async with client._session.get(url) as response:
                return [identity for identity, _ in await take(response, events)]

        answers = asyncio.gather(*(positions() for _ in range(streams)))
        while not answers.done():
            before = spelled
            await asyncio.sleep(0)
            most = max(most, spelled - before)
    assert await answers == [[str(number) for number in range(1, events + 1)]] * streams
    assert (spelled, most) == (streams * events, 50)
