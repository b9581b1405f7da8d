"""Shares of GPUs, carried out: reservation pods, ConfigMaps, labels, and GPUs that are closed again."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from kaicore.kube.api.client import KubeClient
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import Unit, UnitOutcome
from kaicore.rules.events.payloads import GpuClosed, PodObserved
from kaicore.rules.model.gpu_share import GPU_INDEX_ANNOTATION, reservation_name

from tests.given.processes.service_task import PATIENCE_S
from tests.given.processes.waiting import eventually
from tests.given.servers.kube import PODS
from tests.integration.binder.conftest import RunningBinder, Scene
from tests.integration.binder.sharing import CONFIG_MAPS, OPTIONS, RESERVATIONS, SharedNode, shared_node


@pytest.fixture
async def node(scene: Scene) -> AsyncIterator[SharedNode]:
    async with shared_node(scene) as node:
        yield node


async def data_of(scene: Scene, name: str = "") -> dict[str, str]:
    return dict((await scene.api.get(f"{CONFIG_MAPS}/{name}"))["data"])


async def is_made_anew(scene: Scene, node: SharedNode) -> bool:
    """True if a second reservation pod says which GPU it holds, and the log has that."""
    scene.check_binders()
    pods = await scene.api.items(RESERVATIONS)
    annotated = [GPU_INDEX_ANNOTATION in one["metadata"].get("annotations", {}) for one in pods]
    seen = [one for one in await node.recorded("PodObserved") if isinstance(one, PodObserved)]
    found = {one.pod.uid for one in seen if GPU_INDEX_ANNOTATION in one.pod.annotations}
    return annotated == [True] and len(found) == len(node.given) == 2


async def test_pods_that_share_a_gpu_are_told_the_one_that_its_reservation_pod_got(
    scene: Scene, node: SharedNode
) -> None:
    a, b = await node.shared_pod("a"), await node.shared_pod("b")
    node.start()
    await node.place(a)
    await node.place(b, opens=False)
    await scene.bound(2)
    assert list(node.given.values()) == ["GPU-0"]
    for name in ("a", "b"):
        pod = await scene.api.get(f"{PODS}/{name}")
        assert pod["metadata"]["labels"]["runai-gpu-group"] == "aaaaaaaa"
        assert pod["metadata"]["annotations"]["received-resource-type"] == "Fraction"
        keys = await data_of(scene, f"{name}-1234567-shared-gpu-0")
        assert keys == {"NVIDIA_VISIBLE_DEVICES": "GPU-0", "GPU_PORTION": "0.50", "RUNAI_NUM_OF_GPUS": "0.50"}


async def test_gpu_is_closed_and_given_back_when_the_last_of_its_pods_is_over(scene: Scene, node: SharedNode) -> None:
    a, b = await node.shared_pod("a"), await node.shared_pod("b")
    node.start()
    await node.place(a, b)
    await scene.outcomes(2)
    await node.end("a")
    assert await node.recorded("GpuClosed") == []
    await node.end("b")
    await node.until_empty()
    assert await node.recorded("GpuClosed") == [GpuClosed("n1", "aaaaaaaa", "Unused")]


async def test_reservation_pod_is_deleted_although_another_write_came_between(scene: Scene, node: SharedNode) -> None:
    a = await node.shared_pod("a")
    node.start()
    await node.place(a)
    await scene.outcomes(1)
    name = reservation_name("n1", "aaaaaaaa")
    scene.api.faults(verb="delete", resource="pods", name=name, kind="conflict", times=2)
    await node.end("a")
    await node.until_empty()
    assert await node.recorded("GpuClosed") == [GpuClosed("n1", "aaaaaaaa", "Unused")]


async def test_pod_with_parts_of_several_gpus_has_a_label_for_each(scene: Scene, node: SharedNode) -> None:
    pod = await node.shared_pod("a", **{"gpu-fraction-num-devices": "2"})
    node.start(gpu_cdi=True)
    await node.place(pod, groups=("aaaaaaaa", "bbbbbbbb"))
    await scene.outcomes(1)
    labels = (await scene.api.get(f"{PODS}/a"))["metadata"]["labels"]
    assert labels == {"runai-gpu-group/aaaaaaaa": "aaaaaaaa", "runai-gpu-group/bbbbbbbb": "bbbbbbbb"}
    visible = (await data_of(scene, "a-1234567-shared-gpu-0"))["NVIDIA_VISIBLE_DEVICES"]
    names = {
        one["metadata"]["labels"]["runai-gpu-group"]: one["metadata"]["uid"]
        for one in await scene.api.items(RESERVATIONS)
    }
    expected = [f"k8s.device-plugin.nvidia.com/gpu={node.given[names[group]]}" for group in ("aaaaaaaa", "bbbbbbbb")]
    assert visible == ",".join(expected)


@pytest.mark.parametrize("kubelet", ["refuses", "is silent"])
async def test_reservation_that_comes_to_nothing_gives_the_pod_back_and_closes_the_gpu(
    scene: Scene, node: SharedNode, kubelet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = await node.shared_pod("a")
    node.admits = False
    if kubelet == "is silent":

        async def nothing(self: SharedNode, pod: Any) -> None:
            self.given[pod["metadata"]["uid"]] = ""

        monkeypatch.setattr(SharedNode, "_admit", nothing)
    node.start(gpu_give_up_s=0.5 if kubelet == "is silent" else 30)
    await node.place(pod)
    outcome = await scene.failure()
    assert (outcome.reason, outcome.gone) == ("GpuNotReserved", False)
    if kubelet == "refuses":
        assert "UnexpectedAdmissionError: no GPU is free" in outcome.message
    await node.until_empty()
    (closed,) = await node.recorded("GpuClosed")
    assert closed.group == "aaaaaaaa"
    assert "nodeName" not in (await scene.api.get(f"{PODS}/a"))["spec"]


@pytest.mark.parametrize("how", ["deleted", "evicted"])
@pytest.mark.parametrize("same", [True, False], ids=["same GPU", "another GPU"])
async def test_reservation_pod_that_is_lost_is_made_anew_and_serves_if_it_gets_the_same_gpu(
    scene: Scene, node: SharedNode, how: str, same: bool
) -> None:
    a, b = await node.shared_pod("a"), await node.shared_pod("b")
    node.start()
    await node.place(a)
    await scene.bound()
    node.gives = "GPU-0" if same else "GPU-1"
    path = f"{RESERVATIONS}/{reservation_name('n1', 'aaaaaaaa')}"
    if how == "deleted":
        await scene.api.client.delete(path, {})
    else:
        status = {"phase": "Failed", "reason": "Evicted", "message": "the node was low on resource: memory"}
        await scene.api.merge(f"{path}/status", {"status": status})
    await eventually(lambda: is_made_anew(scene, node))
    assert await node.recorded("GpuClosed") == [], "a pod shares it still"
    await node.place(b, opens=False)
    if same:
        await scene.bound(2)
        assert (await data_of(scene, "b-1234567-shared-gpu-0"))["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
        await node.end("b")
    else:
        failed = await scene.failure("b", count=2)
        assert "its reservation pod holds GPU GPU-1, and its pods share GPU GPU-0" in failed.message
    await node.end("a")
    await node.until_empty()
    assert len(await node.recorded("GpuClosed")) == 1
    assert len(node.given) == 2


@pytest.mark.parametrize(
    ("options", "annotated", "reason"),
    [({"gpu_sharing": False}, True, "GpuSharingDisabled"), ({}, False, "InvalidShare")],
)
async def test_share_that_cannot_be_carried_out_gives_the_pod_back_with_the_reason(
    scene: Scene, node: SharedNode, options: dict[str, Any], annotated: bool, reason: str
) -> None:
    pod = await node.shared_pod("a") if annotated else await scene.api.pod("a")
    node.start(**options)
    await node.place(pod)
    assert (await scene.failure()).reason == reason
    await node.until_empty()


async def test_two_binders_open_and_close_a_gpu_once(scene: Scene, node: SharedNode) -> None:
    pods = [await node.shared_pod(name) for name in ("a", "b")]
    node.start()
    node.start()
    await node.place(*pods)
    await scene.outcomes(2)
    for name in ("a", "b"):
        await node.end(name)
    await node.until_empty()
    assert len(node.given) == 1
    assert len(await node.recorded("GpuClosed")) == 1


class Crash(Exception):
    """A binder ends here."""


class CrashPoint:
    """Ends a binder at its n-th write: before it is made, or after it was made and nobody heard of it."""

    def __init__(self, number: int, *, after: bool) -> None:
        self.number, self.after, self.struck, self.writes = number, after, False, list[str]()

    def before(self, what: str) -> None:
        self.writes.append(what)
        self._strike(after=False)

    def done(self) -> None:
        self._strike(after=True)

    def _strike(self, *, after: bool) -> None:
        if self.struck or (len(self.writes) == self.number and after == self.after):
            self.struck = True
            raise Crash(self.writes[-1])


class CrashingClient(KubeClient):
    """A client of a binder that ends."""

    point: CrashPoint

    async def _request(self, method: str, path: str, **rest: Any) -> bytes:
        if method == "GET":
            return await super()._request(method, path, **rest)
        self.point.before(f"{method} {path}")
        answer = await super()._request(method, path, **rest)
        self.point.done()
        return answer


class CrashingLog:
    """A log of a binder that ends."""

    def __init__(self, log: EventLog, point: CrashPoint) -> None:
        self._log, self._point = log, point

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(
        self, cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None
    ) -> list[UnitOutcome]:
        self._point.before(f"append {type(units[0].events[0].payload).__name__}")
        outcomes = await self._log.append(cluster, units, expect=expect)
        self._point.done()
        return outcomes


#: A binder's writes from a decision to the end of its GPU; a test holds that there are no others.
WRITES = (
    "POST reservation pod",
    "POST ConfigMap of keys",
    "POST ConfigMap of environment",
    "PATCH labels",
    "POST binding",
    "append PodBound",
    "append GpuClosed",
    "DELETE reservation pod",
)


def crashing(scene: Scene, point: CrashPoint) -> RunningBinder:
    """Start a binder that ends at a point."""
    client = CrashingClient(scene.api.access(), user_agent="kai-binder", timeout_s=PATIENCE_S)
    client.point = point
    binder = RunningBinder(scene.api, CrashingLog(scene.log, point), scene.cluster, client=client, **OPTIONS)  # type: ignore[arg-type]
    scene.binders.append(binder)
    return binder


async def ended_by_crash(scene: Scene, binder: RunningBinder) -> bool:
    """Tell whether a binder has crashed; it is no binder of the scene any more then."""
    if not binder.task.done():
        return False
    with pytest.raises(Crash):
        binder.task.result()
    await binder.client.close()
    scene.binders.remove(binder)
    return True


async def life_of_a_share(scene: Scene, node: SharedNode, point: CrashPoint) -> None:
    """A pod is placed, bound, and over; the binder is started again when it has crashed."""
    pod = await node.shared_pod("a")
    binder = crashing(scene, point)
    await node.place(pod)
    over = False
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if binder in scene.binders and await ended_by_crash(scene, binder):
                node.start()
            scene.check_binders()
            if not over and await node.recorded("PodBound"):
                await check_bound(scene, node)
                await node.end("a")
                over = True
            closed = await node.recorded("GpuClosed")
            crashed = binder not in scene.binders or not point.number
            if over and closed and crashed and not await scene.api.items(RESERVATIONS):
                break
            await asyncio.sleep(0.02)


async def check_bound(scene: Scene, node: SharedNode) -> None:
    """The pod is on its node, and has the one GPU that was opened."""
    assert (await scene.api.get(f"{PODS}/a"))["spec"]["nodeName"] == "n1"
    (gpu,) = node.given.values()
    assert (await data_of(scene, "a-1234567-shared-gpu-0"))["NVIDIA_VISIBLE_DEVICES"] == gpu


async def test_a_share_takes_these_writes_and_no_others(scene: Scene, node: SharedNode) -> None:
    point = CrashPoint(0, after=True)
    await life_of_a_share(scene, node, point)
    kinds = [write.split(" ")[0] for write in point.writes]
    assert kinds == [write.split(" ")[0] for write in WRITES], point.writes
    assert [write for write in point.writes if write.startswith("append")] == [WRITES[5], WRITES[6]]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, len(WRITES) + 1), ids=WRITES)
async def test_crash_between_any_two_steps_loses_no_gpu_and_opens_none_twice(
    scene: Scene, node: SharedNode, number: int, after: bool
) -> None:
    point = CrashPoint(number, after=after)
    await life_of_a_share(scene, node, point)
    assert point.struck
    assert len(node.given) == 1, "the GPU was opened more than once"
    assert await node.recorded("GpuClosed") == [GpuClosed("n1", "aaaaaaaa", "Unused")]
    await node.until_empty()
