"""Watches: resuming, bookmarks, 410, initial events, selectors, and the events of each watcher."""

import asyncio
import json
from collections.abc import Callable

import aiohttp
import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, binding, config_map, node, pod
from tests.tools.apiserver.conftest import ServerFactory


async def test_a_watch_resumes_without_loss_or_repetition(client: Client) -> None:
    first = (await client.post(PODS, pod("a"))).json["metadata"]["resourceVersion"]
    for name in ("b", "c"):
        await client.post(PODS, pod(name))
    async with client.watch(f"{PODS}?resourceVersion={first}") as watch:
        assert [(await watch.next())["object"]["metadata"]["name"] for _ in range(2)] == ["b", "c"]
        await client.post(PODS, pod("d"))
        assert (await watch.next())["object"]["metadata"]["name"] == "d"


async def test_without_a_version_a_watch_begins_with_what_is_there(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    async with client.watch(CONFIG_MAPS) as watch:
        assert (await watch.next())["type"] == "ADDED"
        await client.merge(f"{CONFIG_MAPS}/a", {"data": {"x": "1"}})
        event = await watch.next()
        assert (event["type"], event["object"]["data"]) == ("MODIFIED", {"x": "1"})


async def test_initial_events_end_with_a_marked_bookmark(client: Client) -> None:
    for name in ("a", "b"):
        await client.post(CONFIG_MAPS, config_map(name))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    async with client.watch(f"{CONFIG_MAPS}?{query}") as watch:
        assert [(await watch.next())["type"] for _ in range(2)] == ["ADDED", "ADDED"]
        bookmark = await watch.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        listed = (await client.get(CONFIG_MAPS)).json["metadata"]["resourceVersion"]
        assert bookmark["object"]["metadata"]["resourceVersion"] == listed


async def test_initial_events_need_the_right_match(client: Client) -> None:
    answer = await client.get(f"{PODS}?watch=1&sendInitialEvents=true")
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")


async def test_a_watch_of_half_a_second_is_refused_as_a_real_server_does(client: Client) -> None:
    answer = await client.get(f"{PODS}?watch=1&timeoutSeconds=300.0")
    assert (answer.status, answer.json["message"]) == (400, 'strconv.ParseInt: parsing "300.0": invalid syntax')


async def test_bookmarks_carry_the_latest_version(start_server: ServerFactory) -> None:
    server = await start_server(controllers=False, bookmark_s=0.05)
    async with Client(server.http_url, server.admin_token) as client:
        rv = (await client.get(PODS)).json["metadata"]["resourceVersion"]
        created = await client.post(CONFIG_MAPS, config_map("elsewhere"))
        async with client.watch(f"{PODS}?resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=30") as watch:
            bookmark = await watch.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == created.json["metadata"]["resourceVersion"]
        assert bookmark["object"]["kind"] == "Pod"


async def test_forgotten_versions_are_gone_and_later_ones_are_not(start_server: ServerFactory) -> None:
    server = await start_server(controllers=False, history=3)
    async with Client(server.http_url, server.admin_token) as client:
        versions = [
            (await client.post(CONFIG_MAPS, config_map(f"c{i}"))).json["metadata"]["resourceVersion"] for i in range(6)
        ]
        async with client.watch(f"{CONFIG_MAPS}?resourceVersion={versions[1]}") as watch:
            (event,) = await watch.rest()
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
        async with client.watch(f"{CONFIG_MAPS}?resourceVersion={versions[2]}") as watch:
            assert [(await watch.next())["object"]["metadata"]["name"] for _ in range(3)] == ["c3", "c4", "c5"]


async def test_an_object_that_comes_to_match_is_added_and_one_that_ceases_to_is_deleted(client: Client) -> None:
    await client.post(PODS, pod("a"))
    async with client.watch(f"{PODS}?labelSelector=app%3Dx") as watch:
        await client.merge(f"{PODS}/a", {"metadata": {"labels": {"app": "x"}}})
        assert (await watch.next())["type"] == "ADDED"
        await client.merge(f"{PODS}/a", {"metadata": {"annotations": {"k": "v"}}})
        assert (await watch.next())["type"] == "MODIFIED"
        changed = await client.merge(f"{PODS}/a", {"metadata": {"labels": {"app": "y"}}})
        gone = await watch.next()
        assert gone["type"] == "DELETED"
        assert gone["object"]["metadata"]["labels"] == {"app": "x"}, "the last state that matched"
        assert gone["object"]["metadata"]["resourceVersion"] == changed.json["metadata"]["resourceVersion"]


async def test_a_node_watches_its_own_pods(client: Client) -> None:
    for name in ("a", "b"):
        await client.post(PODS, pod(name))
    async with client.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1") as watch:
        await client.post(f"{PODS}/b/binding", binding("b", "n2"))
        await client.post(f"{PODS}/a/binding", binding("a", "n1"))
        event = await watch.next()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
        await client.delete(f"{PODS}/a?gracePeriodSeconds=0")
        assert [(await watch.next())["type"] for _ in range(2)] == ["MODIFIED", "DELETED"]


async def test_watch_of_one_object_by_name_sees_no_other(client: Client) -> None:
    await client.post(NODES, node("n1"))
    async with client.watch(f"{NODES}?fieldSelector=metadata.name%3Dn1") as watch:
        assert (await watch.next())["object"]["metadata"]["name"] == "n1"
        await client.post(NODES, node("n2"))
        await client.merge(f"{NODES}/n1", {"spec": {"unschedulable": True}})
        assert (await watch.next())["object"]["spec"] == {"unschedulable": True}


async def test_a_table_watch_has_headings_once(client: Client) -> None:
    await client.post(PODS, pod("a"))
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    answer = await client.get(f"{PODS}?watch=1&timeoutSeconds=1", headers=accept)
    (event,) = [json.loads(line) for line in answer.text.splitlines()]
    assert event["object"]["kind"] == "Table"
    assert event["object"]["rows"][0]["cells"][0] == "a"
    assert event["object"]["columnDefinitions"][0]["name"] == "Name"


async def test_many_watchers_see_the_same_events_in_the_same_order(client: Client) -> None:
    async def follow(opened: asyncio.Event) -> list[tuple[str, str]]:
        async with client.watch(CONFIG_MAPS) as watch:
            opened.set()
            return [((e := await watch.next())["type"], e["object"]["metadata"]["resourceVersion"]) for _ in range(60)]

    opened = [asyncio.Event() for _ in range(8)]
    followers = [asyncio.create_task(follow(event)) for event in opened]
    await asyncio.gather(*(event.wait() for event in opened))
    for i in range(20):
        await client.post(CONFIG_MAPS, config_map(f"c{i}"))
        await client.merge(f"{CONFIG_MAPS}/c{i}", {"data": {"k": "v"}})
        await client.delete(f"{CONFIG_MAPS}/c{i}")
    seen = await asyncio.gather(*followers)
    assert all(events == seen[0] for events in seen)
    versions = [int(version) for _, version in seen[0]]
    assert versions == sorted(versions)


async def test_a_watch_ends_when_the_server_stops(start_server: ServerFactory) -> None:
    server = await start_server(controllers=False)
    async with Client(server.http_url, server.admin_token) as client, client.watch(PODS) as watch:
        await server.stop()
        assert await watch.rest() == []


async def _until(satisfied: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not satisfied():  # noqa: ASYNC110  # the server tells only who asks
            await asyncio.sleep(0.01)


async def _without_watches(server: ApiServer) -> None:
    await _until(lambda: not server._watches.open)


async def _until_struck(server: ApiServer) -> None:
    await _until(lambda: server.faults.rules[0].hits > 0)


async def test_watch_of_a_client_that_has_gone_ends_without_an_event(client: Client, server: ApiServer) -> None:
    async with client.watch(f"{PODS}?timeoutSeconds=3600"):
        assert len(server._watches.open) == 1
    await _without_watches(server)


async def test_delayed_watch_of_a_client_that_has_gone_ends(client: Client, server: ApiServer) -> None:
    fault = {"match": {"resource": "nodes"}, "fault": {"kind": "delay-event", "seconds": 3600}}
    await client.post("/simulator/faults", fault)
    async with client.watch(f"{NODES}?timeoutSeconds=3600"):
        await client.post(NODES, node("n1"))
        await _until_struck(server)
    await _without_watches(server)


async def test_server_that_stops_ends_watches_well_and_cuts_requests_under_way() -> None:
    server = ApiServer(ApiServerOptions(controllers=False))
    await server.start()
    async with Client(server.http_url, server.admin_token) as client, client.watch(PODS) as watch:
        await client.post(
            "/simulator/faults", {"match": {"verb": "get"}, "fault": {"kind": "latency", "seconds": 3600}}
        )
        waiting = asyncio.create_task(client.get(f"{PODS}/a"))
        await _until_struck(server)
        async with asyncio.timeout(60):
            await server.stop()
        assert await watch.rest() == []
        with pytest.raises(aiohttp.ClientError):
            await waiting
