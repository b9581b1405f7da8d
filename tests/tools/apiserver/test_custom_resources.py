"""Definitions of custom resources, and what becomes of their objects."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from scripts.chart import documents
from tests.tools.apiserver.client import Client

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RACKS = "/apis/example.com/v1/racks"
SHIPPED = [
    definition
    for path in sorted((Path(__file__).parents[3] / "deploy" / "k8s" / "crds").rglob("*.yaml"))
    for definition in documents(path.read_text())
]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["units"],
            "properties": {
                "units": {"type": "integer", "minimum": 1, "maximum": 48},
                "used": {"type": "integer", "default": 0},
                "site": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
                "limit": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "ports": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}, "speed": {"type": "integer", "default": 10}},
                    },
                },
                "size": {"type": "string", "enum": ["small", "large"], "nullable": True},
            },
        },
        "status": {"type": "object", "properties": {"used": {"type": "integer"}}},
    },
}


def definition(**version: Any) -> dict[str, Any]:
    names = {"plural": "racks", "kind": "Rack", "shortNames": ["rk"]}
    made = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": deepcopy(SCHEMA)}, **version}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "racks.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": names, "versions": [made]},
    }


def rack(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "example.com/v1", "kind": "Rack", "metadata": {"name": "r"}, "spec": spec}


@pytest.fixture
async def racks(client: Client) -> Client:
    assert (await client.post(DEFINITIONS, definition(subresources={"status": {}}))).status == 201
    return client


def causes(answer: Any) -> dict[str, str]:
    return {cause["field"]: cause["message"] for cause in answer.json["details"]["causes"]}


async def test_objects_are_pruned_and_defaulted_all_the_way_down(racks: Client) -> None:
    given = rack(units=4, limit="50%", free={"any": {"thing": [1]}}, ports=[{"name": "a", "odd": 1}], size=None, x=1)
    answer = await racks.post(RACKS, given)
    assert answer.json["spec"] == {
        "units": 4,
        "used": 0,
        "limit": "50%",
        "free": {"any": {"thing": [1]}},
        "ports": [{"name": "a", "speed": 10}],
        "size": None,
    }
    warnings = answer.headers.getall("Warning")
    assert [w.split('\\"')[1] for w in warnings] == ["spec.ports[0].odd", "spec.x"]
    strict = await racks.post(f"{RACKS}?fieldValidation=Strict", rack(units=4, x=1))
    assert (strict.status, strict.json["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("spec", "field", "message"),
    [
        ({}, "spec.units", "Required value"),
        ({"units": 0}, "spec.units", "should be greater than or equal to 1"),
        ({"units": 49}, "spec.units", "should be less than or equal to 48"),
        ({"units": "4"}, "spec.units", 'must be of type integer: "string"'),
        ({"units": 4, "site": "A1"}, "spec.site", "should match '^[a-z]+$'"),
        ({"units": 4, "site": "abcdefghi"}, "spec.site", "may not be more than 8 bytes"),
        ({"units": 4, "limit": 1.5}, "spec.limit", 'must be of type integer,string: "number"'),
        ({"units": 4, "ports": [{"name": "a"}, {"name": "a"}]}, "spec.ports[1]", "Duplicate value"),
        ({"units": 4, "ports": [{}]}, "spec.ports[0].name", "Required value"),
        ({"units": 4, "size": "huge"}, "spec.size", 'supported values: "small", "large"'),
    ],
)
async def test_object_that_the_schema_refuses_is_named_with_its_field(
    racks: Client, spec: dict[str, Any], field: str, message: str
) -> None:
    answer = await racks.post(RACKS, rack(**spec))
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert message in causes(answer)[field]


async def test_replacing_wants_a_version(racks: Client) -> None:
    created = (await racks.post(RACKS, rack(units=4))).json
    assert (await racks.put(f"{RACKS}/r", rack(units=5))).status == 422
    created["spec"]["units"] = 5
    assert (await racks.put(f"{RACKS}/r", created)).json["metadata"]["generation"] == 2


async def test_apply_merges_lists_by_the_keys_of_the_schema(racks: Client) -> None:
    await racks.apply(f"{RACKS}/r", rack(units=4, ports=[{"name": "a", "speed": 1}]), manager="one")
    second = await racks.apply(f"{RACKS}/r", rack(units=4, ports=[{"name": "b", "speed": 2}]), manager="two")
    assert second.json["spec"]["ports"] == [{"name": "a", "speed": 1}, {"name": "b", "speed": 2}]
    left = await racks.apply(f"{RACKS}/r", rack(units=4), manager="one")
    assert left.json["spec"]["ports"] == [{"name": "b", "speed": 2}]


async def test_versions_differ_only_in_name(client: Client) -> None:
    made = definition()
    made["spec"]["versions"].append(
        {**made["spec"]["versions"][0], "name": "v1beta1", "storage": False, "served": True}
    )
    await client.post(DEFINITIONS, made)
    await client.post(RACKS, rack(units=4))
    old = await client.get("/apis/example.com/v1beta1/racks/r")
    assert (old.json["apiVersion"], old.json["spec"]["units"]) == ("example.com/v1beta1", 4)
    listed = await client.get("/apis/example.com/v1beta1/racks")
    assert {item["apiVersion"] for item in listed.json["items"]} == {"example.com/v1beta1"}
    async with client.watch("/apis/example.com/v1beta1/racks") as watch:
        assert (await watch.next())["object"]["apiVersion"] == "example.com/v1beta1"


async def test_a_changed_definition_holds_at_once(racks: Client) -> None:
    await racks.post(RACKS, rack(units=4))
    current = (await racks.get(f"{DEFINITIONS}/racks.example.com")).json
    version = current["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["colour"] = {"type": "string"}
    version["additionalPrinterColumns"] = [
        {"name": "Units", "type": "integer", "jsonPath": ".spec.units"},
        {"name": "First", "type": "string", "jsonPath": '.spec.ports[?(@.name=="a")].speed'},
    ]
    assert (await racks.put(f"{DEFINITIONS}/racks.example.com", current)).status == 200
    coloured = await racks.merge(f"{RACKS}/r", {"spec": {"colour": "red", "ports": [{"name": "a"}]}})
    assert coloured.json["spec"]["colour"] == "red"
    table = await racks.get(RACKS, headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"})
    assert table.json["rows"][0]["cells"] == ["r", 4, "10"]


async def test_a_deleted_definition_takes_its_objects_along(racks: Client) -> None:
    await racks.post(RACKS, rack(units=4))
    async with racks.watch(RACKS) as watch:
        assert (await watch.next())["type"] == "ADDED"
        await racks.delete(f"{DEFINITIONS}/racks.example.com")
        assert [event["type"] for event in await watch.rest()] == ["DELETED"]
    assert (await racks.get(RACKS)).status == 404
    assert (await racks.get(f"{DEFINITIONS}/racks.example.com")).status == 404


async def test_a_definition_waits_for_the_finalizers_of_its_objects(racks: Client) -> None:
    await racks.post(RACKS, rack(units=4) | {"metadata": {"name": "r", "finalizers": ["example.com/wait"]}})
    deleted = await racks.delete(f"{DEFINITIONS}/racks.example.com")
    assert deleted.json["metadata"]["deletionTimestamp"]
    assert (await racks.get(f"{RACKS}/r")).json["metadata"]["deletionTimestamp"]
    async with racks.watch(f"{DEFINITIONS}?fieldSelector=metadata.name%3Dracks.example.com") as watch:
        await racks.merge(f"{RACKS}/r", {"metadata": {"finalizers": []}})
        await watch.until("DELETED")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"metadata": {"name": "other.example.com"}}, "metadata.name"),
        ({"scope": "Galaxy"}, "spec.scope"),
        ({"versions": []}, "spec.versions"),
        ({"versions": [{"name": "v1", "served": True, "storage": True}]}, "spec.versions[0].schema.openAPIV3Schema"),
    ],
)
async def test_malformed_definition_is_refused(client: Client, change: dict[str, Any], field: str) -> None:
    made = definition()
    if "metadata" in change:
        made["metadata"] = change["metadata"]
    else:
        made["spec"] |= change
    assert field in causes(await client.post(DEFINITIONS, made))


async def test_what_a_definition_asks_in_vain_is_said(client: Client) -> None:
    made = definition()
    made["spec"]["conversion"] = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}}
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["x-kubernetes-validations"] = [{"rule": "self.units >= self.used"}]
    answer = await client.post(DEFINITIONS, made)
    assert answer.status == 201
    warnings = " ".join(answer.headers.getall("Warning"))
    assert "conversion webhooks are not called" in warnings
    assert "x-kubernetes-validations are not evaluated: 1 of version v1" in warnings
    assert (await client.post(RACKS, rack(units=4, used=5))).status == 201


@pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped["metadata"]["name"])
async def test_shipped_definition_is_taken_and_warns_of_nothing_but_its_rules(
    client: Client, shipped: dict[str, Any]
) -> None:
    answer = await client.post(DEFINITIONS, shipped)
    assert answer.status == 201
    warnings = answer.headers.getall("Warning", [])
    assert all("x-kubernetes-validations are not evaluated" in warning for warning in warnings)
    assert bool(warnings) == ("x-kubernetes-validations" in str(shipped))
