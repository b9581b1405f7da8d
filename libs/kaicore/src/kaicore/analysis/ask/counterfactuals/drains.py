"""A drain of nodes before it is made: the groups that it touches, what each loses, where it goes on, and who waits."""

from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from kaicore.analysis.ask.counterfactuals.checking import fold_rehearsed
from kaicore.analysis.ask.counterfactuals.reservations import ReservationQuestion, planned_reservation, reservation_of
from kaicore.analysis.ask.counterfactuals.room_amendments import ends
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.deciding.reserved_nodes import to_drain
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import EvictionReason
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.victims.eviction_cost import gpu_seconds_lost
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.base import gpu_hours_text
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.pods.pod_entry import PodEntry, gpus_asked


class DrainedGroupRow(Answer, frozen=True, kw_only=True):
    """A group with pods that a drain evicts.

    Attributes:
        pods: that are evicted; of a gang, all of them.
        lost: of work since each pod's checkpoint, or since its start.
        goes_on: the nodes on which its successors would start at once, or why not, and when it leaves.
    """

    group: str
    queue: str
    pods: int
    gpus: str
    lost: str
    goes_on: str


class DrainPlan(Answer, frozen=True, kw_only=True):
    """A drain before it is made.

    Attributes:
        refusal: why it cannot be; empty if it can.
        waits_longer: groups that would start now, and would not beside those that are moved.
        manifest: the Reservation by which it is made; empty where it is refused.
    """

    cluster: str
    position: int
    recorded_at: str
    refusal: str
    nodes: list[str]
    groups: list[DrainedGroupRow]
    waits_longer: list[str]
    manifest: dict[str, object]


def planned_drain(state: ClusterState, asked: ReservationQuestion, policies: PolicyBook) -> DrainPlan:
    """Return what a drain would do if all of it were done at once. Raises InvalidObject: the question makes no sense.

    Args:
        asked: a reservation with `drain_by`, for maintenance.
    """
    plan = planned_reservation(state, asked)
    groups: list[DrainedGroupRow] = []
    waits: list[str] = []
    if not plan.refusal:
        reservation = reservation_of(plan.manifest)
        now = state.recorded_at
        rehearsal = _Rehearsal(state, policies)
        moved = rehearsal.drain(payloads.ReservationObserved(replace(reservation, start=now, drain_by=now)))
        by = time_text(reservation.drain_by)
        groups = [_row(state, key, *found, rehearsal, by=by) for key, found in sorted(moved.items())]
        waits = sorted(map(display_key, rehearsal.starts(state) - rehearsal.started))
    return DrainPlan(
        cluster=state.cluster,
        position=state.position,
        recorded_at=time_text(state.recorded_at),
        refusal=plan.refusal,
        nodes=plan.nodes,
        groups=groups,
        waits_longer=waits,
        manifest=plan.manifest,
    )


class _Rehearsal:
    """A copy of a state on which a drain is carried out at once.

    Attributes:
        nodes: by group, on which its successors start.
        started: groups that start once the successors are there.
    """

    def __init__(self, state: ClusterState, policies: PolicyBook) -> None:
        self._policies, self._now = policies, state.recorded_at
        self._config = replace(state.config(), actions=(Action.ALLOCATE,))
        self._copy = fork(state)
        self.nodes: dict[str, list[str]] = {}
        self.started: set[str] = set()

    def drain(self, fact: payloads.ReservationObserved) -> dict[str, tuple[list[PodEntry], bool]]:
        """Carry a drain out; return by group its pods that leave, and whether a disruption budget keeps them."""
        copy = self._copy
        fold_rehearsed(copy, [fact])
        touched = {entry.pod.uid: entry for entry, _ in to_drain(copy, self._config, now=self._now)}
        result = run_on(copy, self._config, now=self._now, policies=self._policies).result
        leaving = [one for one in result.evictions if one.reason == EvictionReason.DRAINED]
        entries = {one.uid: copy.pods[one.uid] for one in leaving}
        moved: dict[str, tuple[list[PodEntry], bool]] = {}
        for uid, entry in {**touched, **entries}.items():
            moved.setdefault(entry.group, ([], uid not in entries))[0].append(msgspec.structs.replace(entry))
        fold_rehearsed(copy, list(result.decisions))
        pods = [entry.pod for entry in entries.values()]
        fold_rehearsed(copy, ends(copy, pods))
        successors = [replace(pod, uid=f"{pod.uid}+", node_name="", phase="Pending") for pod in pods if pod.owner]
        fold_rehearsed(copy, [payloads.PodObserved(pod) for pod in successors])
        placed = run_on(copy, self._config, now=self._now, policies=self._policies).result.placements
        for one in (*result.placements, *placed):
            if one.uid.endswith("+"):
                self.nodes.setdefault(copy.pods[one.uid].group, []).append(one.node)
            else:
                self.started.add(copy.pods[one.uid].group)
        return moved

    def starts(self, state: ClusterState) -> set[str]:
        """Return the groups that would start now without the drain."""
        placed = run_on(fork(state), self._config, now=self._now, policies=self._policies).result.placements
        return {state.pods[one.uid].group for one in placed}


def _row(
    state: ClusterState, key: str, entries: Collection[PodEntry], kept: bool, rehearsal: _Rehearsal, *, by: str
) -> DrainedGroupRow:
    lost = sum(gpu_seconds_lost(entry, entry.requests, now=state.recorded_at) for entry in entries)
    nodes = sorted(rehearsal.nodes.get(key, ()))
    first = next(iter(entries))
    if kept:
        goes_on = "stays: a disruption budget keeps it"
    elif first.pod.owner is None:
        goes_on = f"ends at {by}: no controller makes it anew"
    elif len(nodes) < len(entries):
        room = f"room for {len(nodes)} of {len(entries)} pods" if nodes else "no room now"
        goes_on = f"{room}: leaves once there is, or at {by}"
    else:
        goes_on = f"at once: {', '.join(sorted(set(nodes)))}"
    return DrainedGroupRow(
        group=display_key(key),
        queue=state.queue_of(first)[0],
        pods=len(entries),
        gpus=gpus_text(sum(map(gpus_asked, entries))),
        lost=gpu_hours_text(lost),
        goes_on=goes_on,
    )
