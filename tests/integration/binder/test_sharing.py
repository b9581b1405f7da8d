"""Several binders of a cluster: each has its nodes, and takes over those of one that is gone, in order."""

from kai_binder.work_share import WorkShare
from kaicore.ledger.bus.leases import Members

from tests.given.doubles.memory_leases import MemoryLeaseStore
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS
from tests.integration.binder.conftest import RunningBinder, Scene

NODES = tuple(f"n{number}" for number in range(12))
BINDINGS = {"verb": "create", "resource": "pods", "subresource": "binding"}


def share(store: MemoryLeaseStore, scene: Scene, name: str) -> WorkShare:
    return WorkShare(Members(store, scene.cluster, "binder", member=name, ttl_s=0.6))


async def seen(binder: RunningBinder, live: int) -> None:
    """Wait until a binder sees so many, itself included."""
    await eventually(lambda: binder.metric("live") == live, every_s=0.05)


async def test_binders_share_the_nodes_and_keep_their_order_when_one_is_killed(scene: Scene) -> None:
    scene.api.faults(**BINDINGS, kind="latency", every=2, seconds=0.01)
    scene.api.faults(**BINDINGS, kind="lost-answer", after=5, every=9, times=3)
    store = MemoryLeaseStore()
    binders = {name: scene.start(share=share(store, scene, name), scheduled_events=False) for name in ("a", "b", "c")}
    for binder in binders.values():
        await seen(binder, 3)
    decisions = [(await scene.api.pod(f"p{number}"), NODES[number % len(NODES)]) for number in range(72)]
    await scene.decide(*decisions[:36])
    await scene.outcomes(12)
    dead = binders["b"]
    scene.binders.remove(dead)
    await dead.kill()
    await scene.decide(*decisions[36:])
    await scene.bound(72)
    for name in ("a", "c"):
        assert binders[name].metric("binds_total", outcome="bound") > 0
    bound = sorted(await scene.api.items(PODS), key=lambda pod: int(pod["metadata"]["resourceVersion"]))
    for node in NODES:
        expected = [pod["metadata"]["name"] for pod, chosen in decisions if chosen == node]
        assert [pod["metadata"]["name"] for pod in bound if pod["spec"]["nodeName"] == node] == expected


async def test_a_binder_that_joins_takes_its_part_and_one_that_leaves_gives_it_back(scene: Scene) -> None:
    store = MemoryLeaseStore()
    first = scene.start(share=share(store, scene, "a"))
    await scene.decide(*[(await scene.api.pod(f"p{number}"), NODES[number]) for number in range(12)])
    await scene.outcomes(12)
    second = scene.start(share=share(store, scene, "b"))
    await seen(first, 2)
    await scene.decide(*[(await scene.api.pod(f"q{number}"), NODES[number]) for number in range(12)])
    await scene.outcomes(24)
    shares = [binder.metric("binds_total", outcome="bound") for binder in (first, second)]
    assert sum(shares) == 24
    assert 0 < shares[1] < 12
    scene.binders.remove(second)
    await second.stop()
    await scene.decide(*[(await scene.api.pod(f"r{number}"), NODES[number]) for number in range(12)])
    await scene.outcomes(36)
