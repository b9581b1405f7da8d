"""Registration of nodes: Node objects, Leases, heartbeats, and the CRD that NRT needs."""

import random
from typing import Any

import msgspec
from kaicore.errors import ApiStatus, ConfigurationError
from kaicore.kube.api.client import MERGE_PATCH, KubeClient
from kaicore.kube.kinds.shipped_crds import shipped_crds
from kaicore.runtime.service import get_logger
from kaicore.yaml_text import load_yaml

from kai_fleet.node import objects as node_objects
from kai_fleet.node.nrt import PATH as NRT_PATH
from kai_fleet.node.objects import LEASE_NAMESPACE, MANAGED_BY
from kai_fleet.node.pod_conversion import NodeObject
from kai_fleet.node.runtime import NodeRuntime
from kai_fleet.writer import STRATEGIC_PATCH, Write

_NODES = "/api/v1/nodes"
_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_NAMESPACE}/leases"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_CRD_FILE = "noderesourcetopologies.yaml"
_REQUEST_GROUP, _REQUEST_CRD_FILE = "/apis/autoscaling.x-k8s.io", "provisioning/autoscaling.x-k8s.io.yaml"

_decode_node = msgspec.json.Decoder(NodeObject).decode


def _path(node: NodeRuntime) -> str:
    return f"{_NODES}/{node.spec.name}"


def register(node: NodeRuntime) -> None:
    """Create the Node, or adopt the one that is there; its Lease and its NodeResourceTopology follow."""
    now = node.timers.clock()
    node.ready_since = now

    def created(outcome: bytes | ApiStatus) -> None:
        if not isinstance(outcome, ApiStatus):
            _registered(node, outcome, existed=False)
        elif outcome.code == 409:
            claim(node)
        else:
            get_logger(node=node.spec.name).error("the node was not created", error=str(outcome))
            node.timers.at(node.timers.clock() + 10, lambda: register(node))

    body = node_objects.node_object(node.spec, node.agent.kubelet, now=now)
    node.background.submit(Write(f"node/{node.spec.name}", "node", "POST", _NODES, body, done=created))


def claim(node: NodeRuntime) -> None:
    """Adopt the Node that exists already, as soon as it is known, if it is of a fleet or of no other program.

    The node of a real kubelet stays as it is: its status is not ours to write.
    """
    api_node = node.api_node
    if node.registered or api_node is None:
        return
    if MANAGED_BY in (api_node.metadata.annotations or {}) or not api_node.status.node_info.kubelet_version:
        _adopt(node)
        return
    get_logger(node=node.spec.name).error("a node of this name exists and is not of a fleet: left alone")
    node.foreign = True
    node.check_joined()


def _adopt(node: NodeRuntime) -> None:
    """Write the kubelet's labels and status into the Node."""
    now = node.timers.clock()

    def marked(outcome: bytes | ApiStatus) -> None:
        if not isinstance(outcome, ApiStatus):
            _registered(node, outcome, existed=True)
        elif outcome.code == 404:
            register(node)
        else:
            get_logger(node=node.spec.name).error("the node was not adopted", error=str(outcome))
            node.timers.at(node.timers.clock() + 10, lambda: claim(node))

    key, path = f"node/{node.spec.name}", _path(node)
    marks = node_objects.node_marks(node.spec)
    node.background.submit(Write(key, "node", "PATCH", path, marks, STRATEGIC_PATCH, marked))
    status = node_objects.node_status(node.spec, node.agent.kubelet, now=now, since=node.ready_since)
    node.background.submit(Write(key, "node", "PATCH", f"{path}/status", status, STRATEGIC_PATCH))


def _registered(node: NodeRuntime, body: bytes, *, existed: bool) -> None:
    first = not node.registered
    node.uid = _decode_node(body).metadata.uid
    node.publisher.owner_uid = node.uid
    node.check_joined()
    if not first:
        return
    node.session += 1
    session = node.session
    node.publisher.start(exists=existed)
    now = node.timers.clock()
    timing = node.spec.group.timing
    # The fleet's nodes start together; their heartbeats must not stay together.
    spread = (node.spec.number * 0.618034) % 1
    renew_lease(node)
    node.timers.at(now + timing.lease_period * spread, lambda: _lease_loop(node, session))
    node.timers.at(now + timing.status_period * spread, lambda: _status_loop(node, session))


def deregistered(node: NodeRuntime) -> None:
    """The Node was deleted: a kubelet does not create it again before it is restarted."""
    node.uid = ""
    node.has_lease = False
    node.publisher.stop()


# --- heartbeats -----------------------------------------------------------------------------------------------------


def _lease_loop(node: NodeRuntime, session: int) -> None:
    if node.registered and node.session == session:
        renew_lease(node)
        node.timers.at(_next(node, node.spec.group.timing.lease_period), lambda: _lease_loop(node, session))


def _status_loop(node: NodeRuntime, session: int) -> None:
    if node.registered and node.session == session:
        report_status(node)
        node.timers.at(_next(node, node.spec.group.timing.status_period), lambda: _status_loop(node, session))


def _next(node: NodeRuntime, period: float) -> float:
    """The end of a period, give or take four per cent, as the kubelet's lease controller does it."""
    return node.timers.clock() + period * (0.96 + 0.08 * random.random())


def renew_lease(node: NodeRuntime) -> None:
    """Renew the node's Lease, or create it; not when the one before is still under way."""
    key = f"lease/{node.spec.name}"
    if node.down or node.silent or node.background.is_busy(key):
        return
    now = node.timers.clock()

    def done(outcome: bytes | ApiStatus) -> None:
        if not isinstance(outcome, ApiStatus) or outcome.code == 409:
            node.has_lease = True
        elif outcome.code == 404 and node.has_lease:
            node.has_lease = False
            renew_lease(node)
        else:
            get_logger(node=node.spec.name).warning("the lease was not renewed", error=str(outcome))

    if node.has_lease:
        body = node_objects.lease_renewal(now)
        write = Write(key, "lease", "PATCH", f"{_LEASES}/{node.spec.name}", body, MERGE_PATCH, done)
    else:
        body = node_objects.lease_object(node.spec, uid=node.uid, now=now)
        write = Write(key, "lease", "POST", _LEASES, body, done=done)
    node.background.submit(write)


def report_status(node: NodeRuntime, *, whole: bool = False) -> None:
    """Write the node's conditions, or its `whole` status where amounts changed."""
    key = f"node/{node.spec.name}"
    if node.down or node.silent or not node.registered or (node.background.is_busy(key) and not whole):
        return
    now = node.timers.clock()
    if whole:
        body = node_objects.node_status(node.spec, node.agent.kubelet, now=now, since=node.ready_since)
    else:
        body = node_objects.node_heartbeat(now=now, since=node.ready_since)
    node.background.submit(Write(key, "node", "PATCH", f"{_path(node)}/status", body, STRATEGIC_PATCH))


# --- what must be there before --------------------------------------------------------------------------------------


async def ensure_lease_namespace(client: KubeClient) -> None:
    """Create the namespace of Leases where an API server comes without it."""
    path = "/api/v1/namespaces"
    if await _is_missing(client, f"{path}/{LEASE_NAMESPACE}"):
        await _create(client, path, {"metadata": {"name": LEASE_NAMESPACE}})


async def ensure_crd(client: KubeClient, *, install: bool) -> None:
    """See to it that the API server knows NodeResourceTopology.

    Raises ConfigurationError: it does not, and `install` is False or it does not allow that.
    """
    if not await _is_missing(client, f"{NRT_PATH}?limit=1"):
        return
    if not install:
        raise ConfigurationError("the API server does not know NodeResourceTopology: install its CRD (--install-crds)")
    await _create(client, _CRDS, load_yaml(shipped_crds()[_CRD_FILE]))
    get_logger().info("installed the CRD of NodeResourceTopology")


async def ensure_requests(client: KubeClient, *, install: bool) -> None:
    """Install the CRD of ProvisioningRequests where the API server lacks it, if that is wanted."""
    if install and await _is_missing(client, _REQUEST_GROUP):
        await _create(client, _CRDS, load_yaml(shipped_crds()[_REQUEST_CRD_FILE]))


async def _is_missing(client: KubeClient, path: str) -> bool:
    """Return whether the API server says that nothing is there; not where it says anything else."""
    try:
        await client.get(path)
    except ApiStatus as error:
        return error.code == 404
    return False


async def _create(client: KubeClient, path: str, body: dict[str, Any]) -> None:
    try:
        await client.ensure(path, body)
    except ApiStatus as error:
        raise ConfigurationError(f"{path}: {error}") from error
