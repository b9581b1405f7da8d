"""`kai-operator`: one operator as a process."""

import socket
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
from kaicore.errors import ApiStatus, BusUnavailable, ClusterError
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.operands.names import OPERATOR
from kaicore.ledger.bus.leases import Entry, Lease, check_name, decode_record
from kaicore.runtime.service import Service, ServiceContext
from kaicore.runtime.service.leadership import LEADS, Leadership

from kai_operator.carrying_out import Hands, OperatorMetrics
from kai_operator.operator import API, Operator, OperatorSettings, watch, what_is_given

#: The entry as kai-ledger's leases write it.
_RECORD = "kai.scheduler/lease"

_CONFLICT, _NOT_FOUND = 409, 404


class KubeLeaseStore:
    """Leases in one namespace; see `kaicore.ledger.bus.leases.LeaseStore`. A prefix is a whole name here."""

    def __init__(
        self, client: KubeClient, namespace: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        """Args:
        client: of the API server; it is not closed.
        namespace: where the leases are.
        now: for `renewTime`, which only people read.
        """
        self._client = client
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._now = now

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
            body = await self._client.get(f"{self._path}/{_object_name(cluster, name)}")
        except ApiStatus as error:
            if error.code == _NOT_FOUND:
                return None
            raise BusUnavailable(str(error)) from error
        except ClusterError as error:
            raise BusUnavailable(str(error)) from error
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
            "renewTime": self._now().isoformat(timespec="microseconds").replace("+00:00", "Z"),
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
