"""Patches: JSON, merge, strategic, server-side apply."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kai_apiserver.resources.types import APPLY_ONLY_KEYS, MERGE_KEYS, SETS, apply_keys
from kai_apiserver.rest.patching import merge_patch, strategic_merge
from kaicore.kube.wire.builtin_fields import TYPES, element

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, config_map, node, pod

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


def deployment(**container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"containers": [{"name": "c", "image": "x:1", **container}]},
            },
        },
    }


async def test_json_patches_test_before_they_write(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a", x="1"))

    async def send(*operations: dict[str, Any]) -> Any:
        return await client.request(
            "PATCH", f"{CONFIG_MAPS}/a", list(operations), content_type="application/json-patch+json"
        )

    replace = {"op": "replace", "path": "/data/x", "value": "2"}
    assert (await send({"op": "test", "path": "/data/x", "value": "9"}, replace)).status == 422
    assert (await send({"op": "test", "path": "/data/x", "value": "1"}, replace)).json["data"] == {"x": "2"}
    assert (await send({"op": "remove", "path": "/data/nope"})).status == 422
    assert (await send({"op": "frobnicate", "path": "/data"})).status == 422
    not_a_list = await client.request(
        "PATCH", f"{CONFIG_MAPS}/a", {"op": "remove"}, content_type="application/json-patch+json"
    )
    assert not_a_list.status == 400


@given(JSON_VALUES, JSON_VALUES)
def test_merge_patches_leave_their_arguments_alone_and_settle(target: Any, patch: Any) -> None:
    before = repr((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert repr((target, patch)) == before


def unknown_paths() -> list[str]:
    """Entries of the tables of merging that name no existing list of objects or field."""
    paths = {*MERGE_KEYS, *APPLY_ONLY_KEYS, *SETS}
    wrong = []
    for path in sorted(paths):
        name, _, field = path.partition(".")
        notation = TYPES[name].fields.get(field) if name in TYPES else None
        keys = apply_keys(path)
        if notation is None or (keys and not set(keys) <= TYPES[element(notation)].fields.keys()):
            wrong.append(path)
    return wrong


def test_every_merge_key_is_of_a_field_that_exists() -> None:
    assert unknown_paths() == []


def test_strategic_lists_merge_by_key_and_keep_the_servers_order() -> None:
    target = {"spec": {"containers": [{"name": name, "image": "1"} for name in "abc"]}}
    patch = {"spec": {"containers": [{"name": "b", "image": "2"}, {"name": "d", "image": "1"}]}}
    merged = strategic_merge(target, patch, "V1Pod")["spec"]["containers"]
    assert [(item["name"], item["image"]) for item in merged] == [("a", "1"), ("b", "2"), ("d", "1"), ("c", "1")]


def test_strategic_merge_follows_its_directives() -> None:
    target = {
        "metadata": {"finalizers": ["x", "y"]},
        "spec": {
            "containers": [{"name": "a"}, {"name": "b"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "nodeSelector": {"k": "1", "l": "2"},
            "tolerations": [{"key": "old"}],
        },
    }
    patch = {
        "metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]},
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
            "containers": [{"name": "a", "$patch": "delete"}, {"name": "c", "image": "new"}],
            "volumes": [{"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}],
            "nodeSelector": {"$patch": "replace", "m": "3"},
            "tolerations": [{"key": "new"}],
        },
    }
    assert strategic_merge(target, patch, "V1Pod") == {
        "metadata": {"finalizers": ["y"]},
        "spec": {
            "containers": [{"name": "c", "image": "new"}, {"name": "b"}],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}],
            "nodeSelector": {"m": "3"},
            "tolerations": [{"key": "new"}],
        },
    }


async def test_two_controllers_patch_conditions_without_losing_each_others(client: Client) -> None:
    await client.post(PODS, pod("p"))
    for kind in ("Ready", "DisruptionTarget", "Ready"):
        patch = {"status": {"conditions": [{"type": kind, "status": "True", "reason": kind}]}}
        await client.strategic(f"{PODS}/p/status", patch)
    shown = (await client.get(f"{PODS}/p")).json
    assert sorted(item["type"] for item in shown["status"]["conditions"]) == ["DisruptionTarget", "Ready"]


async def test_apply_owns_merges_and_gives_up(client: Client) -> None:
    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    created = await client.apply(f"{DEPLOYMENTS}/d", deployment(env=env), manager="one")
    assert created.status == 201
    labels = deployment()
    labels["metadata"]["labels"] = {"team": "x"}
    labels["spec"] = {"replicas": 3}
    shared = await client.apply(f"{DEPLOYMENTS}/d", labels, manager="two")
    assert (shared.status, shared.json["spec"]["replicas"]) == (200, 3)
    fewer = await client.apply(f"{DEPLOYMENTS}/d", deployment(env=env[:1]), manager="one")
    container = fewer.json["spec"]["template"]["spec"]["containers"][0]
    assert container["env"] == env[:1], "what the manager stopped saying is gone"
    assert fewer.json["spec"]["replicas"] == 3, "what another manager says stays"
    assert {entry["manager"] for entry in fewer.json["metadata"]["managedFields"]} == {"one", "two"}


async def test_apply_conflicts_name_every_field_and_can_be_forced(client: Client) -> None:
    await client.apply(f"{DEPLOYMENTS}/d", deployment(command=["a"]), manager="one")
    other = deployment(image="y:2", command=["b"])
    refused = await client.apply(f"{DEPLOYMENTS}/d", other, manager="two")
    assert refused.status == 409
    assert refused.json["message"] == (
        'Apply failed with 2 conflicts: conflicts with "one":\n'
        '- .spec.template.spec.containers[name="c"].command\n'
        '- .spec.template.spec.containers[name="c"].image'
    )
    forced = await client.apply(f"{DEPLOYMENTS}/d", other, manager="two", force=True)
    assert forced.status == 200
    back = await client.apply(f"{DEPLOYMENTS}/d", deployment(command=["a"]), manager="one")
    assert back.status == 409, "what was taken by force is the other's now"


async def test_applying_the_same_again_changes_nothing(client: Client) -> None:
    first = await client.apply(f"{CONFIG_MAPS}/c", {**config_map("c", a="1")}, manager="one")
    again = await client.apply(f"{CONFIG_MAPS}/c", {**config_map("c", a="1")}, manager="one")
    assert again.json["metadata"]["resourceVersion"] == first.json["metadata"]["resourceVersion"]


async def test_fields_not_applied_belong_to_the_manager_that_created_them(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("c", a="1", b="2"))
    refused = await client.apply(f"{CONFIG_MAPS}/c", config_map("c", a="9"), manager="one")
    assert refused.json["details"]["causes"][0]["message"] == 'conflict with "Python" using v1'
    agreed = await client.apply(f"{CONFIG_MAPS}/c", config_map("c", a="1"), manager="one")
    assert (agreed.status, agreed.json["data"]) == (200, {"a": "1", "b": "2"})


async def test_taints_apply_by_key_and_effect(client: Client) -> None:
    await client.post(NODES, node("n1"))

    def taints(*given: dict[str, str]) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": {"taints": list(given)}}

    mine = {"key": "a", "effect": "NoSchedule"}
    yours = {"key": "b", "effect": "NoExecute"}
    await client.apply(f"{NODES}/n1", taints(mine), manager="one")
    both = await client.apply(f"{NODES}/n1", taints(yours), manager="two")
    assert both.json["spec"]["taints"] == [mine, yours]
    left = await client.apply(f"{NODES}/n1", taints(), manager="one")
    assert left.json["spec"]["taints"] == [yours]


async def test_apply_wants_a_manager_and_a_kind(client: Client) -> None:
    no_kind = await client.apply(f"{CONFIG_MAPS}/c", {"metadata": {"name": "c"}}, manager="one")
    assert no_kind.status == 400
    other_name = await client.apply(f"{CONFIG_MAPS}/c", config_map("d"), manager="one")
    assert other_name.status == 400
    yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: y}\ndata: {a: b}\n"
    assert (await client.apply(f"{CONFIG_MAPS}/y", yaml, manager="one")).status == 201
