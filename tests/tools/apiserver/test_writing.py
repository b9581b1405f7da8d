"""Create, replace, validate, default; optimistic concurrency."""

import asyncio
from typing import Any

import pytest

from tests.tools.apiserver.client import CONFIG_MAPS, NODES, PODS, Client, config_map, node, pod

JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def causes(answer: Any) -> dict[str, str]:
    return {cause["field"]: cause["reason"] for cause in answer.json["details"]["causes"]}


async def test_of_many_writers_at_one_version_one_wins(client: Client) -> None:
    created = (await client.post(CONFIG_MAPS, config_map("shared", n="0"))).json
    created["data"]["n"] = "1"
    answers = await asyncio.gather(*(client.put(f"{CONFIG_MAPS}/shared", created) for _ in range(10)))
    assert sorted(answer.status for answer in answers) == [200, *[409] * 9]


async def test_retrying_on_conflict_loses_no_increment(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("counter", n="0"))

    async def increment() -> None:
        while True:
            current = (await client.get(f"{CONFIG_MAPS}/counter")).json
            current["data"]["n"] = str(int(current["data"]["n"]) + 1)
            if (await client.put(f"{CONFIG_MAPS}/counter", current)).status == 200:
                return

    await asyncio.gather(*(increment() for _ in range(12)))
    assert (await client.get(f"{CONFIG_MAPS}/counter")).json["data"]["n"] == "12"


async def test_a_write_that_changes_nothing_is_no_change(client: Client) -> None:
    created = (await client.post(CONFIG_MAPS, config_map("a", x="1"))).json
    again = (await client.put(f"{CONFIG_MAPS}/a", created)).json
    patched = (await client.merge(f"{CONFIG_MAPS}/a", {"data": {"x": "1"}})).json
    assert again["metadata"]["resourceVersion"] == patched["metadata"]["resourceVersion"]
    assert again["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]


async def test_an_update_of_another_incarnation_is_refused(client: Client) -> None:
    old = (await client.post(CONFIG_MAPS, config_map("a"))).json
    await client.delete(f"{CONFIG_MAPS}/a")
    await client.post(CONFIG_MAPS, config_map("a"))
    del old["metadata"]["resourceVersion"]
    answer = await client.put(f"{CONFIG_MAPS}/a", old)
    assert (answer.status, answer.json["reason"]) == (409, "Conflict")


async def test_names_and_namespaces_must_be_those_of_the_url(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a"))
    assert (await client.put(f"{CONFIG_MAPS}/a", config_map("b"))).status == 400
    elsewhere = {"metadata": {"name": "c", "namespace": "kube-system"}}
    assert (await client.post(CONFIG_MAPS, elsewhere)).status == 400
    wrong_kind = await client.post(CONFIG_MAPS, pod("a"))
    assert (wrong_kind.status, wrong_kind.json["reason"]) == (400, "BadRequest")


async def test_some_kinds_want_a_version_and_some_are_created_by_put(client: Client) -> None:
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    lease = {"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1"}}
    assert (await client.put(f"{leases}/n1", lease)).status == 201
    refused = await client.put(f"{leases}/n1", lease)
    assert refused.status == 422
    assert refused.json["details"]["causes"][0]["message"] == "Invalid value: 0x0: must be specified for an update"
    assert (await client.put(f"{CONFIG_MAPS}/nope", config_map("nope"))).status == 404


async def test_status_and_spec_are_written_apart(client: Client) -> None:
    await client.post(PODS, pod("p"))
    await client.merge(f"{PODS}/p/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}})
    shown = (await client.merge(f"{PODS}/p", {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}})).json
    assert shown["status"]["phase"] == "Running"
    assert "nodeName" not in shown["spec"]
    assert shown["metadata"]["labels"] == {"a": "b"}


async def test_generation_counts_changes_of_the_spec(client: Client) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    made = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    created = (await client.post(deployments, made)).json
    assert (created["metadata"]["generation"], created["spec"]["replicas"]) == (1, 1)
    labelled = (await client.merge(f"{deployments}/d", {"metadata": {"labels": {"x": "y"}}})).json
    assert labelled["metadata"]["generation"] == 1
    scaled = await client.merge(f"{deployments}/d", {"spec": {"replicas": 4}})
    assert scaled.json["spec"]["replicas"] == 4
    shown = (await client.get(f"{deployments}/d")).json
    assert (shown["metadata"]["generation"], shown["spec"]["replicas"]) == (2, 4)


async def test_quantities_come_back_in_canonical_form(client: Client) -> None:
    resources = {"limits": {"cpu": "0.5", "memory": "1024Mi", "nvidia.com/gpu": 2}}
    made = pod("p", containers=[{"name": "c", "image": "x", "resources": resources}])
    shown = (await client.post(PODS, made)).json["spec"]["containers"][0]["resources"]
    assert shown["limits"] == {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "2"}
    assert shown["requests"] == shown["limits"]


REQUIRED_NODES = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"


def on_nodes(expression: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": []}, {"spec.containers": "FieldValueRequired"}),
        (
            {"containers": [{"name": "c", "image": "x"}, {"name": "c", "image": "y"}]},
            {"spec.containers[1].name": "FieldValueDuplicate"},
        ),
        ({"containers": [{"name": "c"}]}, {"spec.containers[0].image": "FieldValueRequired"}),
        (
            {"containers": [{"name": "c", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}]},
            {"spec.containers[0].volumeMounts[0].name": "FieldValueNotFound"},
        ),
        ({"restartPolicy": "Sometimes"}, {"spec.restartPolicy": "FieldValueNotSupported"}),
        ({"tolerations": [{"operator": "Equal"}]}, {"spec.tolerations[0].operator": "FieldValueInvalid"}),
        ({"activeDeadlineSeconds": 0}, {"spec.activeDeadlineSeconds": "FieldValueInvalid"}),
        ({"nodeSelector": {"bad key": "v"}}, {"spec.nodeSelector": "FieldValueInvalid"}),
        (
            {"containers": [{"name": "c", "image": "x", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
            {"spec.containers[0].resources.limits": "FieldValueRequired"},
        ),
        (
            {"containers": [{"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1500m"}}}]},
            {
                "spec.containers[0].resources.limits[nvidia.com/gpu]": "FieldValueInvalid",
                "spec.containers[0].resources.requests[nvidia.com/gpu]": "FieldValueInvalid",
            },
        ),
        (
            on_nodes({"key": "a", "operator": "Almost", "values": ["b"]}),
            {f"{REQUIRED_NODES}.nodeSelectorTerms[0].matchExpressions[0].operator": "FieldValueInvalid"},
        ),
        (
            on_nodes({"key": "a", "operator": "Gt", "values": ["1", "2"]}),
            {f"{REQUIRED_NODES}.nodeSelectorTerms[0].matchExpressions[0].values": "FieldValueRequired"},
        ),
        (
            {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
            {
                "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey": (
                    "FieldValueRequired"
                )
            },
        ),
        (
            {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "X"}]},
            {
                "spec.topologySpreadConstraints[0].maxSkew": "FieldValueInvalid",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable": "FieldValueNotSupported",
            },
        ),
    ],
)
async def test_malformed_pod_is_refused(client: Client, spec: dict[str, Any], expected: dict[str, str]) -> None:
    answer = await client.post(PODS, pod("p", **spec))
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert causes(answer) == expected


async def test_malformed_node_is_refused(client: Client) -> None:
    taints = [{"key": "a", "effect": "Soon"}]
    refused = await client.post(
        NODES, node("n1") | {"spec": {"taints": taints}, "status": {"allocatable": {"cpu": "-1"}}}
    )
    assert causes(refused) == {
        "status.allocatable[cpu]": "FieldValueInvalid",
        "spec.taints[0].effect": "FieldValueNotSupported",
    }
    await client.post(NODES, node("n1"))
    refused = await client.merge(f"{NODES}/n1/status", {"status": {"capacity": {"nvidia.com/gpu": "1500m"}}})
    assert causes(refused) == {"status.capacity[nvidia.com/gpu]": "FieldValueInvalid"}


async def test_malformed_labels_are_refused(client: Client) -> None:
    answer = await client.post(NODES, node("n1") | {"metadata": {"name": "n1", "labels": {"a": "not valid!"}}})
    assert causes(answer) == {"metadata.labels": "FieldValueInvalid"}


@pytest.mark.parametrize(
    ("path", "base", "refused"),
    [
        (PODS, "p-", False),
        (PODS, "p.", True),
        (EVENTS, "p-", False),
        (EVENTS, "p.", True),
        ("/api/v1/namespaces/default/events", "p.", False),
    ],
)
async def test_a_generate_name_that_is_no_beginning_of_a_name_is_refused(
    client: Client, path: str, base: str, refused: bool
) -> None:
    """As by kube-apiserver 1.37.2, which looks at no metadata of events that are written by the old version."""
    document = pod("p") | {"metadata": {"generateName": base}}
    if path != PODS:
        document = {"metadata": {"generateName": base}, "reason": "Scheduled", "action": "Binding", "type": "Normal"}
    answer = await client.post(path, document)
    if refused:
        assert causes(answer) == {"metadata.generateName": "FieldValueInvalid"}
    else:
        assert answer.json["metadata"]["name"].startswith(base)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "json parse error"),
        (b"[]", "cannot be handled as a Pod"),
        (b'{"spec":{"containers":{}}}', "cannot unmarshal object into Go struct field spec.containers"),
        (b'{"spec":{"containers":[],"priority":"1"}}', "cannot unmarshal string into Go struct field spec.priority"),
        (b'{"spec":{"hostNetwork":1}}', "cannot unmarshal number into Go struct field spec.hostNetwork of type bool"),
        (b'{"metadata":{"creationTimestamp":"yesterday"}}', "parsing time"),
    ],
)
async def test_body_that_is_no_pod_is_refused(client: Client, body: bytes, message: str) -> None:
    answer = await client.post(PODS, body)
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")
    assert message in answer.json["message"]


async def test_unknown_fields_warn_fail_or_go_unmentioned(client: Client) -> None:
    odd = pod("p", nonsense=1, containers=[{"name": "c", "image": "x", "colour": "red"}])
    strict = await client.post(f"{PODS}?fieldValidation=Strict", odd)
    assert strict.status == 400
    assert (
        'strict decoding error: unknown field "spec.containers[0].colour", unknown field "spec.nonsense"'
        in (strict.json["message"])
    )
    warned = await client.post(f"{PODS}?dryRun=All", odd)
    assert len(warned.headers.getall("Warning")) == 2
    silent = await client.post(f"{PODS}?fieldValidation=Ignore", odd)
    assert silent.status == 201
    assert "Warning" not in silent.headers
    patched = await client.merge(f"{PODS}/p?fieldValidation=Strict", {"spec": {"nonsense": 1}})
    assert patched.status == 422


async def test_dry_runs_change_nothing(client: Client) -> None:
    await client.post(CONFIG_MAPS, config_map("a", x="1"))
    version = (await client.get(CONFIG_MAPS)).json["metadata"]["resourceVersion"]
    assert (await client.post(f"{CONFIG_MAPS}?dryRun=All", config_map("b"))).status == 201
    assert (await client.merge(f"{CONFIG_MAPS}/a?dryRun=All", {"data": {"x": "2"}})).json["data"] == {"x": "2"}
    assert (await client.delete(f"{CONFIG_MAPS}/a?dryRun=All")).status == 200
    await client.post(PODS, pod("p"))
    assert (await client.delete(f"{PODS}/p?dryRun=All")).json["metadata"]["deletionTimestamp"]
    after = await client.get(CONFIG_MAPS)
    assert (after.items, after.json["items"][0]["data"]) == (["a"], {"x": "1"})
    assert int(after.json["metadata"]["resourceVersion"]) == int(version) + 1, "the pod"


async def test_priorities_come_from_classes(client: Client) -> None:
    high = {"metadata": {"name": "high"}, "value": 100, "preemptionPolicy": "Never"}
    await client.post(CLASSES, high)
    shown = (await client.post(PODS, pod("a", priorityClassName="high"))).json["spec"]
    assert (shown["priority"], shown["preemptionPolicy"]) == (100, "Never")
    missing = await client.post(PODS, pod("b", priorityClassName="nope"))
    assert (missing.status, missing.json["message"]) == (
        403,
        'pods "b" is forbidden: no PriorityClass with name nope was found',
    )
    assert (await client.post(PODS, pod("b", priority=7))).status == 403
    await client.post(CLASSES, {"metadata": {"name": "usual"}, "value": 5, "globalDefault": True})
    defaulted = (await client.post(PODS, pod("c"))).json["spec"]
    assert (defaulted["priorityClassName"], defaulted["priority"]) == ("usual", 5)
    critical = (await client.post(PODS, pod("d", priorityClassName="system-node-critical"))).json["spec"]
    assert critical["priority"] == 2_000_001_000
    assert (await client.post(CLASSES, {"metadata": {"name": "x"}, "value": 1_000_000_001})).status == 422


async def test_runtime_classes_bring_their_overhead(client: Client) -> None:
    runtime_class = {
        "metadata": {"name": "sandboxed"},
        "handler": "x",
        "overhead": {"podFixed": {"cpu": "250m"}},
        "scheduling": {"nodeSelector": {"sandbox": "yes"}},
    }
    await client.post("/apis/node.k8s.io/v1/runtimeclasses", runtime_class)
    shown = (await client.post(PODS, pod("a", runtimeClassName="sandboxed"))).json["spec"]
    assert (shown["overhead"], shown["nodeSelector"]) == ({"cpu": "250m"}, {"sandbox": "yes"})
    assert (await client.post(PODS, pod("b", runtimeClassName="nope"))).status == 403


async def test_jobs_get_labels_a_selector_and_defaults(client: Client) -> None:
    made = {"metadata": {"name": "j"}, "spec": {"template": {"spec": {**pod()["spec"], "restartPolicy": "Never"}}}}
    job = (await client.post(JOBS, made)).json
    uid = job["metadata"]["uid"]
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert job["spec"]["template"]["metadata"]["labels"]["job-name"] == "j"
    assert (job["spec"]["completions"], job["spec"]["parallelism"], job["spec"]["backoffLimit"]) == (1, 1, 6)
    always = {"metadata": {"name": "k"}, "spec": {"template": {"spec": pod()["spec"]}}}
    refused = await client.post(JOBS, always)
    assert causes(refused) == {"spec.template.spec.restartPolicy": "FieldValueRequired"}
    assert (await client.merge(f"{JOBS}/j", {"spec": {"parallelism": 3}})).status == 200


async def test_namespaces_carry_their_name_and_secrets_encode_strings(client: Client) -> None:
    namespace = (await client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})).json
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert (namespace["spec"], namespace["status"]) == ({"finalizers": ["kubernetes"]}, {"phase": "Active"})
    secret = (
        await client.post("/api/v1/namespaces/team/secrets", {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    ).json
    assert (secret["type"], secret["data"], secret.get("stringData")) == ("Opaque", {"a": "Yg=="}, None)


async def test_bodies_may_be_large_but_not_too_large(client: Client) -> None:
    assert (await client.post(CONFIG_MAPS, config_map("a", x="x" * 2_000_000))).status == 201
    refused = await client.post(CONFIG_MAPS, config_map("b", x="x" * 4_000_000))
    assert (refused.status, refused.json["reason"]) == (413, "RequestEntityTooLarge")


async def test_missing_resource_or_method_is_refused_as_by_kubernetes(client: Client) -> None:
    unknown = await client.get("/apis/nope.example.com/v1/things")
    assert (unknown.status, unknown.json["reason"]) == (404, "NotFound")
    assert (await client.get("/api/v2/pods")).status == 404
    assert (await client.put(PODS, pod("p"))).status == 405
    assert (await client.delete("/api/v1/namespaces")).status == 405
    assert (await client.get("/api/v1/namespaces/default/bindings")).status == 405
    assert (await client.get(f"{PODS}/p/nonsense")).status == 404
    assert (await client.post("/api/v1/pods", pod("p"))).status == 400
