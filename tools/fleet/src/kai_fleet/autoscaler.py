"""A simulated autoscaler: answers ProvisioningRequests by adding the nodes that a profile keeps in reserve.

It knows enough for demonstrations and tests: it packs the pods of a request onto what is free on the fleet's nodes and
onto new ones, by what they ask for, their node selectors and their tolerations, and adds all nodes that this takes or
none. Any ProvisioningClass will do. Nodes are not taken away again.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from kaicore.errors import ApiStatus, ClusterError, ConfigurationError, InvalidObject, KaiError
from kaicore.kube.api.client import KubeClient
from kaicore.kube.api.reflector import Reflector
from kaicore.kube.api.reflector_core import Change, ObjectSeen
from kaicore.kube.wire.resources import PROVISIONING_REQUESTS, named_fields
from kaicore.rules.objects.wire import PlainObject
from kaicore.runtime.service import get_logger

from kai_fleet.fleet import Fleet, ReflectorLog
from kai_fleet.kubelet.quantity import parse_amount
from kai_fleet.node.pod_conversion import tolerates
from kai_fleet.node.pod_status import rfc3339
from kai_fleet.profiles.nodes import NodeSpec
from kai_fleet.profiles.profile import AutoscalerProfile

Json = dict[str, Any]

#: Where the requests are: the version that this autoscaler speaks.
_RESOURCE = PROVISIONING_REQUESTS.at("v1")

_NODES = "/api/v1/nodes"

#: Seconds until a request that could not be answered is looked at again.
_RETRY_S = 1.0


class NothingFits(KaiError):
    """The reserve has no nodes for all pods of a request; the message says which pod is the first without one."""


async def nodes_that_joined(client: KubeClient, reserve: Sequence[NodeSpec]) -> list[NodeSpec]:
    """Return the nodes of a reserve that were added before and still have their Nodes."""
    there = {node["metadata"]["name"] for node in msgspec.json.decode(await client.get(_NODES))["items"]}
    return [spec for spec in reserve if spec.name in there]


class Autoscaler:
    """Answers one request after another."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        reserve: Sequence[NodeSpec],
        profile: AutoscalerProfile,
    ) -> None:
        """Args:
        reserve: nodes that may be added, in the order in which they are.
        profile: how long things take.
        """
        self._client = client
        self._fleet = fleet
        self._reserve = [spec for spec in reserve if spec.name not in fleet.nodes]
        self._profile = profile
        #: Uids of the requests that were taken up.
        self._taken: set[str] = set()
        self._queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._bookings: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer requests until cancelled."""
        # As one that the API server must have: until it does, it is asked again.
        required = replace(_RESOURCE, optional=False)
        reflector = Reflector(self._client, required, self._take, observer=ReflectorLog())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(reflector.run())
                group.create_task(self._answer_all())
        finally:
            for task in self._bookings:
                task.cancel()

    async def _answer_all(self) -> None:
        while True:
            namespace, name = await self._queue.get()
            try:
                await self._answer(namespace, name)
            except ApiStatus as error:
                # It is gone, or says what makes no sense.
                get_logger().warning("request not answered", request=f"{namespace}/{name}", error=str(error))
            except ClusterError:
                await asyncio.sleep(_RETRY_S)
                self._queue.put_nowait((namespace, name))

    async def _take(self, changes: list[Change[PlainObject]]) -> None:
        for change in changes:
            if isinstance(change, ObjectSeen):
                meta = change.object.metadata
                try:
                    conditions = named_fields(_RESOURCE.kind, change.object).inside("status").items("conditions")
                    ended = any(one.text("type") in ("Failed", "Provisioned") for one in conditions)
                except InvalidObject as error:
                    get_logger().warning("request not answered", request=meta.name, error=str(error))
                    continue
                if not ended and meta.uid not in self._taken:
                    self._taken.add(meta.uid)
                    self._queue.put_nowait((meta.namespace, meta.name))

    async def _answer(self, namespace: str, name: str) -> None:
        path = f"/apis/{_RESOURCE.group}/v1/namespaces/{namespace}/{_RESOURCE.plural}/{name}"
        request: Json = msgspec.json.decode(await self._client.get(path))
        accepted = self._condition("Accepted", "Accepted", "the simulated autoscaler attempts it")
        await self._tell(path, accepted)
        await asyncio.sleep(self._profile.delay)
        try:
            chosen = pack(await self._pods(namespace, request), self._reserve, there=self._free())
        except (NothingFits, ConfigurationError) as error:
            await self._tell(path, accepted, self._condition("Failed", "CapacityIsNotFound", str(error)))
            return
        for spec in chosen:
            self._reserve.remove(spec)
            self._fleet.add(spec)
        try:
            await self._fleet.registered()
        except ConfigurationError as error:
            await self._tell(path, accepted, self._condition("Failed", "NodesNotAdded", str(error)))
            return
        get_logger().info("nodes added", request=f"{namespace}/{name}", nodes=[spec.name for spec in chosen])
        message = f"added {', '.join(spec.name for spec in chosen) or 'nothing'}"
        provisioned = self._condition("Provisioned", "Provisioned", message)
        await self._tell(path, accepted, provisioned)
        booking = asyncio.ensure_future(self._expire(path, accepted, provisioned))
        self._bookings.add(booking)
        booking.add_done_callback(self._bookings.discard)

    async def _expire(self, path: str, *conditions: Json) -> None:
        await asyncio.sleep(self._profile.booking)
        expired = self._condition("BookingExpired", "BookingExpired", "the nodes are no longer kept for it")
        try:
            await self._tell(path, *conditions, expired)
        except ClusterError as error:
            get_logger().info("booking not ended", request=path.rpartition("/")[2], error=str(error))

    async def _pods(self, namespace: str, request: Json) -> list["PodSet"]:
        """Return the pods of a request.

        Raises:
            ApiStatus: a template is not there.
            ConfigurationError: a template makes no sense.
        """
        pod_sets = []
        for pod_set in request["spec"]["podSets"]:
            name = pod_set["podTemplateRef"]["name"]
            path = f"/api/v1/namespaces/{namespace}/podtemplates/{name}"
            template: Json = msgspec.json.decode(await self._client.get(path))
            pod_sets.append(pod_set_of(template["template"]["spec"], name=name, count=pod_set["count"]))
        return pod_sets

    def _free(self) -> list[tuple[NodeSpec, dict[str, int]]]:
        spare_nodes = []
        for node in self._fleet.nodes.values():
            kubelet = node.agent.kubelet
            free = dict(kubelet.allocatable)
            for pod in kubelet.pods.values():
                for resource, amount in {**pod.node_requests(), "pods": 1}.items():
                    free[resource] = free.get(resource, 0) - amount
            if node.registered and not node.down:
                spare_nodes.append((node.spec, free))
        return spare_nodes

    async def _tell(self, path: str, *conditions: Json) -> None:
        await self._client.patch(f"{path}/status", {"status": {"conditions": list(conditions)}})

    def _condition(self, name: str, reason: str, message: str) -> Json:
        return {
            "type": name,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": rfc3339(time.time()),
        }


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of a request that are alike (`requests`: millicores, bytes, counts of each)."""

    name: str
    count: int
    requests: Mapping[str, int]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Json] = ()


def pod_set_of(spec: Json, *, name: str, count: int) -> PodSet:
    """Return what a PodTemplate's spec asks of nodes; init containers count where they ask for more.

    Raises ConfigurationError: a quantity is none.
    """

    def requests(containers: Sequence[Json]) -> list[dict[str, int]]:
        return [
            {
                resource: parse_amount(resource, quantity, subject=f"PodTemplate {name}", field="resources.requests")
                for resource, quantity in ((one.get("resources") or {}).get("requests") or {}).items()
            }
            for one in containers
        ]

    try:
        total = {"pods": 1}
        for one in requests(spec.get("containers") or ()):
            for resource, amount in one.items():
                total[resource] = total.get(resource, 0) + amount
        for one in requests(spec.get("initContainers") or ()):
            for resource, amount in one.items():
                total[resource] = max(total.get(resource, 0), amount)
    except KaiError as error:
        raise ConfigurationError(str(error)) from error
    return PodSet(name, count, total, spec.get("nodeSelector") or {}, spec.get("tolerations") or ())


def pack(
    pod_sets: Sequence[PodSet],
    reserve: Sequence[NodeSpec],
    *,
    there: Sequence[tuple[NodeSpec, Mapping[str, int]]] = (),
) -> list[NodeSpec]:
    """Return nodes of a reserve that take all pods, each on the first node that has room.

    Raises NothingFits: there are not enough.

    Args:
        reserve: nodes that may be added, tried in this order.
        there: nodes that need not be added, tried before, with what is free on them.
    """
    nodes = [*(spec for spec, _ in there), *reserve]
    free = {spec.name: dict(spec.config.allocatable) for spec in reserve}
    free |= {spec.name: dict(amounts) for spec, amounts in there}
    used: set[str] = set()
    for pod_set in pod_sets:
        matching = [spec for spec in nodes if _matches(pod_set, spec)]
        for number in range(pod_set.count):
            spec = next((spec for spec in matching if _fits(pod_set.requests, free[spec.name])), None)
            if spec is None:
                raise NothingFits(
                    f"no node is left in reserve for pod {number + 1} of {pod_set.count} of {pod_set.name}"
                )
            for resource, amount in pod_set.requests.items():
                free[spec.name][resource] -= amount
            used.add(spec.name)
    return [spec for spec in reserve if spec.name in used]


def _fits(requests: Mapping[str, int], free: Mapping[str, int]) -> bool:
    return all(amount <= free.get(resource, 0) for resource, amount in requests.items())


def _matches(pod_set: PodSet, spec: NodeSpec) -> bool:
    if any(spec.labels.get(label) != value for label, value in pod_set.node_selector.items()):
        return False
    return all(
        any(tolerates(toleration, taint.model_dump()) for toleration in pod_set.tolerations)
        for taint in spec.group.taints
        if taint.effect != "PreferNoSchedule"
    )
