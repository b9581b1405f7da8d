"""The standing of queues is written into KAI's Queues, on a simulated API server."""

from kaicore.rules.events.payloads import QueueDeleted, QueueFigures, QueuesReported

from tests.given.servers.kube import Json
from tests.integration.binder.conftest import Scene

QUEUES = "/apis/scheduling.run.ai/v2/queues"


async def make(scene: Scene, name: str) -> Json:
    resources = {"gpu": {"quota": 4, "limit": -1, "overQuotaWeight": 1}}
    return await scene.api.post(QUEUES, {"metadata": {"name": name}, "spec": {"resources": resources}})


async def report(scene: Scene, *figures: QueueFigures) -> None:
    await scene.append(("queues", QueuesReported("default", 1, figures)))


async def written(scene: Scene, name: str, **expected: object) -> None:
    """Wait until the status of a queue has some fields."""
    await scene.api.until(f"{QUEUES}/{name}", lambda queue: expected.items() <= queue.get("status", {}).items())


async def test_what_was_last_reported_is_written(scene: Scene) -> None:
    await scene.api.install_queues()
    uid = (await make(scene, "a"))["metadata"]["uid"]
    await report(scene, QueueFigures("a", uid, requested={"gpu": 9}, children=("b",)))
    binder = scene.start()
    await written(
        scene,
        "a",
        requested={"cpu": "0", "memory": "0", "nvidia.com/gpu": "9"},
        childQueues=["b"],
    )
    held = {"cpu": 1500, "gpu": 3}
    await report(
        scene,
        QueueFigures("ClusterQueue/k", "uid-k", requested=held),
        QueueFigures("a", uid, requested=held, allocated=held, non_preemptible={"gpu": 1}),
    )
    await written(
        scene,
        "a",
        requested={"cpu": "1500m", "memory": "0", "nvidia.com/gpu": "3"},
        allocated={"cpu": "1500m", "memory": "0", "nvidia.com/gpu": "3"},
        allocatedNonPreemptible={"cpu": "0", "memory": "0", "nvidia.com/gpu": "1"},
        childQueues=[],
    )
    assert binder.metric("side_writes_total", kind="queue-status", result="written") == 2
    assert binder.metric("side_writes_total", kind="queue-status", result="refused") == 0


async def test_nothing_is_written_into_a_successor_of_the_name_or_where_it_is_not_wanted(scene: Scene) -> None:
    await scene.api.install_queues()
    await make(scene, "a")
    kept = await make(scene, "b")
    uid = kept["metadata"]["uid"]
    await report(scene, QueueFigures("a", "another-uid", requested={"gpu": 9}), QueueFigures("gone", "uid-gone"))
    await scene.append(("queues", QueueDeleted("uid-gone", "gone")))
    await report(scene, QueueFigures("b", uid, requested={"gpu": 1}))
    await scene.start(queue_statuses=False).stop()
    assert "status" not in await scene.api.get(f"{QUEUES}/b")
    scene.start()
    await report(scene, QueueFigures("b", uid, requested={"gpu": 2}))
    await written(scene, "b", requested={"cpu": "0", "memory": "0", "nvidia.com/gpu": "2"})
    assert "status" not in await scene.api.get(f"{QUEUES}/a")
