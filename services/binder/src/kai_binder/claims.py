"""Claims of a pod that are to be provisioned where it goes: told so, and waited for, before the pod is bound.

A claim of a storage class with `WaitForFirstConsumer` is provisioned for the node that its annotation
`volume.kubernetes.io/selected-node` names. A provisioner that cannot do so there takes the annotation off again; then
the pod is given back and may go elsewhere. A pod that was bound before its volume is there could not.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kaicore.errors import ApiStatus, ClusterUnavailable, InvalidObject
from kaicore.events.payloads import BindFailed
from kaicore.k8s.client import KubeClient
from kaicore.k8s.normalize_storage import SELECTED_NODE_ANNOTATION, normalize_claim
from kaicore.k8s.resources import CLAIMS
from kaicore.model.volume import PersistentVolumeClaim

from kai_binder.projection import Decision

#: Seconds between two looks at a claim: at first, and at most; doubled each time.
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 2.0

_CONFLICT = 409


class Next(StrEnum):
    """What to do about a claim."""

    SELECT = "select"
    WAIT = "wait"
    DONE = "done"
    GIVE_UP = "give up"


def what_next(claim: PersistentVolumeClaim, *, node: str, selected: bool) -> Next:
    """Tell what to do about a claim that is to be provisioned for a node.

    Args:
        claim: as it is now.
        node: for which node.
        selected: whether we have told it so before.
    """
    if claim.bound:
        return Next.DONE
    if claim.selected_node == node:
        return Next.WAIT
    return Next.GIVE_UP if claim.selected_node or selected else Next.SELECT


@dataclass(frozen=True, slots=True)
class _Refused(Exception):
    reason: str
    message: str
    code: int = 0


class Claims:
    """Prepares the claims of decisions."""

    def __init__(self, client: KubeClient, *, patience_s: float, is_open: Callable[[Decision], bool]) -> None:
        """Args:
        client: to write with.
        patience_s: how long provisioning may take.
        is_open: whether there is still anything to do about a decision.
        """
        self._client = client
        self._patience_s = patience_s
        self._is_open = is_open

    async def prepare(self, decision: Decision) -> BindFailed | None:
        """Have a decision's claims provisioned; None when they are, or when nothing is left to do about it."""
        try:
            async with asyncio.timeout(self._patience_s):
                for name in decision.claims:
                    await self._provision(decision, name)
        except TimeoutError:
            refused = _Refused("VolumeNotBound", f"volumes were not bound within {self._patience_s:g} s")
        except _Refused as refusal:
            refused = refusal
        else:
            return None
        return BindFailed(
            uid=decision.uid,
            namespace=decision.namespace,
            name=decision.name,
            node=decision.node,
            code=refused.code,
            reason=refused.reason,
            message=refused.message,
            attempts=0,
        )

    async def _provision(self, decision: Decision, name: str) -> None:
        path = f"/api/v1/namespaces/{decision.namespace}/persistentvolumeclaims/{name}"
        selected, delay_s = False, FIRST_LOOK_S
        while self._is_open(decision):
            try:
                claim = normalize_claim(CLAIMS.decode(await self._client.get(path)))
                match what_next(claim, node=decision.node, selected=selected):
                    case Next.DONE:
                        return
                    case Next.GIVE_UP:
                        raise _Refused("VolumeNotProvisioned", f"claim {name} is not provisioned for {decision.node}")
                    case Next.SELECT:
                        await self._client.patch(path, _selection(claim, decision.node))
                        selected = True
                        continue
                    case Next.WAIT:
                        selected = True
            except InvalidObject as error:
                raise _Refused("InvalidClaim", str(error)) from error
            except ApiStatus as error:
                if error.code != _CONFLICT:
                    raise _Refused(error.reason or "Unknown", f"claim {name}: {error.message}", error.code) from error
            except ClusterUnavailable:
                # As good as not looked: once more, until patience ends.
                pass
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, LAST_LOOK_S)


def _selection(claim: PersistentVolumeClaim, node: str) -> dict[str, Any]:
    """Return the patch that names a node, of this version of the claim only: nobody else's choice is overwritten."""
    return {
        "metadata": {
            "uid": claim.uid,
            "resourceVersion": claim.resource_version,
            "annotations": {SELECTED_NODE_ANNOTATION: node},
        }
    }
