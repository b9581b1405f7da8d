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
from kaicore.engine.numa_verdicts import RowKinds, configure_kubelets
from kaicore.engine.pod_class import PodClass
from kaicore.engine.reasons import Code
from kaicore.engine.trail import Tenancy, Trail
from kaicore.events.payloads import ClassPending, Reason
from kaicore.model.placement import Placement
from kaicore.numa.columns import ZoneCharge
from kaicore.numa.prediction import PredictedPlacement


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
class StrayPod:
    """A pod that runs on other zones than its own NUMA policy asks for, and is due to be placed anew.

    Attributes:
        node: where it runs.
        missed: what is not as it asks.
        owner: uid of its controller.
    """

    uid: str
    namespace: str
    name: str
    node: str
    missed: str
    owner: str
    pod_class: PodClass


@dataclass(frozen=True, slots=True)
class CycleInput:
    """What a cycle decides on.

    Attributes:
        columns: all nodes; the cycle copies what it changes.
        waiting: the pods to decide on, in any order.
        rejecting: by class key, the rows whose kubelet rejected such a pod and where nothing changed since, with the
            reason.
        avoid: by class key, the rows from which pods of the class were taken because their zones were not right.
        stray: pods that are to be placed anew, in order.
    """

    columns: NodeColumns
    waiting: Sequence[WaitingPod]
    rejecting: dict[str, dict[int, str]] = field(default_factory=dict)
    avoid: dict[str, set[int]] = field(default_factory=dict)
    stray: Sequence[StrayPod] = ()


class Decision(msgspec.Struct, frozen=True):
    """A pod, the node it is to run on, and the zones it is predicted to get."""

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    placement: Placement | None


class Healing(msgspec.Struct, frozen=True):
    """A pod that is to be evicted, so that its successor gets the zones that it asks for."""

    uid: str
    namespace: str
    name: str
    node: str
    pod_class: str
    owner: str
    missed: str


@dataclass(frozen=True, slots=True)
class CycleResult:
    """What a cycle decided.

    Attributes:
        decisions: in the order in which they were taken.
        pending: classes with pods left, by key.
        healings: evictions, in the order in which they were decided.
    """

    decisions: tuple[Decision, ...]
    pending: tuple[ClassPending, ...]
    healings: tuple[Healing, ...] = ()

    def digest(self) -> str:
        """Identify the result; equal results have equal digests on every machine."""
        parts = (self.decisions, self.pending, self.healings)
        return sha256(_encoder.encode(parts if self.healings else parts[:2])).hexdigest()


_encoder = msgspec.json.Encoder(order="deterministic")


def run_cycle(given: CycleInput, config: EngineConfig) -> CycleResult:
    """Decide on the waiting pods, then on those that run on zones which they did not ask for.

    1. Take the pods in order: higher priority, then older, then by namespace, name and uid.
    2. Evaluate each pod's class on all nodes when its first pod comes up, and afterwards on the nodes charged since.
    3. Place the pod on the best node, predict its zones, and charge the node, so that no later pod sees them free.
    4. Once a class finds no node, its further pods find none either, for a cycle only charges; but for classes with
       rules about other pods, which are asked again after each charge.
    5. Give each class with pods left its reasons, as they were when it found no node.
    6. Have a stray pod evicted if another node is left for its successor, which is charged as in 3; one pod of an
       owner and class per cycle.
    """
    cycle = _Cycle(given, config)
    for pod in sorted(given.waiting, key=_turn):
        cycle.place(pod)
    for stray in given.stray:
        cycle.heal(stray)
    pending = tuple(
        ClassPending(pod_class=key, pods=cycle.unplaced[key], reasons=cycle.reasons[key])
        for key in sorted(cycle.reasons)
    )
    return CycleResult(tuple(cycle.decisions), pending, tuple(cycle.healings))


class _Cycle:
    """What a cycle has decided so far, and the columns charged with it."""

    def __init__(self, given: CycleInput, config: EngineConfig) -> None:
        self._given = given
        self._config = config
        self._columns = given.columns.copy()
        configure_kubelets(self._columns, config)
        self._trail = Trail(self._columns)
        self._kinds = RowKinds(self._columns)
        self._outlooks: dict[str, ClassOutlook] = {}
        self._charged: list[int] = []
        self.unplaced: dict[str, int] = {}
        self.reasons: dict[str, tuple[Reason, ...]] = {}
        self.decisions: list[Decision] = []
        self.healings: list[Healing] = []

    def place(self, pod: WaitingPod) -> None:
        key = pod.pod_class.key
        known = self._outlooks.get(key)
        if key in self.reasons and not (known is not None and known.may_change and self._charged_since(known)):
            self.unplaced[key] += 1
            return
        if held_back := _held_back(pod.pod_class):
            self.unplaced[key], self.reasons[key] = 1, held_back
            return
        outlook = self._outlook(pod.pod_class)
        row = outlook.best()
        if row is None:
            self.unplaced[key] = self.unplaced.get(key, 0) + 1
            if key not in self.reasons:
                self.reasons[key] = outlook.reasons()
            return
        predicted = self._charge(outlook, row, pod.uid, pod_class=pod.pod_class)
        self.decisions.append(
            Decision(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                node=self._columns.names[row],
                pod_class=key,
                placement=None if predicted is None else predicted.placement,
            )
        )

    def heal(self, pod: StrayPod) -> None:
        key = pod.pod_class.key
        # Where alike pods wait, a successor would only wait with them.
        if key in self.reasons or any(item.owner == pod.owner and item.pod_class == key for item in self.healings):
            return
        outlook = self._outlook(pod.pod_class)
        row = outlook.best(besides=self._columns.rows[pod.node])
        if row is None:
            return
        self._charge(outlook, row, f"successor of {pod.uid}", pod_class=pod.pod_class)
        self.healings.append(
            Healing(
                uid=pod.uid,
                namespace=pod.namespace,
                name=pod.name,
                node=pod.node,
                pod_class=key,
                owner=pod.owner,
                missed=pod.missed,
            )
        )

    def _charged_since(self, outlook: ClassOutlook) -> bool:
        return outlook.charges_seen < len(self._charged)

    def _outlook(self, pod_class: PodClass) -> ClassOutlook:
        """Return what is known of a class, up to date with what was charged."""
        key, given = pod_class.key, self._given
        outlook = self._outlooks.get(key)
        if outlook is None:
            outlook = self._outlooks[key] = ClassOutlook(
                pod_class,
                self._columns,
                self._config,
                kinds=self._kinds,
                rejecting=given.rejecting.get(key, {}),
                avoid=given.avoid.get(key, ()),
            )
        else:
            outlook.refresh(self._charged[outlook.charges_seen :])
        outlook.charges_seen = len(self._charged)
        return outlook

    def _charge(self, outlook: ClassOutlook, row: int, uid: str, *, pod_class: PodClass) -> PredictedPlacement | None:
        predicted = outlook.predict(row)
        charge = ZoneCharge() if predicted is None else predicted.charge
        self._trail.place(Tenancy(uid, row, pod_class.requests, charge, marks=pod_class.marks))
        self._charged.append(row)
        self._kinds.charged(row)
        return predicted


def _turn(pod: WaitingPod) -> tuple[int, int, str, str, str]:
    return -pod.priority, pod.created_at, pod.namespace, pod.name, pod.uid


def _held_back(pod_class: PodClass) -> tuple[Reason, ...]:
    if pod_class.gated:
        return (Reason(code=Code.SCHEDULING_GATED, detail=", ".join(pod_class.gated)),)
    if pod_class.malformed:
        return (Reason(code=Code.MALFORMED, detail=pod_class.malformed),)
    if pod_class.unsupported:
        return (Reason(code=Code.UNSUPPORTED, detail=", ".join(pod_class.unsupported)),)
    if pod_class.volumes.waits:
        return (Reason(code=Code.VOLUME_NOT_READY, detail=", ".join(pod_class.volumes.waits)),)
    return ()
