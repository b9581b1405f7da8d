"""Another scheduler's bindings, one by one, compared with a shadow's decisions about the same pods at the same moment.

The log is folded again. Right before each binding, the kubelet's answer for the node that the other scheduler took is
predicted. The shadow's decision is read from its records, and the pod's outcome from the later log.
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.constraints.zone_filters import AdmissionFilter
from kaicore.rules.engine.cycle import run_cycle
from kaicore.rules.engine.session import Session
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload, ShadowDecided
from kaicore.rules.model.placement import Placement
from kaicore.rules.model.rejection import is_kubelet_rejection
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.cycle_input import cycle_input


class AfterBinding(StrEnum):
    """What became of a pod after its binding."""

    OPEN = "open"
    RAN = "ran"
    REJECTED = "rejected"


class ShadowAnswer(StrEnum):
    """What the shadow decided about a pod, against where the other scheduler put it."""

    SAME = "same node"
    OTHER = "other node"
    WAIT = "would wait"
    NONE = "not decided"


@dataclass(slots=True)
class ForeignBinding:
    """A pod that the other scheduler bound.

    Attributes:
        queue: of its group; `namespace/NAME` where that names none.
        node: where the other scheduler put it.
        admits: whether that node's kubelet was predicted to admit it.
        why: why not; empty where it was.
        zones: how many zones it was predicted to get there; 0 where nothing is aligned or it is not admitted.
        choice: what the shadow decided.
        chosen: the node that the shadow chose; empty for none.
        chosen_zones: as `zones`, there.
        reason: of the kubelet's rejection; empty without one.
    """

    uid: str
    namespace: str
    name: str
    queue: str
    node: str
    admits: bool
    why: str
    zones: int
    choice: ShadowAnswer
    chosen: str = ""
    chosen_zones: int = 0
    outcome: AfterBinding = AfterBinding.OPEN
    reason: str = ""


@dataclass(slots=True)
class _Choices:
    """What a shadow recorded about one pod, in order of the positions on which it was decided."""

    positions: list[int] = field(default_factory=list)
    places: list[tuple[str, Placement | None]] = field(default_factory=list)

    def enter(self, position: int, node: str, placement: Placement | None) -> None:
        self.positions.append(position)
        self.places.append((node, placement))

    def before(self, position: int) -> tuple[str, Placement | None]:
        """Return the last one that was decided on a state before an event; no node without any."""
        place = bisect_left(self.positions, position)
        return self.places[place - 1] if place else ("", None)


class ShadowComparison:
    """Takes a cluster's events in order.

    Attributes:
        bound: the pods that the other scheduler bound, by uid, in order of their binding.
    """

    def __init__(self, state: ClusterState, config: EngineConfig, records: Iterable[ShadowDecided]) -> None:
        """Args:
        state: as the comparison begins; folded on by the caller.
        config: of the shadow's cycles: its `scheduler_name` says whose pods.
        records: of the shadow, in order.
        """
        self.bound: dict[str, ForeignBinding] = {}
        self._state = state
        self._config = config
        self._choices: dict[str, _Choices] = {}
        for record in records:
            for placed in record.placed:
                self._enter(placed.uid, record, placed.node, placed.placement)
            for uid in (*record.left, *(nominated.uid for nominated in record.nominated)):
                self._enter(uid, record, "", None)

    def _enter(self, uid: str, record: ShadowDecided, node: str, placement: Placement | None) -> None:
        self._choices.setdefault(uid, _Choices()).enter(record.input_position, node, placement)

    def take(self, payload: Payload, *, position: int) -> None:
        """Take an event, before it is folded."""
        match payload:
            case payloads.PodObserved(pod) if pod.scheduler_name == self._config.scheduler_name:
                if pod.node_name and pod.uid in self._state.waiting:
                    self._judge(pod.uid, pod.node_name, position)
                bound = self.bound.get(pod.uid)
                if bound is not None and is_kubelet_rejection(pod):
                    bound.outcome, bound.reason = AfterBinding.REJECTED, pod.reason
                elif bound is not None and bound.outcome is AfterBinding.OPEN and pod.phase in ("Running", "Succeeded"):
                    bound.outcome = AfterBinding.RAN
            case payloads.PodRejected(uid=uid) if uid in self.bound:
                self.bound[uid].outcome, self.bound[uid].reason = AfterBinding.REJECTED, payload.reason
            case _:
                pass

    def _judge(self, uid: str, node: str, position: int) -> None:
        state, entry = self._state, self._state.pods[uid]
        queue, namespace = state.queue_of(entry)
        chosen, placement = self._choices.get(uid, _Choices()).before(position)
        if not chosen and uid not in self._choices and self._would_be_placed(uid):
            choice = ShadowAnswer.NONE
        else:
            choice = ShadowAnswer.WAIT if not chosen else ShadowAnswer.SAME if chosen == node else ShadowAnswer.OTHER
        bound = self.bound[uid] = ForeignBinding(
            uid=uid,
            namespace=entry.pod.namespace,
            name=entry.pod.name,
            queue=queue or f"namespace/{namespace}",
            node=node,
            admits=True,
            why="",
            zones=0,
            choice=choice,
            chosen=chosen,
            chosen_zones=zone_count(placement),
        )
        row = state.columns.rows.get(node)
        if row is None or state.columns.facts[row] is None:
            return
        session = Session(cycle_input(state, self._config, now=state.recorded_at), self._config)
        feasible = session.nodes.now.feasible_nodes(state.class_of(entry))
        for one in feasible.filters.in_order():
            if isinstance(one, AdmissionFilter) and one.failing(np.array([row]))[0]:
                bound.admits, bound.why = False, "; ".join(map(str, one.reasons(np.array([row]))))
        if bound.admits:
            assignment = session.nodes.now.place_on(entry, row)
            bound.zones = 0 if assignment is None else zone_count(assignment.placement)

    def _would_be_placed(self, uid: str) -> bool:
        """Tell whether a cycle places a pod of which nothing is recorded: then the shadow was away."""
        result = run_cycle(cycle_input(self._state, self._config, now=self._state.recorded_at), self._config)
        return any(placed.uid == uid for placed in result.placements)


def zone_count(placement: Placement | None) -> int:
    """Return over how many zones a placement spreads; 0 where it holds none."""
    if placement is None:
        return 0
    return len({zone for container in placement.containers for zone in container.mask})
