"""The steps that all migration guides have (`docs/tutorial/migrate.md`), where the other scheduler runs itself."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import yaml
from kai_cli.running.load import Loader
from kaicore.kube.api.client import KubeClient
from kaicore.rules.state.cluster_state import ClusterState

from tests.e2e.cluster import PATIENCE_S, Cluster, Json
from tests.e2e.live_stack import LiveStack, ours
from tests.e2e.test_adopting import PODS, object_at
from tests.given.cluster.fleets import aligned, fleet

#: Four nodes with kubelets that want all of a container in one of two zones, of 8 or 10 CPUs and 4 GPUs.
FOUR_ALIGNED_NODES = fleet(
    aligned(4, cpus=10, reserved=2), above="topologyLabels: {cloud.provider.com/topology-rack: 2}"
)


async def created(cluster: Cluster, *documents: Json) -> None:
    """Create objects before any stack of ours runs; in the tests' namespace where they name none."""
    placed = [{**one, "metadata": {"namespace": cluster.namespace, **one["metadata"]}} for one in documents]
    async with cluster.client() as client:
        assert (await Loader(client).create(placed)).refused == []


async def until_pods(cluster: Cluster, holds: Callable[[list[Json]], bool]) -> list[Json]:
    """Wait until the pods of the tests' namespace are as they should be."""
    async with cluster.client() as client:
        return await until_items(client, PODS.format(namespace=cluster.namespace), holds)


async def until_items(client: KubeClient, path: str, holds: Callable[[list[Json]], bool]) -> list[Json]:
    items: list[Json] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not holds(items := (await object_at(client, path))["items"]):  # noqa: ASYNC110
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{path}: {yaml.safe_dump(items)[:6000]}") from None
    return items


async def settled(cluster: Cluster, path: str) -> dict[str, Json]:
    """Wait until nobody has written the objects of a list for three seconds, as two writers that disagree never do.

    Returns:
        The objects by name.
    """
    last, since = None, 0.0
    async with cluster.client() as client, asyncio.timeout(PATIENCE_S):
        while True:
            items = {one["metadata"]["name"]: one for one in (await object_at(client, path))["items"]}
            versions = {name: one["metadata"]["resourceVersion"] for name, one in items.items()}
            now = asyncio.get_running_loop().time()
            if versions != last:
                last, since = versions, now
            elif now - since >= 3:
                return items
            await asyncio.sleep(0.3)


def written_by_us(objects: Iterable[Json]) -> list[str]:
    """Names of the objects that the binder has written to."""
    return sorted(
        one["metadata"]["name"]
        for one in objects
        if any(by["manager"] == "kai-binder" for by in one["metadata"]["managedFields"])
    )


async def gone(cluster: Cluster, path: str, prefix: str) -> None:
    """Delete an object, and wait until the pods with names that begin so are gone."""
    async with cluster.client() as client:
        await client.delete(f"{path.format(namespace=cluster.namespace)}?propagationPolicy=Background")
    await until_pods(cluster, lambda items: names_of(items, prefix) == [])


def names_of(pods: list[Json], prefix: str) -> list[str]:
    return [one["metadata"]["name"] for one in pods if one["metadata"]["name"].startswith(prefix)]


def run(scheduler: str, count: int, prefix: str = "") -> Callable[[list[Json]], bool]:
    """So many pods of a scheduler run; for `until_pods`."""

    def holds(items: list[Json]) -> bool:
        there = [
            one
            for one in items
            if one["spec"]["schedulerName"] == scheduler and one["metadata"]["name"].startswith(prefix)
        ]
        return [one["status"].get("phase") for one in there].count("Running") == count

    return holds


def new_work_fits(cluster: Cluster, scheduler: str, work: Json, *, pods: int) -> None:
    """Step 1 and its check: the cluster is dumped, new work is simulated on it, and there is no warning."""
    answer, warnings = _simulated(cluster, scheduler, work)
    assert warnings == []
    prefix = f"{work['metadata']['name']}-"
    there = [one for one in answer["pods"] if one["namespace"] == "default" and one["name"].startswith(prefix)]
    assert len(there) == pods, answer
    assert all(one["node"] and one["zones"] for one in there), answer


def _simulated(cluster: Cluster, scheduler: str, work: Json) -> tuple[Json, list[str]]:
    dump, more = cluster.root / "cluster.json", cluster.root / "new-job.yaml"
    dumped = _kai("dump", "--kubeconfig", cluster.kubeconfig)
    assert dumped.returncode == 0, dumped.stderr
    dump.write_text(dumped.stdout)
    more.write_text(yaml.safe_dump(work))
    done = _kai("simulate", dump, more, "--scheduler-name", scheduler, "-o", "json")
    assert done.returncode == 0, done.stderr
    return msgspec.json.decode(done.stdout), done.stderr.splitlines()


def _kai(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kai_cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def shadow_is_right(shadow: LiveStack, scheduler: str, *, pods: int) -> Json:
    """The check of step 2, with the report: kubelets did as predicted, and the shadow's cycles replay."""
    report: Json = shadow.ask("shadow", "report")
    assert (report["scheduler"], report["pods"]) == (scheduler, pods), report
    assert report["predictions"]["missed"] == report["predictions"]["falseAlarms"] == 0, report
    assert shadow.ask("replay")["differences"] == []
    return report


def placements_are_right(live: LiveStack) -> None:
    """The check of step 3: exporters observed what was predicted."""
    live.ask("audit", "placements")


async def shown(live: LiveStack, name: str, code: str) -> str:
    """Ask why a pod waits until there is a reason of that code; its message."""
    why: Any = None
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                why = await asyncio.to_thread(live.ask, "why", f"{live.namespace}/{name}")
                for reason in why["reasons"]:
                    if reason["code"] == code:
                        return str(reason["message"])
                await asyncio.sleep(0.5)
    except TimeoutError:
        raise AssertionError(f"{name} does not wait for {code}: {why}") from None


def of_ours(prefix: str, count: int) -> Callable[[ClusterState], bool]:
    """So many of our pods run; for `LiveStack.until`."""

    def condition(state: ClusterState) -> bool:
        return [entry.pod.phase for entry in ours(state, prefix)].count("Running") == count

    return condition


def job(name: str, scheduler: str, *, pods: int, gpus: int, metadata: Json | None = None) -> Json:
    """A Job with pods that run until they are deleted; labels and annotations go on the Job and on its pods."""
    amounts = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": str(gpus)}
    container = {"name": "main", "image": "x", "resources": {"requests": amounts, "limits": amounts}}
    spec = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"parallelism": pods, "completions": pods, "template": {"metadata": metadata or {}, "spec": spec}},
    }
