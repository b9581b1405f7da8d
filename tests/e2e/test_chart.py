"""The chart on an API server: every object is accepted; with its rights alone the examples complete."""

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import helm_python
import msgspec
import pytest
from kai_cli.running.load import Loader
from kai_cli.sources.manifests import read_manifests
from kaicore.errors import ApiStatus
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.discovery import ObjectPaths
from kaicore.yaml_text import load_yaml

from scripts import chart
from tests.e2e.cluster import PATIENCE_S, Cluster, foreign_kubeconfig
from tests.e2e.live_stack import LiveStack, running_on
from tests.e2e.test_rights import serve_every_kind
from tests.given.servers.kube import simulated

pytestmark = pytest.mark.slow

Json = dict[str, Any]

MONITORING = "monitoring.coreos.com"
EVERYTHING: Json = load_yaml(chart.EVERYTHING.read_text())


@asynccontextmanager
async def api_server() -> AsyncIterator[KubeClient]:
    """The administrator's client: of `KAI_TEST_KUBECONFIG`, else of a simulated API server."""
    given = foreign_kubeconfig()
    if given is not None:
        async with KubeClient(configured_access(str(given))) as client:
            yield client
        return
    async with simulated() as api:
        for kind in ("ServiceMonitor", "PrometheusRule"):
            await api.install(MONITORING, "v1", kind)
        yield api.client


async def is_served(client: KubeClient, api_version: str) -> bool:
    try:
        await client.get(f"/apis/{api_version}")
    except ApiStatus as error:
        if error.code == 404:
            return False
        raise
    return True


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
async def test_every_rendered_object_and_definition_is_accepted(values: Json) -> None:
    helm_python.disable_logging()
    # One of its own: a real cluster takes a while to delete a namespace.
    namespace = f"kai-chart-{secrets.token_hex(4)}"
    objects = [
        document
        for text in chart.rendered(values | {"createNamespace": False}, namespace=namespace).values()
        for document in chart.documents(text)
    ]
    for file in sorted((chart.MANIFESTS / "crds").rglob("*.yaml")):
        objects += chart.documents(file.read_text())
    async with api_server() as client:
        paths = ObjectPaths(client)
        # What is applied without being kept needs its namespace all the same.
        others = [one["metadata"]["name"] for one in objects if one["kind"] == "Namespace"]
        for name in (namespace, *others):
            await client.post("/api/v1/namespaces", {"metadata": {"name": name}})
        try:
            for document in objects:
                if document["apiVersion"].startswith(MONITORING) and not await is_served(
                    client, document["apiVersion"]
                ):
                    continue  # a foreign cluster without the Prometheus Operator
                # Applied as Helm and kubectl do, with no field overlooked, and not kept: no pod is to start.
                path = (
                    f"{await paths.object(document)}?fieldManager=kai-e2e&force=true&dryRun=All&fieldValidation=Strict"
                )
                answer = await client.patch(path, document, content_type="application/apply-patch+yaml")
                assert msgspec.json.decode(answer)["metadata"]["name"] == document["metadata"]["name"]
        finally:
            for name in (namespace, *others):
                await client.delete(f"/api/v1/namespaces/{name}")


FLEET = "demo24"


@pytest.fixture
def stack(cluster: Cluster) -> Iterator[LiveStack]:
    asyncio.run(serve_every_kind(cluster))
    with running_on(cluster) as live:
        yield live


@pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes a minute: make chart ARGS=--test")
async def test_examples_complete_with_the_rights_of_the_chart(cluster: Cluster, stack: LiveStack) -> None:
    async with cluster.client() as client, asyncio.timeout(3 * PATIENCE_S):
        loaded = await Loader(client).create(read_manifests([chart.ROOT / "examples"]))
        assert loaded.refused == []
        while open_jobs := await unfinished(client):
            print("not complete yet:", *sorted(open_jobs))
            await asyncio.sleep(1)
    assert stack.refusals() == []


async def unfinished(client: KubeClient) -> set[str]:
    """The Jobs that have not completed."""
    jobs = msgspec.json.decode(await client.get("/apis/batch/v1/namespaces/default/jobs"))["items"]
    assert jobs
    return {
        job["metadata"]["name"]
        for job in jobs
        if not any(one["type"] == "Complete" and one["status"] == "True" for one in job["status"].get("conditions", ()))
    }
