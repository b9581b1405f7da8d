"""Lists: pages, selectors, versions, forms."""

import asyncio

import pytest

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, binding, config_map, node, pod


async def test_pages_show_one_moment_however_much_changes_meanwhile(client: Client) -> None:
    for i in range(20):
        await client.post(CONFIG_MAPS, config_map(f"c{i:02}"))
    page = await client.get(f"{CONFIG_MAPS}?limit=7")
    names, version = page.items, page.json["metadata"]["resourceVersion"]
    assert page.json["metadata"]["remainingItemCount"] == 13
    await client.delete(f"{CONFIG_MAPS}/c15")
    await client.post(CONFIG_MAPS, config_map("c09a"))
    await client.merge(f"{CONFIG_MAPS}/c10", {"data": {"changed": "yes"}})
    seen = []
    while token := page.json["metadata"].get("continue"):
        page = await client.get(f"{CONFIG_MAPS}?limit=7&continue={token}")
        assert page.json["metadata"]["resourceVersion"] == version
        seen += page.json["items"]
        names += page.items
    assert names == [f"c{i:02}" for i in range(20)]
    assert not any("data" in item for item in seen), "the change came after the first page"


async def test_a_page_of_a_selection_does_not_count_the_rest(client: Client) -> None:
    for i in range(6):
        labels = {"metadata": {"name": f"c{i}", "labels": {"even": str(i % 2 == 0).lower()}}}
        await client.post(CONFIG_MAPS, labels)
    page = await client.get(f"{CONFIG_MAPS}?limit=2&labelSelector=even%3Dtrue")
    assert page.items == ["c0", "c2"]
    assert "remainingItemCount" not in page.json["metadata"]
    token = page.json["metadata"]["continue"]
    last = await client.get(f"{CONFIG_MAPS}?limit=2&labelSelector=even%3Dtrue&continue={token}")
    assert last.items == ["c4"]
    assert "continue" not in last.json["metadata"]


async def test_a_token_that_is_too_old_says_how_to_go_on(client: Client) -> None:
    for i in range(4):
        await client.post(NODES, node(f"n{i}"))
    token = (await client.get(f"{NODES}?limit=2")).json["metadata"]["continue"]
    await client.post(NODES, node("n1a"))
    await client.post("/simulator/compact", {})
    expired = await client.get(f"{NODES}?limit=2&continue={token}")
    assert (expired.status, expired.json["reason"]) == (410, "Expired")
    fresh = expired.json["metadata"]["continue"]
    rest = await client.get(f"{NODES}?continue={fresh}")
    assert rest.items == ["n1a", "n2", "n3"], "as things are now"


async def test_malformed_continue_token_is_refused(client: Client) -> None:
    assert (await client.get(f"{NODES}?continue=nonsense")).status == 400


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", ["x", "y"]),
        ("a==1,b", ["y"]),
        ("a!=1", ["z"]),
        ("a in (1,2)", ["x", "y", "z"]),
        ("a notin (1)", ["z"]),
        ("!b", ["x", "z"]),
        ("b", ["y"]),
        ("n>5", ["z"]),
        ("n<5", ["x"]),
        ("example.com/k=v", ["z"]),
    ],
)
async def test_label_selector_selects_the_expected_objects(client: Client, selector: str, names: list[str]) -> None:
    labels = {
        "x": {"a": "1", "n": "3"},
        "y": {"a": "1", "b": ""},
        "z": {"a": "2", "n": "7", "example.com/k": "v"},
    }
    for name, given in labels.items():
        await client.post(CONFIG_MAPS, {"metadata": {"name": name, "labels": given}})
    query = selector.replace("=", "%3D").replace(" ", "%20").replace("<", "%3C").replace(">", "%3E")
    assert (await client.get(f"{CONFIG_MAPS}?labelSelector={query}")).items == names


@pytest.mark.parametrize("selector", ["a%20in%201", "%3Dx", "a%3D%C3%A4", "a%20b"])
async def test_malformed_selector_is_refused(client: Client, selector: str) -> None:
    answer = await client.get(f"{CONFIG_MAPS}?labelSelector={selector}")
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


async def test_field_selector_selects_the_expected_pods(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.post(PODS, pod(name))
    await client.post(f"{PODS}/b/binding", binding("b", "n1"))

    async def select(text: str) -> list[str]:
        return (await client.get(f"/api/v1/pods?fieldSelector={text.replace('=', '%3D')}")).items

    assert await select("spec.nodeName=n1") == ["b"]
    assert await select("spec.nodeName=") == ["a", "c"]
    assert await select("spec.nodeName!=n1") == ["a", "c"]
    assert await select("spec.nodeName=n1,status.phase=Failed") == []
    assert await select("metadata.name=c") == ["c"]
    assert await select("metadata.name!=c,metadata.namespace=default") == ["a", "b"]
    assert await select("metadata.namespace=other") == []
    assert await select("spec.hostNetwork=false") == ["a", "b", "c"]


async def test_indexed_selection_is_listed_in_pages(client: Client) -> None:
    for name in ("a", "b", "c", "d"):
        await client.post(PODS, pod(name))
        await client.post(f"{PODS}/{name}/binding", binding(name, "n1" if name != "b" else "n2"))
    first = await client.get(f"{PODS}?fieldSelector=spec.nodeName%3Dn1&limit=2")
    token = first.json["metadata"]["continue"]
    second = await client.get(f"{PODS}?fieldSelector=spec.nodeName%3Dn1&limit=2&continue={token}")
    assert (first.items, second.items) == (["a", "c"], ["d"])


async def test_a_selection_keeps_to_its_namespace(client: Client) -> None:
    await client.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    for namespace in ("default", "other"):
        await client.post(f"/api/v1/namespaces/{namespace}/pods", pod("a"))
        await client.post(f"/api/v1/namespaces/{namespace}/pods/a/binding", binding("a", "n1"))
    assert (await client.get(f"{PODS}?fieldSelector=spec.nodeName%3Dn1")).items == ["a"]
    assert (await client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")).items == ["a", "a"]
    assert (await client.get("/api/v1/pods?fieldSelector=metadata.namespace%3Dother")).items == ["a"]


async def test_an_exact_version_shows_the_past(client: Client) -> None:
    then = (await client.post(CONFIG_MAPS, config_map("a"))).json["metadata"]["resourceVersion"]
    await client.delete(f"{CONFIG_MAPS}/a")
    await client.post(CONFIG_MAPS, config_map("b"))
    past = await client.get(f"{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")
    assert (past.items, past.json["metadata"]["resourceVersion"]) == (["a"], then)
    await client.post("/simulator/compact", {})
    assert (await client.get(f"{CONFIG_MAPS}?resourceVersion={then}&resourceVersionMatch=Exact")).status == 410


async def test_a_list_waits_for_a_version_that_is_about_to_come(client: Client) -> None:
    now = int((await client.get(PODS)).json["metadata"]["resourceVersion"])
    waiting = asyncio.create_task(client.get(f"{PODS}?resourceVersion={now + 1}&resourceVersionMatch=NotOlderThan"))
    await client.post(PODS, pod("a"))
    assert (await waiting).items == ["a"]


async def test_a_match_needs_a_version(client: Client) -> None:
    answer = await client.get(f"{PODS}?resourceVersionMatch=Exact")
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")


async def test_table_rows_have_the_whole_object_its_metadata_or_none(client: Client) -> None:
    await client.post(PODS, pod("a"))
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    whole = await client.get(f"{PODS}?includeObject=Object", headers=accept)
    assert whole.json["rows"][0]["object"]["spec"]["containers"][0]["name"] == "c"
    bare = await client.get(f"{PODS}?includeObject=None", headers=accept)
    assert "object" not in bare.json["rows"][0]


async def test_events_have_two_faces(client: Client) -> None:
    event = {"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "R", "message": "m"}
    await client.post("/api/v1/namespaces/default/events", event)
    shown = (await client.get("/apis/events.k8s.io/v1/namespaces/default/events/e")).json
    assert (shown["apiVersion"], shown["note"], shown["regarding"]) == (
        "events.k8s.io/v1",
        "m",
        {"kind": "Pod", "name": "p"},
    )
    listed = (await client.get("/apis/events.k8s.io/v1/events?fieldSelector=involvedObject.name%3Dp")).json["items"]
    assert listed[0]["note"] == "m"
