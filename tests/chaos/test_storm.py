"""A storm: pods, Jobs and gangs come and go on kubelets that are ahead of the API, and one part after another fails.

Fifteen seconds of it in the gate; `make chaos` has five minutes (`KAI_TEST_STORM_S`, `KAI_TEST_STORM_SEED`). The log is
kept as the file `KAI_TEST_STORM_LOG`, where that is set, for `tests.recorded.read_log`.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kaicore.analysis.inquiry.promises import promises_of
from kaicore.errors import ClusterError
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pod_entry import Stage

from tests.chaos.rejections import rejections_of, story
from tests.e2e.live_stack import PATIENCE_S, LiveStack, ours, pod_manifest
from tests.recorded import write_log
from tests.servers import scratch_directory

SECONDS = float(os.environ.get("KAI_TEST_STORM_S", "15"))
SEED = int(os.environ.get("KAI_TEST_STORM_SEED", "1"))

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 3 * PATIENCE_S)]

#: Few nodes of all strict kinds, so that pods are in each other's way; as late as real kubelets were measured.
PROFILE = """
groups:
  - name: single
    count: 3
    zones: 2
    perZone: &zone {cpus: 16, memory: 64Gi, devices: {nvidia.com/gpu: 4}}
    kubelet: {topologyManagerPolicy: single-numa-node, cpuManagerPolicy: static, kubeReserved: {cpu: "2", memory: 2Gi}}
    nrt: &nrt {publisher: rte, delay: 500ms, jitter: 500ms, period: 10s}
    timing: &timing {startupDelay: 100ms, startupJitter: 200ms, terminationSeconds: 300ms}
    lag: &lag {status: 2s, podresources: 400ms, sync: 100ms}
  - name: restricted
    count: 3
    zones: 2
    perZone: *zone
    kubelet:
      topologyManagerPolicy: restricted
      topologyManagerScope: pod
      cpuManagerPolicy: static
      memoryManagerPolicy: Static
      kubeReserved: {cpu: "2", memory: 2Gi}
    nrt: *nrt
    timing: *timing
    lag: *lag
"""
NODES = [f"{name}-{number}" for name in ("single", "restricted") for number in range(3)]
SERVICES = (
    "kai_relay",
    "kai_watcher",
    "kai_scheduler",
    "kai_binder",
    "kai_ingest",
    "kai_exporter",
    "fleet.main",
    "apiserver.main",
    "nats-server",
    "postgres",
)
GANG = "gang.scheduling.koordinator.sh"


@pytest.fixture
def stack() -> Iterator[LiveStack]:
    with scratch_directory() as root:
        profile = root.parent / f"{root.name}.yaml"
        profile.write_text(PROFILE)
        live = LiveStack(root, profile=str(profile))
        live.start()
        try:
            yield live
        finally:
            live.interrupt()
            profile.unlink()


async def test_a_storm_leaves_nothing_promised_twice_nothing_rejected_and_nothing_lost(stack: LiveStack) -> None:
    storm = Storm(stack, random.Random(SEED))
    try:
        async with asyncio.timeout(SECONDS + PATIENCE_S):
            await storm.blow(SECONDS)
            state = await stack.until(all_is_over(storm.created))
    finally:
        async with stack.log() as log:
            events = await log.read("e2e", limit=1_000_000)
        if kept := os.environ.get("KAI_TEST_STORM_LOG"):
            write_log(Path(kept), events)
    async with stack.log() as log:
        report = await promises_of(log, "e2e", upto=state.position)
    assert report.ok, "\n".join(line for over in report.twice for line in story(events, over.node, over.position))
    bound = Counter(decode_payload(event).uid for event in events if event.type == "PodBound")  # type: ignore[attr-defined]
    assert [uid for uid, times in bound.items() if times > 1] == []
    assert len(bound) > SECONDS
    await stack.check()
    rejections = rejections_of(events)
    assert rejections.avoidable == [], "\n".join([*storm.told, *rejections.avoidable])
    # Blindness is rare: a service that was killed is back within seconds.
    assert rejections.unavoidable <= 0.01 * len(bound)
    assert await storm.failed_jobs() == []


def all_is_over(names: set[str]) -> Callable[[ClusterState], bool]:
    """Whether everything that was made has come to its end, or was deleted."""

    def condition(state: ClusterState) -> bool:
        there = ours(state)
        seen = {entry.pod.name for entry in there} | {entry.pod.owner.name for entry in there if entry.pod.owner}
        return bool(seen & names) and all(entry.stage is Stage.FINISHED for entry in there)

    return condition


class Storm:
    """What comes and goes, and what fails, drawn from one source of chance."""

    def __init__(self, stack: LiveStack, chance: random.Random) -> None:
        self._stack = stack
        self._chance = chance
        self._number = 0
        #: Names of the pods and Jobs that were made.
        self.created: set[str] = set()
        #: The faults, in order.
        self.told: list[str] = []

    async def blow(self, seconds: float) -> None:
        """Go on for so long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        faults = asyncio.create_task(self._fail(until))
        while loop.time() < until:
            await self._come()
            if self._chance.random() < 0.2:
                await self._go()
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))
        await faults

    # --- what comes and goes --------------------------------------------------------------------------------------

    async def _come(self) -> None:
        self._number += 1
        make = self._chance.choice([self._pod, self._pod, self._with_sidecar, self._job, self._gang])
        manifests = make(f"s{self._number}")
        self.created |= {manifest["metadata"]["name"] for manifest in manifests}
        # An API server that is just being killed takes nothing; what it took and did not answer is there all the same.
        with suppress(ClusterError):
            await self._stack.create(*manifests)

    def _amounts(self) -> dict[str, str]:
        chance = self._chance
        amounts = {"cpu": str(chance.choice([1, 2, 3, 4, 7, 12])), "memory": f"{chance.choice([1, 8, 40])}Gi"}
        return amounts | ({"gpu": str(chance.choice([1, 1, 2, 4]))} if chance.random() < 0.5 else {})

    def _pod(self, name: str) -> list[dict[str, Any]]:
        return [pod_manifest(name, seconds=self._chance.uniform(0.5, 4), **self._amounts())]

    def _with_sidecar(self, name: str) -> list[dict[str, Any]]:
        (pod,) = self._pod(name)
        for kind, restart in (("init", {}), ("side", {"restartPolicy": "Always"})):
            cpus = {"cpu": str(self._chance.choice([1, 2, 3])), "memory": "1Gi"}
            container = {"name": kind, "image": "x", "resources": {"requests": cpus, "limits": cpus}, **restart}
            pod["spec"].setdefault("initContainers", []).append(container)
        return [pod]

    def _job(self, name: str) -> list[dict[str, Any]]:
        (pod,) = self._pod(name)
        count = self._chance.randint(2, 5)
        template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
        spec = {"parallelism": count, "completions": count, "backoffLimit": 20, "template": template}
        return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}]

    def _gang(self, name: str) -> list[dict[str, Any]]:
        count, amounts = self._chance.randint(2, 4), self._amounts()
        pods = [pod_manifest(f"{name}-{member}", seconds=2, **amounts) for member in range(count)]
        for pod in pods:
            pod["metadata"]["annotations"] |= {f"{GANG}/name": name, f"{GANG}/min-available": str(count)}
        return pods

    async def _go(self) -> None:
        """Delete a pod of its own that is no gang's: the rest of a gang would wait for it for good."""
        alone = sorted(name for name in self.created if "-" not in name)
        path = f"/api/v1/namespaces/{self._stack.namespace}/pods/{self._chance.choice(alone)}"
        with suppress(ClusterError):
            async with self._stack.client() as client:
                await client.delete(path, {"gracePeriodSeconds": 1})

    # --- what fails -----------------------------------------------------------------------------------------------

    async def _fail(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        faults: list[Callable[[], Awaitable[None]]] = [self._kill, self._restart_kubelet, self._lose_topologies]
        faults += [self._lag, self._kill, self._answers_get_lost]
        number = 0
        while loop.time() < until:
            await faults[number % len(faults)]()
            number += 1
            await asyncio.sleep(self._chance.uniform(1, 3))

    async def _kill(self) -> None:
        service = self._chance.choice(SERVICES)
        self.told.append(f"kill -9 {service}")
        # Its last life may still be ending.
        with suppress(AssertionError):
            self._stack.kill_service(service)

    async def _restart_kubelet(self) -> None:
        node = self._chance.choice(NODES)
        await self._control(node, "kubelet", {"running": False})
        await asyncio.sleep(self._chance.uniform(0.2, 1))
        await self._control(node, "kubelet", {"running": True})

    async def _lose_topologies(self) -> None:
        await self._control(self._chance.choice(NODES), "publisher", {"lose": 2, "lagSeconds": 1})

    async def _lag(self) -> None:
        lag = {"statusSeconds": self._chance.uniform(0, 2), "syncSeconds": self._chance.uniform(0, 0.5)}
        await self._control(self._chance.choice(NODES), "lag", lag)

    async def _answers_get_lost(self) -> None:
        match = {"verb": "create", "resource": "pods", "subresource": "binding"}
        self.told.append("answers to two bindings get lost")
        with suppress(ClusterError):
            async with self._stack.client() as client:
                await client.post("/simulator/faults", {"match": match, "fault": {"kind": "lost-answer", "times": 2}})

    async def _control(self, node: str, what: str, body: dict[str, Any]) -> None:
        port = json.loads((self._stack.directory.root / "ports.json").read_text())["e2e-fleet"]
        self.told.append(f"{node}: {what} {body}")
        with suppress(aiohttp.ClientError):
            async with aiohttp.ClientSession(headers=await self._stack.admin_headers()) as session:
                url = f"http://127.0.0.1:{port}/simulator/nodes/{node}/{what}"
                async with session.post(url, json=body) as response:
                    assert response.status in (200, 503), await response.text()

    async def failed_jobs(self) -> list[str]:
        """Jobs that did not complete."""
        async with self._stack.client() as client:
            jobs = json.loads(await client.get("/apis/batch/v1/jobs"))["items"]
        return [
            job["metadata"]["name"]
            for job in jobs
            if not any(item["type"] == "Complete" for item in job["status"].get("conditions", ()))
        ]
