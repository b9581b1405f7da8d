"""Bind one pod: one write, repeated until its outcome is known.

The API server may have taken a binding whose answer got lost. So whatever is not a plain answer is looked up before
anything is said about it, and a pod that is bound where it was decided is bound, whoever did it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from kaicore.errors import ApiStatus, ClusterUnavailable
from kaicore.k8s.client import KubeClient
from kaicore.model.placement import PREDICTED_ANNOTATION, encode_annotation

from kai_binder.work import Decision, binding_of

_NOT_FOUND, _CONFLICT = 404, 409


@dataclass(frozen=True, slots=True)
class Bound:
    """The pod is on the node that was decided."""

    attempts: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The pod is not, and this decision will not bring it there."""

    code: int
    reason: str
    message: str
    attempts: int
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to try.

    Attributes:
        first_s: pause after the first failure; doubles with each further one.
        longest_s: the longest pause.
        give_up_s: how long a server that does not take the binding is tried, before the zones are given free.
    """

    first_s: float = 0.2
    longest_s: float = 5.0
    give_up_s: float = 60.0


class _Metadata(msgspec.Struct):
    uid: str = ""


class _Spec(msgspec.Struct):
    node_name: str = msgspec.field(default="", name="nodeName")


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec


_pod_decoder = msgspec.json.Decoder(_Pod)


async def bind(
    client: KubeClient, decision: Decision, *, patience: Patience, retrying: Callable[[Exception], None]
) -> Bound | Refused:
    """Bind a pod.

    Args:
        client: of the API server.
        decision: what was decided.
        patience: how long to try.
        retrying: is told of every failure after which it is tried again.
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    path = f"/api/v1/namespaces/{decision.namespace}/pods/{decision.name}"
    annotations = {}
    if decision.placement is not None and (zones := decision.placement.zone_amounts()):
        annotations[PREDICTED_ANNOTATION] = encode_annotation(zones)
    binding = binding_of(decision, annotations)
    pause_s, attempts = patience.first_s, 0
    while True:
        attempts += 1
        try:
            try:
                await client.post(f"{path}/binding", binding)
                return Bound(attempts)
            except ApiStatus as error:
                return await _refusal(client, path, decision, error, attempts)
        except ClusterUnavailable as error:
            retrying(error)
            waiting_s = max(pause_s, float(error.retry_after_s or 0))
            if clock() - began > patience.give_up_s and (outcome := await _given_up(client, path, decision, attempts)):
                return outcome
            await asyncio.sleep(min(waiting_s, patience.longest_s))
            pause_s = min(2 * pause_s, patience.longest_s)


async def _refusal(
    client: KubeClient, path: str, decision: Decision, error: ApiStatus, attempts: int
) -> Bound | Refused:
    """Say what a refusal means; a conflict may mean that the pod is where it should be."""
    refused = Refused(error.code, error.reason, error.message, attempts, gone=error.code == _NOT_FOUND)
    if error.code != _CONFLICT:
        return refused
    return await _looked_up(client, path, decision, refused)


async def _given_up(client: KubeClient, path: str, decision: Decision, attempts: int) -> Bound | Refused | None:
    """Give up, if the server at least says that the pod is not bound; None while it says nothing."""
    refused = Refused(0, "Timeout", "the API server did not take the binding in time", attempts)
    try:
        return await _looked_up(client, path, decision, refused)
    except ClusterUnavailable:
        return None


async def _looked_up(client: KubeClient, path: str, decision: Decision, refused: Refused) -> Bound | Refused:
    try:
        pod = _pod_decoder.decode(await client.get(path))
    except ApiStatus as error:
        gone = error.code == _NOT_FOUND
        return Refused(error.code, error.reason, error.message, refused.attempts, gone=gone)
    if pod.metadata.uid != decision.uid:
        return Refused(_NOT_FOUND, "NotFound", "another pod has that name now", refused.attempts, gone=True)
    if pod.spec.node_name == decision.node:
        return Bound(refused.attempts)
    return refused
