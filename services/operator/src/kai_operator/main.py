"""`kai-operator`: one operator as a process. It looks at everything whenever something has changed, and mends it.

kopf watches everything that the operator acts on. The content of an event is not used: the objects are read from the
API server when the operator looks at them. So nothing depends on the order of events, nor on their number. kopf takes
every task of its event loop for its own, so it has a loop and a thread to itself. Its handlers of events write nothing:
it leaves no mark on any object.
"""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
from kaicore.backoff import backoff
from kaicore.errors import ApiStatus, BusUnavailable, ClusterError, ConfigurationError
from kaicore.kube.api.access import AccessSource, configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.kinds.operands.plan import Given, plan
from kaicore.kube.kinds.operands.specs import OPERAND_KINDS, OPERATOR
from kaicore.kube.kinds.operands.templates import read_templates
from kaicore.ledger.bus.leases import Entry, Lease, check_name, decode_record
from kaicore.runtime.process_context import beside
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LEADS, Leadership
from kaicore.runtime.service.settings import KubeSettings
from pydantic import Field

from kai_operator.carrying_out import Hands, OperatorMetrics

try:
    import kopf
except ModuleNotFoundError as error:
    if error.name != "kopf":
        raise
    sys.exit("kai-operator: kopf is not installed: pip install 'kai-ledger[operator]'")

#: Seconds after which a watch is begun anew: by the server, which takes whole ones only, and where it is silent.
_WATCH_S, _SILENT_S = 300, 600.0

#: Seconds until watches are begun anew that have ended with an error.
_AGAIN_S = 5.0

#: What is watched besides operands: group, version, plural.
_OWNERS = (("kai.scheduler", "v1", "configs"), ("kai.scheduler", "v1", "schedulingshards"))


async def watch(context: ServiceContext, source: AccessSource, namespace: str, changed: Callable[[], None]) -> None:
    """Call `changed` whenever something has changed, until the service is to stop."""
    loop = asyncio.get_running_loop()

    def report_ready() -> None:
        loop.call_soon_threadsafe(changed)

    # What it says of signals is meant: they are the service's.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    while not context.stopping.is_set():
        stop = threading.Event()
        running = asyncio.ensure_future(asyncio.to_thread(_run, source, namespace, report_ready, stop))
        stopping = asyncio.ensure_future(context.stopping.wait())
        try:
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.set()
            stopping.cancel()
            await asyncio.wait([running])
        if (error := running.exception()) is not None:
            context.log.warning("the watches have ended", error=f"{type(error).__name__}: {error}")
            await context.sleep(_AGAIN_S)


def _run(source: AccessSource, namespace: str, changed: Callable[[], None], stop: threading.Event) -> None:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.watching.server_timeout = _WATCH_S
    settings.watching.inactivity_timeout = _SILENT_S
    asyncio.run(
        kopf.operator(
            registry=_registry(source, changed),
            settings=settings,
            namespaces=[namespace],
            standalone=True,
            stop_flag=stop,
        )
    )


def _registry(source: AccessSource, changed: Callable[[], None]) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()

    async def login(**_: Any) -> kopf.AiohttpSession:
        access = await source()
        connector = aiohttp.TCPConnector(ssl=access.tls if access.tls is not None else True)
        session = aiohttp.ClientSession(connector=connector, headers=await access.headers(), proxy=access.proxy or None)
        return kopf.AiohttpSession(server=access.base_url, aiohttp_session=session)

    async def noticed(**_: Any) -> None:
        changed()

    kopf.on.login(registry=registry)(login)
    operands = (
        (group.partition("/")[2].rpartition("/")[0], group.rpartition("/")[2], plural)
        for group, plural in OPERAND_KINDS.values()
    )
    for group, version, plural in (*_OWNERS, *operands):
        kopf.on.event(group=group, version=version, plural=plural, registry=registry)(noticed)
    return registry


class OperatorSettings(KubeSettings):
    """Settings of `kai-operator`."""

    namespace: str = Field("kai-system", description="where the exporter and the schedulers are")
    image: str = Field("", description="image of what it makes, where the Config names none; by default its own pod's")
    pod_name: str = Field("", description="the operator's own pod, to take its image; in a pod from metadata.name")
    templates_dir: Path | None = Field(
        None, description="directory with exporter.yaml and scheduler.yaml; by default those of deploy/k8s"
    )
    lease_ms: int = Field(
        15_000, ge=1000, description="how long a leader may be silent before another instance takes over"
    )
    resync_s: float = Field(60.0, gt=0, description="how often everything is looked at, when nothing has changed")


API = "api"

#: Seconds between two looks, however much changes.
_PAUSE_S = 0.2

#: Seconds until a look that failed is repeated: at first, and at most.
_RETRY_S, _RETRY_MOST_S = 0.5, 30.0


class Operator:
    """One operator, while it leads."""

    def __init__(self, context: ServiceContext, hands: Hands, given: Given, *, resync_s: float) -> None:
        """Args:
        resync_s: how often everything is looked at, when nothing has changed.
        """
        self._context = context
        self._hands = hands
        self._given = given
        self._resync_s = resync_s
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Take note that there is something to look at."""
        self._changed.set()

    async def run(self, watch: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Work until the service is to stop.

        Args:
            watch: calls what it is given whenever something has changed, and ends when the service is to stop.
        """
        async with beside(watch(self.changed)):
            await self._keep()

    async def _keep(self) -> None:
        failures = 0
        while not self._context.stopping.is_set():
            self._changed.clear()
            try:
                again = await self._look()
                failures = failures + 1 if again else 0
                self._context.health.met(API)
            except ClusterError as error:
                failures += 1
                self._context.health.unmet(API, str(error))
                self._context.log.warning("will be tried again", error=str(error))
            if failures:
                await self._context.sleep(backoff(failures, first=_RETRY_S, most=_RETRY_MOST_S))
            elif not await self._context.sleep(_PAUSE_S):
                await self._wait()

    async def _look(self) -> bool:
        """Look at everything once; return whether it is to be done again at once."""
        seen = await self._hands.read()
        again = False
        for part in plan(seen, self._given):
            again = await self._hands.carry_out(part, seen) or again
        return again

    async def _wait(self) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self._context.stopping)]
        await asyncio.wait(waits, timeout=self._resync_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def what_is_given(settings: OperatorSettings, client: KubeClient, context: ServiceContext) -> Given:
    """Read the templates, and which image the operator has itself. Raises ConfigurationError: there is no template."""
    image = settings.image
    if not image and settings.pod_name:
        path = f"/api/v1/namespaces/{settings.namespace}/pods/{settings.pod_name}"
        with suppress(ClusterError):
            image = msgspec.json.decode(await client.get(path))["spec"]["containers"][0]["image"]
        if not image:
            context.log.warning("the operator's own pod cannot be read: operands have the image of their templates")
    exporter, scheduler = (
        read_templates(_template(settings.templates_dir, name)) for name in ("exporter", "scheduler")
    )
    return Given(namespace=settings.namespace, image=image, exporter=exporter, scheduler=scheduler)


def _template(directory: Path | None, name: str) -> str:
    if directory is None:
        installed = resources.files("kai_operator") / "_templates"
        root = installed if installed.is_dir() else Path(__file__).parents[4] / "deploy" / "k8s"
    else:
        root = directory
    try:
        return (root / f"{name}.yaml").read_text("utf-8")
    except OSError as error:
        raise ConfigurationError(f"--templates-dir: {root / name}.yaml: {error.strerror}") from error


#: The entry as kai-ledger's leases write it.
_RECORD = "kai.scheduler/lease"

_CONFLICT, _NOT_FOUND = 409, 404


class KubeLeaseStore:
    """Leases in one namespace; see `kaicore.ledger.bus.leases.LeaseStore`. A prefix is a whole name here."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"

    async def read(self, cluster: str, prefix: str) -> list[Entry]:
        """See `LeaseStore.read`."""
        entry = await self._read(cluster, prefix)
        return [] if entry is None else [entry]

    async def write(self, cluster: str, name: str, value: bytes, *, expect: int) -> int | None:
        """See `LeaseStore.write`."""
        assert value
        if expect:
            return await self._replace(cluster, name, value, expect)
        document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            **self._document(value, {"name": _object_name(cluster, name)}),
        }
        try:
            return _revision(await self._client.post(self._path, document))
        except ApiStatus as error:
            if error.code != _CONFLICT:
                raise BusUnavailable(str(error)) from error
        except ClusterError as error:
            raise BusUnavailable(str(error)) from error
        entry = await self._read(cluster, name)
        if entry is None or entry.value:
            return None
        return await self._replace(cluster, name, value, entry.revision)

    async def delete(self, cluster: str, name: str, *, expect: int) -> bool:
        """See `LeaseStore.delete`: the object stays, and no instance holds it."""
        return await self._replace(cluster, name, b"", expect) is not None

    async def close(self) -> None:
        """See `LeaseStore.close`."""

    async def _read(self, cluster: str, name: str) -> Entry | None:
        try:
            body = await self._client.find(f"{self._path}/{_object_name(cluster, name)}")
        except ClusterError as error:
            raise BusUnavailable(str(error)) from error
        if body is None:
            return None
        metadata = msgspec.json.decode(body)["metadata"]
        value = (metadata.get("annotations") or {}).get(_RECORD, "")
        return Entry(name, value.encode(), int(metadata["resourceVersion"]))

    async def _replace(self, cluster: str, name: str, value: bytes, expect: int) -> int | None:
        path = f"{self._path}/{_object_name(cluster, name)}"
        try:
            return _revision(await self._client.patch(path, self._document(value, {"resourceVersion": str(expect)})))
        except ApiStatus as error:
            if error.code in (_CONFLICT, _NOT_FOUND):
                return None
            raise BusUnavailable(str(error)) from error
        except ClusterError as error:
            raise BusUnavailable(str(error)) from error

    def _document(self, value: bytes, metadata: dict[str, Any]) -> dict[str, Any]:
        record = decode_record(value)
        spec = {
            "holderIdentity": record.owner,
            "leaseDurationSeconds": max(1, round(record.duration_s)),
            "renewTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        return {"metadata": {**metadata, "annotations": {_RECORD: value.decode()}}, "spec": spec}


def _object_name(cluster: str, name: str) -> str:
    return f"{cluster}-{check_name(name).replace('/', '.')}"


def _revision(body: bytes) -> int:
    return int(msgspec.json.decode(body)["metadata"]["resourceVersion"])


#: The first part of the lease's name.
_ROLE = "kai"


async def serve(context: ServiceContext, settings: OperatorSettings) -> None:
    """Operate whenever this instance leads, until the process is to stop."""
    access = configured_access(settings.kubeconfig, context=settings.kube_context)
    async with KubeClient(access, user_agent=OPERATOR) as client:
        given = await what_is_given(settings, client, context)
        hands = Hands(client, settings.namespace, metrics=OperatorMetrics(), log=context.log)
        duration_s = settings.lease_ms / 1000
        store = KubeLeaseStore(client, settings.namespace)
        owner = f"{socket.gethostname()}-{uuid4().hex[:8]}"
        leadership = Leadership(
            context,
            Lease(store, _ROLE, "operator", owner=owner, duration_s=duration_s),
            duration_s=duration_s,
            notify=LEADS.labels(settings.namespace, "operator").set,
        )

        async def operate() -> None:
            operator = Operator(context, hands, given, resync_s=settings.resync_s)
            await operator.run(partial(watch, context, access, settings.namespace))

        await leadership.lead_in_turn(operate)


SERVICE = Service("operator", OperatorSettings, serve, conditions=(API,))
main = SERVICE.main

if __name__ == "__main__":
    main()
