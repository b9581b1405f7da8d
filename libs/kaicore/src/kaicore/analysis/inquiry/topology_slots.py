"""The shape of the pod that slots are counted for, as people and manifests write it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from kaicore.errors import InvalidObject
from kaicore.rules.engine.constraints.node_matching import affine, selected, tolerates
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.model.pod import Amounts, Pod
from kaicore.rules.model.quantity import parse_amount
from kaicore.rules.numa.zone_arrays import Flags
from kaicore.rules.queues.resources import GPU
from kaicore.spelling import did_you_mean

#: How a question is called in errors.
_QUESTION = "question"

#: More nodes than a segment can have.
_MOST_NODES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Slot:
    """What one pod asks for.

    Attributes:
        requests: amounts; `gpu` for GPUs of all kinds.
        pod: whose selector, affinity and tolerations count; without one every node's taints are tolerated.
    """

    requests: Amounts
    pod: Pod | None = None

    def takes(self, columns: NodeColumns) -> Flags:
        """Return the rows that the pod may go to, whatever is free there."""
        if self.pod is None:
            return np.ones(len(columns.present), np.bool_)
        tolerations = self.pod.tolerations
        tolerated, _ = columns.taints_where(lambda taint: tolerates(tolerations, taint))
        return selected(columns, self.pod.node_selector) & affine(columns, self.pod.node_affinity) & tolerated


def read_slot(text: str, manifest: str, resources: Collection[str]) -> Slot | None:
    """Read what one pod asks for; None where nothing is said.

    Args:
        text: such as `gpu=8,cpu=16`.
        manifest: of a Pod, as JSON, instead.
        resources: resources that nodes have.

    Raises:
        InvalidObject: it is malformed, asks for nothing, or names a resource that no node has.
    """
    if text and manifest:
        raise InvalidObject(_QUESTION, "slots", text, "is said together with a pod")
    if manifest:
        return _of_pod(manifest)
    return Slot(_amounts(text, resources)) if text else None


def _of_pod(manifest: str) -> Slot:
    # Few questions bring a manifest, and reading one takes a third of what they import.
    from kaicore.kube import kinds  # noqa: PLC0415

    pod = kinds.POD.normalize(kinds.POD.decode(manifest.encode()), _refuse)
    assert isinstance(pod, Pod)
    return Slot(node_requests(pod), pod)


def _refuse(error: InvalidObject) -> None:
    raise error


def _amounts(text: str, resources: Collection[str]) -> Amounts:
    amounts: Amounts = {}
    for part in text.split(","):
        resource, equals, amount = (piece.strip() for piece in part.partition("="))
        if not resource or not equals:
            raise InvalidObject(_QUESTION, "slots", part, "is no RESOURCE=AMOUNT, such as gpu=8")
        if resource in amounts:
            raise InvalidObject(_QUESTION, "slots", text, f"says {resource} twice")
        if resource not in resources and resource != GPU:
            close = did_you_mean(resource, {*resources, GPU})
            raise InvalidObject(_QUESTION, "slots", resource, f"is a resource that no node has{close}")
        amounts[resource] = parse_amount(amount, resource=resource, subject=_QUESTION, field=f"slots.{resource}")
    if not any(amounts.values()):
        raise InvalidObject(_QUESTION, "slots", text, "asks for nothing")
    return amounts


def read_sizes(text: str) -> tuple[int, ...]:
    """Read sizes of segments, such as `4,18`, in order; none where nothing is said.

    Raises:
        InvalidObject: one is no number of 1 or more.
    """
    return tuple(sorted(set(_sizes(text.split(","))))) if text else ()


def _sizes(parts: Iterable[str]) -> Iterable[int]:
    for part in parts:
        digits = part.strip()
        if not (digits.isascii() and digits.isdigit() and 1 <= int(digits) <= _MOST_NODES):
            raise InvalidObject(_QUESTION, "segments", part, "is no number of nodes, 1 or more")
        yield int(digits)
