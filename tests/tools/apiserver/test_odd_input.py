"""Odd names, field names and operators: distinguished, refused or kept, and never a reason to break down."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kai_apiserver.server import ApiServer, ApiServerOptions

from tests.tools.apiserver.client import CONFIG_MAPS, PODS, Client, config_map, pod
from tests.tools.apiserver.conftest import ServerFactory
from tests.tools.apiserver.test_rights import RBAC

Json = dict[str, Any]
ROLES = f"{RBAC}/clusterroles"
ODD_NAMES = ["my role", "a\nb", "a - b", 'x {"y"', "rôle", "system:x y", "-", "a\x00b"]
ODD_FIELDS = ["a\nb", "a\rb", "a\x00b", "a\x7fb", 'q"\\', "\N{GRINNING FACE}", "a" * 9000]


@pytest.mark.parametrize("snapshot", [False, True])
async def test_names_with_blanks_are_there_after_a_restart(tmp_path: Path, snapshot: bool) -> None:
    options = ApiServerOptions(controllers=False, data_dir=tmp_path)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        for name in ODD_NAMES:
            assert (await client.post(ROLES, {"metadata": {"name": name}})).status == 201, name
        await client.delete(f"{ROLES}/{quote(ODD_NAMES[-1])}")
        if snapshot:
            server.store.start_snapshot()
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        assert {*(await client.get(ROLES)).items} == {"cluster-admin", *ODD_NAMES[:-1]}
        for name in ODD_NAMES[:-1]:
            assert (await client.get(f"{ROLES}/{quote(name)}")).json["metadata"]["name"] == name


@pytest.mark.parametrize("name", [".", "..", "a/b", "a%b"])
async def test_names_that_no_path_can_have_are_refused(client: Client, name: str) -> None:
    assert (await client.post(ROLES, {"metadata": {"name": name}})).status == 422


@pytest.mark.parametrize("field", ODD_FIELDS)
async def test_unknown_fields_are_told_whatever_they_are_called(client: Client, field: str) -> None:
    made = await client.post(CONFIG_MAPS, {**config_map("c"), field: 1})
    assert made.status == 201, made
    (warning,) = made.headers.getall("Warning")
    assert warning.startswith('299 - "unknown field \\"')
    refused = await client.post(f"{CONFIG_MAPS}?fieldValidation=Strict", {**config_map("d"), field: 1})
    assert refused.status == 400
    assert (await client.get("/readyz")).status == 200


async def test_of_very_many_warnings_the_first_are_told(client: Client) -> None:
    made = await client.post(CONFIG_MAPS, {**config_map("c"), **{f"unknown-{number}": 1 for number in range(5000)}})
    assert made.status == 201
    assert 1 <= len(made.headers.getall("Warning")) < 100


def selector(operator: Any) -> Json:
    return {"matchExpressions": [{"key": "a", "operator": operator, "values": ["x"]}]}


@pytest.mark.parametrize("operator", ["Near", "", "in"])
async def test_operators_that_there_are_not_are_refused(client: Client, operator: str) -> None:
    budget = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": selector(operator)}}
    refused = await client.post("/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    (cause,) = refused.json["details"]["causes"]
    assert (refused.status, cause["field"]) == (422, "spec.selector.matchExpressions[0].operator")
    tolerations = [{"key": "a", "operator": operator}]
    if operator:
        assert (await client.post(PODS, pod("p", tolerations=tolerations))).status == 422


async def test_a_disruption_budget_of_before_with_an_odd_operator_disturbs_no_other(
    start_server: ServerFactory,
) -> None:
    server = await start_server(controllers=True)
    async with Client(server.http_url, server.admin_token) as client:
        path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await client.post(path, {"metadata": {"name": "odd"}, "spec": {"minAvailable": 1, "selector": selector("In")}})
        collection = server.store.collection("poddisruptionbudgets.policy")
        stored = collection.get("default/odd")
        assert stored is not None
        odd = stored.decode()
        odd["spec"]["selector"] = selector("Near")
        server.store.update(collection, odd, stored)
        await client.post(path, {"metadata": {"name": "good"}, "spec": {"minAvailable": 0, "selector": selector("In")}})
        async with client.watch(f"{path}?fieldSelector=metadata.name=good") as watch:
            while "observedGeneration" not in (await watch.next())["object"]["status"]:
                pass


async def test_a_grace_period_that_is_no_number_is_refused(client: Client) -> None:
    await client.post(PODS, pod("p"))
    assert (await client.delete(f"{PODS}/p?gracePeriodSeconds=soon")).status == 400
