"""A node: its kubelet, which is the fleet's without its network, and the exporter beside it.

What a kubelet must not forget is on its disk before the API server hears of it, as on a real one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from kai_fleet.fleet import devices_of
from kai_fleet.node.agent import Agent, DeletePod, Instruction, PatchStatus, WakeAt
from kai_fleet.node.checkpoint import NodeState, restore, snapshot
from kai_fleet.node.nrt import API_VERSION, NrtBuilder
from kai_fleet.node.nrt import PATH as NRT_PATH
from kai_fleet.node.objects import node_marks, node_object, node_status
from kai_fleet.node.pod_conversion import PodObject
from kai_fleet.profiles.nodes import NodeSpec
from kai_gpu_reservation.main import annotate, own_gpu
from kai_ingest.reports import Report
from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable, ConfigurationError, KaiError
from kaicore.kube.api.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import Change, ObjectGone, ObjectRefused, Relist
from kaicore.kube.wire.resources import Resource
from kaicore.rules.model.placement import ContainerPlacement
from kaicore.rules.objects.reports import ReportAnswer

from tests.given.doubles.virtual_storm import placement_of
from tests.simulation.loop import EPOCH_S, Process, SimulatedLoop
from tests.simulation.shares import NAMESPACE

#: Seconds until a write that failed is sent again.
_RETRY_S = 0.3

#: Seconds from a change on the node to the exporter's look at it, and between two looks in silence.
_LOOK_S, _QUIET_S = 0.2, 4.0

_DELETE = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}

Reporting = Callable[[Report], Awaitable[ReportAnswer]]


class Kubelet:
    """One start of a node's kubelet and exporter."""

    def __init__(
        self,
        loop: SimulatedLoop,
        process: Process,
        spec: NodeSpec,
        *,
        client: KubeClient,
        report: Reporting,
        disk: dict[str, NodeState],
        rejected: Callable[[str, str], None],
        jitter: Callable[[], float],
    ) -> None:
        """`rejected` gets pod and reason when the kubelet does not admit a pod."""
        self._loop, self._process, self.spec, self._client, self._report = loop, process, spec, client, report
        self._disk, self._rejected, self._jitter = disk, rejected, jitter
        self.agent = Agent(spec)
        if spec.name in disk:
            restore(self.agent, disk[spec.name])
        self._writes: deque[tuple[str, PodObject, bytes]] = deque()
        self._due = asyncio.Event()
        self._changed = asyncio.Event()
        self._reserving: asyncio.Queue[PodObject] = asyncio.Queue()
        self._ran: set[str] = set()
        self._first: list[PodObject] | None = []
        self._sequence = 0
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{spec.name}"
        self._reflector = Reflector(client, Resource("Pod", path, PodObject), self._take, observer=self, jitter=jitter)

    async def run(self) -> None:
        """Join the cluster, and run pods until killed."""
        self._do(self.agent.wakes(self._now()))
        await self._register()
        await asyncio.gather(self._reflector.run(), self._write(), self._export(), self._programs())

    def _now(self) -> float:
        return EPOCH_S + self._loop.time() + self._process.offset_s

    # --- the node's objects -----------------------------------------------------------------------------------------

    async def _register(self) -> None:
        now, kubelet, name = self._now(), self.agent.kubelet, self.spec.name
        made = await self._insist("POST", "/api/v1/nodes", msgspec.Raw(node_object(self.spec, kubelet, now=now)))
        if not made:
            path = f"/api/v1/nodes/{name}"
            await self._insist("PATCH", path, msgspec.Raw(node_marks(self.spec)))
            await self._insist(
                "PATCH", f"{path}/status", msgspec.Raw(node_status(self.spec, kubelet, now=now, since=now))
            )
        body = NrtBuilder(self.spec, kubelet).build(kubelet)
        body |= {"apiVersion": API_VERSION, "kind": "NodeResourceTopology"}
        body["metadata"] = {**body.get("metadata", {}), "name": name}
        if not await self._insist("POST", NRT_PATH, body):
            await self._insist("PATCH", f"{NRT_PATH}/{name}", body, content_type=MERGE_PATCH)

    async def _insist(self, method: str, path: str, body: Any, content_type: str = STRATEGIC_MERGE_PATCH) -> bool:
        """Write until there is an answer; return whether it was taken."""
        while True:
            try:
                if method == "POST":
                    await self._client.post(path, body)
                elif method == "PATCH":
                    await self._client.patch(path, body, content_type=content_type)
                else:
                    await self._client.delete(path, body)
            except ApiStatus:
                return False
            except ClusterUnavailable:
                await asyncio.sleep(_RETRY_S)
            else:
                return True

    # --- pods -------------------------------------------------------------------------------------------------------

    async def _take(self, changes: list[Change[PodObject]]) -> None:
        now = self._now()
        for change in changes:
            if isinstance(change, ObjectRefused):
                raise AssertionError(f"{self.spec.name}: {change.error}")
            if isinstance(change, ObjectGone):
                self.agent.pod_gone(change.uid)
            elif self._first is not None:
                self._first.append(change.object)
            else:
                self._reserve(change.object)
                self._do(self.agent.pod_seen(change.object, now))
        if self._first is not None and self._reflector.core.synced:
            first, self._first = self._first, None
            for pod in first:
                self._reserve(pod)
            self._do(self.agent.synced(first, now))
        self._settle()

    def _wake(self) -> None:
        self._do(self.agent.due(self._now()))
        self._settle()

    def _do(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case WakeAt(when):
                    self._loop.call_later(max(0.0, when - self._now()) + 0.001, self._wake)
                case PatchStatus(pod, body):
                    self._writes.append(("PATCH", pod, body))
                case DeletePod(pod):
                    self._writes.append(("DELETE", pod, b""))
                case _:
                    self._note(instruction)

    def _note(self, instruction: Any) -> None:
        rejection = getattr(instruction, "rejection", None)
        if rejection is not None:
            self._rejected(instruction.pod.metadata.name, rejection.reason)

    def _settle(self) -> None:
        if self.agent.take_changes() or self.agent.allocations_changed:
            self._disk[self.spec.name] = snapshot(self.agent)
        if self.agent.allocations_changed:
            self.agent.allocations_changed = False
            self._changed.set()
        if self._writes:
            self._due.set()

    async def _write(self) -> None:
        while True:
            await self._due.wait()
            while self._writes:
                method, pod, body = self._writes[0]
                path = f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"
                if method == "DELETE":
                    await self._insist("DELETE", path, {**_DELETE, "preconditions": {"uid": pod.metadata.uid}})
                else:
                    status = {"metadata": {"uid": pod.metadata.uid}, **msgspec.json.decode(body)}
                    await self._insist("PATCH", f"{path}/status", status)
                self._writes.popleft()
            self._due.clear()

    # --- programs of reservation pods ---------------------------------------------------------------------------------

    def _reserve(self, pod: PodObject) -> None:
        """Run the program of a reservation pod once its container has started."""
        ran = pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None
        if ran and pod.metadata.namespace == NAMESPACE and pod.metadata.uid not in self._ran:
            self._ran.add(pod.metadata.uid)
            self._reserving.put_nowait(pod)

    async def _programs(self) -> None:
        while True:
            pod = await self._reserving.get()
            try:
                gpu = own_gpu({}, driver=partial(devices_of, self.agent.kubelet, pod.metadata.uid))
                await annotate(self._client, namespace=NAMESPACE, name=pod.metadata.name, gpu=gpu)
            except ConfigurationError:
                # The pod is gone, or another one has its name.
                continue
            except ApiStatus:
                continue
            except ClusterUnavailable:
                await asyncio.sleep(_RETRY_S)
                self._reserving.put_nowait(pod)

    # --- the exporter -----------------------------------------------------------------------------------------------

    async def _export(self) -> None:
        again = True
        while True:
            if not again:
                try:
                    async with asyncio.timeout(_QUIET_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass
            self._changed.clear()
            await asyncio.sleep(_LOOK_S * (1 + self._jitter()))
            if self.agent.half_way:
                again = True
                continue
            try:
                answer = await self._report(self._looked())
            except KaiError:
                again = True
            else:
                again = bool(answer.unknown or answer.again)

    def _looked(self) -> Report:
        kubelet = self.agent.kubelet
        self._sequence += 1
        return Report(
            version=1,
            node=self.spec.name,
            instance=self._process.name.replace(".", "-"),
            sequence=self._sequence,
            observed_at=int(self._now() * 1e6),
            full=True,
            pods=[
                _reported(pod.namespace, pod.name, pod.uid, placement_of(kubelet, pod)) for pod in kubelet.pods.values()
            ],
        )

    # --- what the reflector tells -----------------------------------------------------------------------------------

    def listed(self, kind: str, why: Relist, objects: int) -> None:
        """See `ReflectorObserver.listed`."""

    def watching(self, kind: str) -> None:
        """See `ReflectorObserver.watching`."""

    def answered(self, kind: str) -> None:
        """See `ReflectorObserver.answered`."""

    def failed(self, kind: str, error: ClusterError) -> None:
        """See `ReflectorObserver.failed`."""


def _reported(namespace: str, name: str, uid: str, placement: Any) -> dict[str, Any]:
    """A pod as an exporter reports it."""
    inits = set(placement.init or ())
    return {
        "namespace": namespace,
        "name": name,
        "uid": uid,
        "containers": [_container(one) for one in placement.containers if one.container not in inits],
        "init_containers": [_container(one) for one in placement.containers if one.container in inits],
        "checked": True,
    }


def _container(one: ContainerPlacement) -> dict[str, Any]:
    return {
        "name": one.container,
        "zones": [{"zone": zone.zone, "amount": zone.amount} for zone in one.zones],
        "spans": [{"zones": list(span.zones), "amount": span.amount} for span in one.spans],
    }
