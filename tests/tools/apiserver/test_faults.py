"""Faults on demand: counted, aimed, and lifted."""

from typing import Any

import aiohttp
import pytest

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, binding, config_map, node, pod

FAULTS = "/simulator/faults"


def rule(kind: str, match: dict[str, Any] | None = None, **fault: Any) -> dict[str, Any]:
    return {"match": match or {}, "fault": {"kind": kind, **fault}}


async def statuses(client: Client, path: str, count: int) -> list[int]:
    return [(await client.get(path)).status for _ in range(count)]


async def test_rules_count_their_matches(client: Client) -> None:
    match = {"verb": "list", "resource": "pods"}
    await client.post(FAULTS, [rule("internal-error", match, after=1, every=2, times=2)])
    assert await statuses(client, PODS, 7) == [200, 500, 200, 500, 200, 200, 200]
    assert await statuses(client, NODES, 2) == [200, 200]
    (shown,) = (await client.get(FAULTS)).json["rules"]
    assert (shown["matched"], shown["hits"], shown["match"]["resource"]) == (7, 2, "pods")


@pytest.mark.parametrize(
    ("kind", "code", "reason"),
    [
        ("conflict", 409, "Conflict"),
        ("too-many-requests", 429, "TooManyRequests"),
        ("internal-error", 500, "InternalError"),
        ("gone", 410, "Expired"),
        ("unauthorized", 401, "Unauthorized"),
    ],
)
async def test_rule_answers_with_its_fault(client: Client, kind: str, code: int, reason: str) -> None:
    await client.post(FAULTS, rule(kind, {"resource": "pods"}, times=1, seconds=3))
    answer = await client.get(PODS)
    assert (answer.status, answer.json["code"], answer.json["reason"]) == (code, code, reason)
    if code == 429:
        assert answer.headers["Retry-After"] == "3"
    assert (await client.get(PODS)).status == 200


async def test_rules_aim_at_subresources_names_and_programs(client: Client) -> None:
    await client.post(PODS, pod("p"))
    match = {"verb": "create", "resource": "pods", "subresource": "binding", "name": "p", "userAgent": "binder"}
    await client.post(FAULTS, rule("conflict", match))
    assert (await client.get(f"{PODS}/p", headers={"User-Agent": "kai-binder/1"})).status == 200
    bind = f"{PODS}/p/binding"
    assert (await client.post(bind, binding("p", "n1"), headers={"User-Agent": "kai-binder/1"})).status == 409
    assert (await client.post(bind, binding("p", "n1"))).status == 201


async def test_a_lost_answer_was_an_answer(client: Client) -> None:
    await client.post(FAULTS, rule("lost-answer", {"verb": "create", "resource": "configmaps"}, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.post(CONFIG_MAPS, config_map("a"))
    assert (await client.get(CONFIG_MAPS)).items == ["a"], "written, but no watch has it"


async def test_half_an_answer_was_an_answer(client: Client) -> None:
    await client.post(FAULTS, rule("half-answer", {"verb": "create", "resource": "configmaps"}, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.post(CONFIG_MAPS, config_map("a"))
    await client.post(FAULTS, rule("half-answer", {"verb": "list"}, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.get(CONFIG_MAPS)
    assert (await client.get(CONFIG_MAPS)).items == ["a"]


async def test_a_watch_is_cut_in_the_middle_of_an_event(client: Client) -> None:
    await client.post(FAULTS, rule("half-event", {"resource": "configmaps"}, times=1))
    async with client.watch(f"{CONFIG_MAPS}?timeoutSeconds=5") as watch:
        await client.post(CONFIG_MAPS, config_map("a"))
        with pytest.raises((aiohttp.ClientError, ValueError)):
            await watch.next()


async def test_lost_answer_of_a_watch_has_its_events_and_no_end(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    await client.post(FAULTS, rule("lost-answer", {"verb": "watch"}, times=1))
    async with client.watch(f"{CONFIG_MAPS}?timeoutSeconds=1") as watch:
        assert (await watch.next())["object"]["metadata"]["name"] == "a"
        with pytest.raises(aiohttp.ClientError):
            await watch.rest()


async def test_lost_answer_of_a_list_that_comes_in_pieces_has_no_end(client: Client) -> None:
    for name in "ab":
        await client.post(CONFIG_MAPS, config_map(name, x="x" * 1_000_000))
    await client.post(FAULTS, rule("lost-answer", {"verb": "list"}, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.get(CONFIG_MAPS)
    assert (await client.get(CONFIG_MAPS)).items == ["a", "b"]


async def test_a_reset_connection_did_nothing(client: Client) -> None:
    await client.post(FAULTS, rule("reset", {"verb": "create"}, times=1))
    with pytest.raises(aiohttp.ClientError):
        await client.post(CONFIG_MAPS, config_map("a"))
    assert (await client.get(CONFIG_MAPS)).items == []


async def test_a_watch_is_dropped_after_so_many_events_and_can_be_resumed(client: Client) -> None:
    await client.post(FAULTS, rule("drop-watch", {"resource": "configmaps"}, after=2, times=1))
    last = (await client.get(CONFIG_MAPS)).json["metadata"]["resourceVersion"]
    async with client.watch(f"{CONFIG_MAPS}?resourceVersion={last}") as watch:
        for name in ("c0", "c1"):
            await client.post(CONFIG_MAPS, config_map(name))
            event = await watch.next()
            assert event["object"]["metadata"]["name"] == name
            last = event["object"]["metadata"]["resourceVersion"]
        for name in ("c2", "c3"):
            await client.post(CONFIG_MAPS, config_map(name))
        with pytest.raises(aiohttp.ClientError):
            await watch.next()
    async with client.watch(f"{CONFIG_MAPS}?resourceVersion={last}") as watch:
        assert [(await watch.next())["object"]["metadata"]["name"] for _ in range(2)] == ["c2", "c3"]


async def test_open_watches_are_told_that_their_version_is_gone(client: Client) -> None:
    async with client.watch(PODS) as pods, client.watch(NODES) as nodes:
        await client.post(NODES, node("n1"))
        await nodes.until("ADDED", "n1")
        shown = await client.post(FAULTS, rule("gone", {"verb": "watch", "resource": "pods"}, when="now"))
        assert shown.json["rules"][0]["hits"] == 1
        (event,) = await pods.rest()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
        await client.post(NODES, node("n2"))
        await nodes.until("ADDED", "n2")


async def test_watch_is_gone_as_it_opens_by_a_rule(client: Client) -> None:
    await client.post(FAULTS, rule("gone", {"resource": "pods"}, when="open", times=1))
    async with client.watch(f"{PODS}?resourceVersion=1") as watch:
        (event,) = await watch.rest()
    assert event["object"]["reason"] == "Expired"


async def test_event_comes_twice_by_a_rule(client: Client) -> None:
    await client.post(FAULTS, rule("duplicate-event", {"resource": "configmaps"}, every=2))
    async with client.watch(CONFIG_MAPS) as watch:
        for name in "abc":
            await client.post(CONFIG_MAPS, config_map(name))
        names = [(await watch.next())["object"]["metadata"]["name"] for _ in range(5)]
    assert names == ["a", "a", "b", "c", "c"]


async def test_a_delayed_watch_lets_other_resources_overtake(client: Client) -> None:
    await client.post(FAULTS, rule("delay-event", {"resource": "nodes"}, seconds=3600))
    async with client.watch(NODES), client.watch(PODS) as pods:
        await client.post(NODES, node("n1"))
        await client.post(PODS, pod("p"))
        assert (await pods.next())["object"]["metadata"]["name"] == "p"


async def test_rule_with_a_chance_is_repeatable_by_its_seed(client: Client) -> None:
    def outcome() -> dict[str, Any]:
        return rule("internal-error", {"resource": "pods"}, probability=0.5, seed=7)

    runs = []
    for _ in range(2):
        await client.post(FAULTS, outcome())
        runs.append(await statuses(client, PODS, 20))
        await client.delete(FAULTS)
    assert runs[0] == runs[1]
    assert {200, 500} == set(runs[0])


async def test_rules_are_lifted_one_by_one_or_all(client: Client) -> None:
    rules = (await client.post(FAULTS, [rule("conflict", {"resource": "pods"}), rule("latency")])).json["rules"]
    left = await client.delete(f"{FAULTS}/{rules[0]['id']}")
    assert [item["fault"]["kind"] for item in left.json["rules"]] == ["latency"]
    assert (await client.get(PODS)).status == 200
    await client.delete(FAULTS)
    assert (await client.get(FAULTS)).json == {"rules": []}


@pytest.mark.parametrize(
    "given",
    [
        rule("earthquake"),
        {"match": {"resorce": "pods"}, "fault": {"kind": "latency"}},
        rule("latency", seconds=-1),
        rule("conflict", every=0),
        "nonsense",
    ],
)
async def test_malformed_rule_is_refused(client: Client, given: Any) -> None:
    answer = await client.post(FAULTS, given)
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")
    assert answer.json["message"].startswith("fault rules: ")
