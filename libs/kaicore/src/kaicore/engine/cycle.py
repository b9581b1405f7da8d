"""One cycle: which waiting pods go where, and why the others do not.

Pure and deterministic: the same input, configuration and engine version give the same result on any machine. Ties go to
the first node by name; pods are taken by priority, then age, then name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec

from kaicore.engine.class_outlook import ClassOutlook
from kaicore.engine.config import EngineConfig
from kaicore.engine.node_columns import NodeColumns
from kaicore.engine.numa_verdicts import configure_kubelets
from kaicore.engine.pod_class import PodClass
from kaicore.engine.reasons import Code
from kaicore.engine.trail import Tenancy, Trail
from kaicore.events.payloads import ClassPending, Reason
from kaicore.model.placement import Placement
from kaicore.numa.columns import ZoneCharge


@dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits for a decision."""

    uid: str
    namespace: str
    name: str
    priority: int
    created_at: int
    pod_class: PodClass


@dataclass(frozen=True, slots=True)
class CycleInput:
    """What a cycle decides on.

    Attributes:
        columns: all nodes; the cycle copies what it changes.
        waiting: the pods to decide on, in any order.
        rejecting: by class key, the rows whose kubelet rejected such a pod and where nothing changed since, with the
            reason.
    """

    columns: NodeColumns
    waiting: Sequence[WaitingPod]
    rejecting: dict[str, dict[int, str]] = field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True):
    """A pod, the node it is to run on, and the zones it is predicted to get."""

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: in the order in which they were taken.
        pending: classes with pods left, by key.
    """

    decisions: tuple[Decision, ...]
    pending: tuple[ClassPending, ...]

    def digest(self) -> str:
        """Identify the result; equal results have equal digests on every machine."""
        return sha256(_encoder.encode((self.decisions, self.pending))).hexdigest()


_encoder = msgspec.json.Encoder(order="deterministic")


def run_cycle(given: CycleInput, config: EngineConfig) -> CycleResult:
    """Decide on the waiting pods.

    1. Take the pods in order: higher priority, then older, then by namespace, name and uid.
    2. Evaluate each pod's class on all nodes when its first pod comes up, and afterwards on the nodes charged since.
    3. Place the pod on the best node, predict its zones, and charge the node, so that no later pod sees them free.
    4. Once a class finds no node, its further pods find none either: a cycle only charges.
    5. Give each class with pods left its reasons, as they were when it found no node.
    """
    columns = given.columns.copy()
    configure_kubelets(columns, config)
    trail = Trail(columns)
    outlooks: dict[str, ClassOutlook] = {}
    unplaced: dict[str, int] = {}
    reasons: dict[str, tuple[Reason, ...]] = {}
    decisions: list[Decision] = []
    charged: list[int] = []
    for pod in sorted(given.waiting, key=_turn):
        key = pod.pod_class.key
        if key in reasons:
            unplaced[key] += 1
            continue
        held_back = _held_back(pod.pod_class)
        outlook = outlooks.get(key)
        if outlook is None and not held_back:
            outlook = ClassOutlook(pod.pod_class, columns, config, rejecting=given.rejecting.get(key, {}))
            outlooks[key] = outlook
        elif outlook is not None:
            outlook.refresh(charged[outlook.charges_seen :])
        row = None
        if outlook is not None:
            outlook.charges_seen = len(charged)
            row = outlook.best()
        if row is None:
            unplaced[key] = 1
            reasons[key] = held_back or (outlook.reasons() if outlook is not None else ())
            continue
        assert outlook is not None
        predicted = outlook.predict(row)
        charge = ZoneCharge() if predicted is None else predicted.charge
        trail.place(Tenancy(pod.uid, row, pod.pod_class.requests, charge))
        charged.append(row)
        decisions.append(
            Decision(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                node=columns.names[row],
                pod_class=key,
                placement=None if predicted is None else predicted.placement,
            )
        )
    pending = tuple(ClassPending(pod_class=key, pods=unplaced[key], reasons=reasons[key]) for key in sorted(reasons))
    return CycleResult(tuple(decisions), pending)


def _turn(pod: WaitingPod) -> tuple[int, int, str, str, str]:
    return -pod.priority, pod.created_at, pod.namespace, pod.name, pod.uid


def _held_back(pod_class: PodClass) -> tuple[Reason, ...]:
    if pod_class.gated:
        return (Reason(code=Code.SCHEDULING_GATED, detail=", ".join(pod_class.gated)),)
    if pod_class.unsupported:
        return (Reason(code=Code.UNSUPPORTED, detail=", ".join(pod_class.unsupported)),)
    return ()
