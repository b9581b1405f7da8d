"""Shares of GPUs, carried out: GPUs held by reservation pods, named to the pods that share them, and closed again.

    GpuOpened, PodPlaced ──▶ reservation pods ──▶ the watcher sees their devices ──▶ ConfigMaps ──▶ labels ──▶ bound
    last holder over     ──▶ GpuClosed ──▶ reservation pod deleted

As KAI-Scheduler's binder does it, but for four things. What it waits for is in the log, so a binder that starts goes
on where the one before it ended. A GPU is closed by an event that is conditional on its node's stream, so that no
placement comes between. A reservation pod is deleted with the grace that its kubelet needs: the API never says that
a GPU is free before the kubelet has it back.

And a reservation pod that was deleted, evicted, or has failed is made anew. KAI-Scheduler deletes the pods that share
such a GPU; here they run on. The kubelet chooses the new pod's GPU. Where that is the shared one, all is as before.
Where it is another, the group takes no more pods until its last one is over, and pods that ask for repair are evicted
(`kaicore.rules.state.shared_gpus`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import msgspec
from kaicore.backoff import backoff
from kaicore.errors import (
    ApiStatus,
    ClusterUnavailable,
    IdempotencyConflict,
    InvalidObject,
    LogUnavailable,
    StaleExpectation,
)
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.gpu_shares import (
    RECEIVED_FRACTION,
    RECEIVED_TYPE,
    Document,
    ReservationSettings,
    config_maps,
    group_labels_patch,
    reservation_pod,
)
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import BindFailed, GpuClosed
from kaicore.runtime.service.logs import Logger

from kai_binder.projection.gpu_groups import GpuGroups, OpenedGpu, ReservationPod, ShareStep, next_step
from kai_binder.projection.open_work import BinderProjection, PodBinding
from kai_binder.writes.attempt import ACTOR, NotYet, Refused, given_back, pod_path

#: Seconds between two tries to make lost reservation pods anew: at first, and at most.
_FIRST_REMAKE_S, _LAST_REMAKE_S = 0.2, 60.0
#: Seconds between two looks or tries: at first, and at most.
_FIRST_S, _LAST_S = 0.05, 2.0
_NOT_FOUND, _CONFLICT = 404, 409


def _refusal(what: str, error: ApiStatus) -> Refused:
    return Refused(error.reason or "Unknown", f"{what}: {error.message}", error.code)


@contextmanager
def _unless_gone() -> Iterator[None]:
    """Pass over that a pod is gone or another one of its name, which its binding finds out as well."""
    try:
        yield
    except ApiStatus as error:
        if error.code not in (_NOT_FOUND, _CONFLICT):
            raise _refusal("labels of the pod", error) from error


@dataclass(eq=False)
class GpuShares:
    """Makes ready what a pod with parts of GPUs needs before it is bound.

    Attributes:
        settings: of reservation pods; None where sharing is not enabled.
        cdi: GPUs are named by CDI.
        groups: returns the opened GPUs as the log has them.
        is_open: whether there is still anything to do about a decision.
    """

    client: KubeClient
    _: KW_ONLY
    settings: ReservationSettings | None
    cdi: bool
    patience_s: float
    groups: Callable[[], GpuGroups]
    is_open: Callable[[PodBinding], bool]

    async def prepare(self, binding: PodBinding, *, within_s: float | None = None) -> BindFailed | None:
        """Carry out a decision's parts; None when the pod can be bound, or nothing is left to do about it.

        Raises NotYet: that took longer than `within_s`; called again, it goes on.
        """
        try:
            if self.settings is None:
                raise Refused("GpuSharingDisabled", "the binder's setting gpu_sharing is off")
            async with asyncio.timeout(self.patience_s if within_s is None else within_s):
                devices = await self._reserved(binding, self.settings)
                if devices:
                    await self._patiently(binding, lambda: self._tell(binding, devices))
        except TimeoutError:
            if within_s is not None:
                raise NotYet from None
            refused = Refused("GpuNotReserved", f"the pod's GPUs were not reserved within {self.patience_s:g} s")
        except Refused as refusal:
            refused = refusal
        else:
            return None
        return given_back(binding.decision, refused)

    async def _reserved(self, binding: PodBinding, settings: ReservationSettings) -> list[str]:
        """Return the pod's GPUs once reservation pods hold them; none when nothing is left to do."""
        looks = 0
        asked: set[str] = set()
        while self.is_open(binding):
            looks += 1
            gpus = self.groups().of(binding.decision)
            step, why = next_step(binding.decision, gpus)
            match step:
                case ShareStep.GIVE_UP:
                    raise Refused("GpuNotReserved", why)
                case ShareStep.TELL:
                    return [gpu.device for gpu in gpus]
                case ShareStep.RESERVE:
                    for gpu in gpus:
                        if not gpu.uid and gpu.group not in asked and await self._reserve(gpu, settings):
                            asked.add(gpu.group)
                case ShareStep.WAIT:
                    pass
            await asyncio.sleep(backoff(looks, first=_FIRST_S, most=_LAST_S))
        return []

    async def _reserve(self, gpu: OpenedGpu, settings: ReservationSettings) -> bool:
        """Make a GPU's reservation pod unless it is there; False where the API server does not answer."""
        path = f"/api/v1/namespaces/{gpu.opened.namespace}/pods"
        try:
            await self.client.ensure(path, reservation_pod(settings, gpu.opened))
        except ApiStatus as error:
            raise _refusal(f"reservation pod {gpu.opened.name}", error) from error
        except ClusterUnavailable:
            return False
        return True

    async def _tell(self, binding: PodBinding, devices: list[str]) -> None:
        """Write which GPUs the pod has: first where its containers look, then on the pod itself."""
        decision = binding.decision
        path = pod_path(decision.namespace, decision.name)
        with _unless_gone():
            pod: Document = msgspec.json.decode(await self.client.get(path))
            if pod["metadata"]["uid"] != decision.uid:
                return
            for document in config_maps(pod, devices=devices, milli=decision.gpus[0].milli, cdi=self.cdi):
                await self._write_config_map(decision.namespace, document)
            labels = group_labels_patch(pod["metadata"].get("labels") or {}, decision.gpus)
            metadata = {"uid": decision.uid, "labels": labels, "annotations": {RECEIVED_TYPE: RECEIVED_FRACTION}}
            await self.client.patch(path, {"metadata": metadata})

    async def _write_config_map(self, namespace: str, document: Document) -> None:
        path, name = f"/api/v1/namespaces/{namespace}/configmaps", document["metadata"]["name"]
        try:
            made = await self.client.ensure(path, document)
        except ApiStatus as error:
            raise _refusal(f"ConfigMap {name}", error) from error
        if made:
            return
        try:
            await self.client.patch(f"{path}/{name}", document)
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                raise ClusterUnavailable(f"ConfigMap {name} has just gone") from error
            raise _refusal(f"ConfigMap {name}", error) from error

    async def _patiently(self, binding: PodBinding, write: Callable[[], Awaitable[None]]) -> None:
        """Write, as often as it takes to be answered."""
        tries = 0
        while self.is_open(binding):
            tries += 1
            try:
                await write()
            except InvalidObject as error:
                raise Refused("InvalidShare", str(error)) from error
            except ClusterUnavailable:
                await asyncio.sleep(backoff(tries, first=_FIRST_S, most=_LAST_S))
            else:
                return


@dataclass(eq=False)
class GpuUpkeep:
    """Closes GPUs that no pod has a part of, makes lost reservation pods anew, and deletes those that hold for nobody.

    Attributes:
        settings: of reservation pods; None where sharing is not enabled, and nothing is made.
        projection: returns what the log says.
        has: whether work is this binder's, by what it is shared by.
        clock: microseconds since the epoch.
    """

    client: KubeClient
    log: EventLog
    cluster: str
    _: KW_ONLY
    settings: ReservationSettings | None
    projection: Callable[[], BinderProjection]
    has: Callable[[str], bool]
    clock: Callable[[], int]
    logger: Logger
    _to_close: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _to_remake: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    #: Uids of the reservation pods that the API server was asked to delete.
    _asked: set[str] = field(default_factory=set, init=False)
    #: By group, what was said of it last.
    _said: dict[str, str] = field(default_factory=dict, init=False)

    def look(self) -> None:
        """Take note that the log has moved on."""
        said: dict[str, str] = {}
        for gpu in self._exposed():
            if gpu.lost:
                said[gpu.group] = gpu.lost
            if gpu.lost and self._said.get(gpu.group) != gpu.lost:
                self.logger.error(
                    "pods share a GPU that nothing holds: its kubelet may give it to others",
                    node=gpu.node,
                    group=gpu.group,
                    gpu=gpu.shared,
                    why=gpu.lost,
                    pods=len(gpu.holders),
                )
        self._said = said
        if self._lost():
            self._to_remake.set()
        if self._left():
            self._to_close.set()

    def works(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Return what closes and makes anew, until cancelled."""
        return self._close_all(), self._remake_all()

    def _exposed(self) -> list[OpenedGpu]:
        return [gpu for gpu in self.projection().gpus.exposed() if self.has(f"node/{gpu.node}")]

    def _lost(self) -> list[OpenedGpu]:
        return [gpu for gpu in self._exposed() if gpu.gone or gpu.over] if self.settings is not None else []

    def _left(self) -> list[OpenedGpu | ReservationPod]:
        groups = self.projection().gpus
        self._asked &= groups.leftovers.keys()
        left: list[OpenedGpu | ReservationPod] = [*groups.unused()]
        left += [pod for uid, pod in groups.leftovers.items() if uid not in self._asked]
        return [one for one in left if self.has(f"node/{one.node}")]

    async def _remake_all(self) -> None:
        tries = 0
        while True:
            await self._to_remake.wait()
            self._to_remake.clear()
            lost = self._lost()
            for gpu in lost:
                if gpu.gone:
                    await self._remake(gpu)
                else:
                    # It has ended, and its successor has its name.
                    await self._delete(ReservationPod(gpu.uid, gpu.opened.namespace, gpu.opened.name, gpu.node))
            tries = tries + 1 if lost else 0
            await asyncio.sleep(backoff(tries, first=_FIRST_REMAKE_S, most=_LAST_REMAKE_S) if tries else 0)
            if self._lost():
                self._to_remake.set()

    async def _remake(self, gpu: OpenedGpu) -> None:
        assert self.settings is not None
        path, pod = f"/api/v1/namespaces/{gpu.opened.namespace}/pods", reservation_pod(self.settings, gpu.opened)
        try:
            # It may be there already, and the watcher has not seen it.
            if await self.client.ensure(path, pod):
                self.logger.info("reservation pod made anew", pod=gpu.opened.name, node=gpu.node, group=gpu.group)
        except ApiStatus as error:
            self.logger.warning("reservation pod not made anew", pod=gpu.opened.name, error=str(error))
        except ClusterUnavailable:
            pass

    async def _close_all(self) -> None:
        failures = 0
        while True:
            await self._to_close.wait()
            self._to_close.clear()
            done = [await self._clear(one) for one in self._left()]
            failures = 0 if all(done) else failures + 1
            if failures:
                await asyncio.sleep(backoff(failures, first=_FIRST_S, most=_LAST_S))
                self._to_close.set()

    async def _clear(self, one: OpenedGpu | ReservationPod) -> bool:
        """Close a GPU, or delete a reservation pod; False where it is to be looked at again."""
        if isinstance(one, OpenedGpu):
            return await self._close(one)
        if deleted := await self._delete(one):
            self._asked.add(one.uid)
        return deleted

    async def _close(self, gpu: OpenedGpu) -> bool:
        """Record that a GPU is closed; False where it is to be looked at again.

        The node's version is asked for first: whatever has been placed by then is folded before the holders count.
        """
        stream = f"node/{gpu.node}"
        try:
            versions = await self.log.stream_versions(self.cluster, [stream])
            head = (await self.log.head(self.cluster)).position
            projection = self.projection()
            if projection.position < head:
                return False
            now = projection.gpus.opened.get(gpu.group)
            if now is None or now.holders:
                return True
            reason = now.lost or "Unused"
            event = NewEvent(
                id=derived_id(self.cluster, "GpuClosed", gpu.group),
                stream=stream,
                payload=GpuClosed(gpu.node, gpu.group, reason),
                actor=ACTOR,
                occurred_at=self.clock(),
                subject=gpu.node,
            )
            await self.log.append(self.cluster, [Unit((event,))], expect=versions)
        except (LogUnavailable, StaleExpectation):
            return False
        except IdempotencyConflict:
            # Another binder has closed it.
            return True
        self.logger.info("GPU closed", node=gpu.node, group=gpu.group, reason=reason)
        return True

    async def _delete(self, pod: ReservationPod) -> bool:
        """Delete a reservation pod; False where the API server did not take that."""
        try:
            await self.client.delete(pod_path(pod.namespace, pod.name), {"preconditions": {"uid": pod.uid}})
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return True
            # A conflict: another write came between; or another pod has its name, and the log will say that it is gone.
            if error.code != _CONFLICT:
                self.logger.warning("reservation pod not deleted", pod=pod.name, error=str(error))
            return False
        except ClusterUnavailable:
            return False
        return True
