"""The client library of Kubernetes takes the server for Kubernetes."""

import asyncio
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from kai_apiserver.server import ApiServer

from tests.tools.apiserver.client import Client, node, pod
from tests.tools.apiserver.test_custom_resources import definition, rack


def kubernetes_client() -> Any:
    """The library; imported when it is needed, because that takes seconds."""
    return importlib.import_module("kubernetes_asyncio.client")


@pytest.fixture
async def api(server: ApiServer, tmp_path: Path) -> AsyncIterator[Any]:
    """An `ApiClient` configured by the server's own kubeconfig over plain HTTP."""
    from kubernetes_asyncio import config
    from kubernetes_asyncio.client import ApiClient, Configuration

    path = tmp_path / "kubeconfig"
    server.write_http_kubeconfig(path)
    configuration = Configuration()
    await config.load_kube_config(config_file=str(path), client_configuration=configuration)
    async with ApiClient(configuration) as client:
        yield client


async def test_typed_objects_go_there_and_back(api: Any) -> None:
    core = kubernetes_client().CoreV1Api(api)
    await core.create_node(node("n1"))
    made = await core.create_namespaced_pod("default", pod("p"))
    assert (made.status.phase, made.status.qos_class, made.metadata.generation) == ("Pending", "BestEffort", 1)
    listed = await core.list_namespaced_pod("default", field_selector="spec.nodeName=")
    assert [item.metadata.name for item in listed.items] == ["p"]
    assert listed.metadata.resource_version
    page = await core.list_namespace(limit=2)
    assert (len(page.items), page.metadata.remaining_item_count) == (2, 2)
    assert page.metadata._continue


async def test_errors_are_those_of_kubernetes(api: Any) -> None:
    client = kubernetes_client()
    from kubernetes_asyncio.client.exceptions import ApiException

    core = client.CoreV1Api(api)
    with pytest.raises(ApiException) as missing:
        await core.read_namespaced_pod("nope", "default")
    assert missing.value.status == 404
    await core.create_namespaced_pod("default", pod("p"))
    with pytest.raises(ApiException) as conflict:
        await core.create_namespaced_pod("default", pod("p"))
    assert (conflict.value.status, "AlreadyExists" in str(conflict.value.body)) == (409, True)


async def test_its_watch_follows_and_hears_of_410(api: Any, client: Client) -> None:
    from kubernetes_asyncio import watch
    from kubernetes_asyncio.client.exceptions import ApiException

    core = kubernetes_client().CoreV1Api(api)
    await core.create_namespaced_pod("default", pod("a"))
    seen = []
    async with watch.Watch() as stream, asyncio.timeout(60):
        async for event in stream.stream(core.list_namespaced_pod, "default", timeout_seconds=20):
            seen.append((event["type"], event["object"].metadata.name))
            if len(seen) == 1:
                await core.create_namespaced_pod("default", pod("b"))
            elif len(seen) == 2:
                await core.delete_namespaced_pod("b", "default")
            elif event["type"] == "DELETED":
                break
    assert seen == [("ADDED", "a"), ("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b")]
    await client.post("/simulator/compact", {})
    async with watch.Watch() as stream:
        with pytest.raises(ApiException) as gone:
            await anext(stream.stream(core.list_namespaced_pod, "default", resource_version="1", timeout_seconds=5))
    assert gone.value.status == 410


async def test_client_library_reads_custom_resources_and_jobs(api: Any) -> None:
    client = kubernetes_client()
    extensions = client.ApiextensionsV1Api(api)
    await extensions.create_custom_resource_definition(definition(subresources={"status": {}}))
    established = await extensions.read_custom_resource_definition("racks.example.com")
    assert [item.type for item in established.status.conditions] == ["NamesAccepted", "Established"]
    custom = client.CustomObjectsApi(api)
    await custom.create_cluster_custom_object("example.com", "v1", "racks", rack(units=3))
    patched = await custom.patch_cluster_custom_object(
        "example.com", "v1", "racks", "r", {"spec": {"units": 4}}, _content_type="application/merge-patch+json"
    )
    assert patched["spec"]["units"] == 4
    template = {"spec": {**pod()["spec"], "restartPolicy": "Never"}}
    batch = client.BatchV1Api(api)
    job = await batch.create_namespaced_job("default", {"metadata": {"name": "j"}, "spec": {"template": template}})
    assert job.spec.backoff_limit == 6


@pytest.mark.slow
def test_the_digest_of_types_is_of_the_installed_client_library() -> None:
    from scripts.builtin_types import TARGET, digest

    assert digest() == TARGET.read_text(), "run scripts/builtin_types.py"
