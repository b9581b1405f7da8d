"""Webhooks are asked before an object is written; `tests/integration/test_webhook.py` calls the real one."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from kaicore.errors import ApiStatus, ClusterUnavailable

from tests.given.servers.http_app import served_routes
from tests.given.servers.kube import PODS, Api, simulated

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"

Json = dict[str, Any]


class Webhook:
    """Remembers what it was asked, and answers what a test wants."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Json] = []
        self.answer: Json = {"allowed": True}

    async def judge(self, request: web.Request) -> web.Response:
        asked = (await request.json())["request"]
        self.asked.append(asked)
        return web.json_response({"response": {"uid": asked["uid"], **self.answer}})


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    made = Webhook()
    async with served_routes(web.post("/", made.judge)) as made.url:
        yield made


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with simulated() as server:
        yield server


async def register(
    api: Api, url: str, *, policy: str = "Fail", configurations: str = CONFIGURATIONS, **changed: Any
) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}
    entry = {
        "name": "w.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": policy,
        "clientConfig": {"url": url},
        "rules": [rule],
    }
    await api.post(configurations, {"metadata": {"name": "w"}, "webhooks": [entry | changed]})


def config_map(**data: str) -> Json:
    return {"metadata": {"name": "c", "labels": {"judged": "yes"}}, "data": data}


async def test_it_is_asked_with_the_object_as_it_was_and_as_it_would_be(api: Api, webhook: Webhook) -> None:
    await register(api, webhook.url)
    await api.post(CONFIG_MAPS, config_map(a="1"))
    await api.merge(f"{CONFIG_MAPS}/c", {"data": {"a": "2"}})
    await api.client.delete(f"{CONFIG_MAPS}/c")
    asked = [
        (one["operation"], (one["oldObject"] or {}).get("data"), (one["object"] or {}).get("data"))
        for one in webhook.asked
    ]
    assert asked == [("CREATE", None, {"a": "1"}), ("UPDATE", {"a": "1"}, {"a": "2"}), ("DELETE", {"a": "2"}, None)]
    assert webhook.asked[1]["object"]["kind"] == "ConfigMap"
    assert webhook.asked[0]["namespace"] == "default"


async def test_what_it_denies_is_not_written(api: Api, webhook: Webhook) -> None:
    await register(api, webhook.url)
    webhook.answer = {"allowed": False, "status": {"code": 422, "message": "not like this"}}
    with pytest.raises(ApiStatus, match="denied the request: not like this") as error:
        await api.post(CONFIG_MAPS, config_map())
    assert error.value.code == 422
    assert await api.items(CONFIG_MAPS) == []


async def test_what_it_is_not_registered_for_it_is_not_asked(api: Api, webhook: Webhook) -> None:
    await register(api, webhook.url, objectSelector={"matchLabels": {"judged": "no"}})
    webhook.answer = {"allowed": False}
    await api.post(CONFIG_MAPS, config_map())
    await api.pod("p")
    await api.merge(f"{PODS}/p/status", {"status": {"phase": "Running"}})
    assert webhook.asked == []


async def test_one_that_does_not_answer_is_ignored_only_where_that_is_its_policy(api: Api, webhook: Webhook) -> None:
    await register(api, "http://127.0.0.1:1/", policy="Ignore")
    await api.post(CONFIG_MAPS, config_map())
    await api.client.delete(f"{CONFIGURATIONS}/w")
    await register(api, "http://127.0.0.1:1/")
    with pytest.raises(ClusterUnavailable, match="failed calling webhook"):
        await api.merge(f"{CONFIG_MAPS}/c", {"data": {"a": "2"}})


async def test_one_behind_a_service_does_not_answer(api: Api, webhook: Webhook) -> None:
    await register(api, "", clientConfig={"service": {"namespace": "n", "name": "s"}})
    with pytest.raises(ClusterUnavailable, match="services have no addresses"):
        await api.post(CONFIG_MAPS, config_map())


async def test_an_answer_to_another_question_is_none(api: Api, webhook: Webhook) -> None:
    await register(api, webhook.url)
    webhook.answer = {"allowed": True, "uid": "another"}
    with pytest.raises(ClusterUnavailable, match="no AdmissionReview of this request"):
        await api.post(CONFIG_MAPS, config_map())


async def test_a_configuration_is_kept_as_it_was_given(api: Api, webhook: Webhook) -> None:
    await register(api, webhook.url)
    (item,) = await api.items(CONFIGURATIONS)
    assert json.loads(json.dumps(item["webhooks"][0]["rules"][0]["resources"])) == ["configmaps"]


async def test_mutating_webhook_changes_or_denies_new_objects_before_others_judge_them(
    api: Api, webhook: Webhook
) -> None:
    await register(api, webhook.url, configurations=MUTATING)
    await register(api, webhook.url)
    patch = [{"op": "add", "path": "/data/b", "value": "2"}]
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    webhook.answer = {"allowed": True, "patchType": "JSONPatch", "patch": encoded}
    made = await api.post(CONFIG_MAPS, config_map(a="1"))
    assert made["data"] == {"a": "1", "b": "2"}
    assert [one["object"]["data"] for one in webhook.asked] == [{"a": "1"}, {"a": "1", "b": "2"}]
    await api.merge(f"{CONFIG_MAPS}/c", {"data": {"b": None}})
    assert (await api.get(f"{CONFIG_MAPS}/c"))["data"] == {"a": "1"}
    await api.client.delete(f"{CONFIGURATIONS}/w")
    await api.client.delete(f"{CONFIG_MAPS}/c")
    webhook.answer = {"allowed": False, "status": {"code": 422, "message": "not like this"}}
    with pytest.raises(ApiStatus, match="denied the request: not like this"):
        await api.post(CONFIG_MAPS, config_map())
