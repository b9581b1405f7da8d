"""A drain of nodes before it is made: the groups that it touches, what each loses, where it goes on, and who waits."""

from collections.abc import Collection, Iterable

import msgspec
from msgspec.structs import replace

from kaicore.analysis.ask.counterfactuals.checking import fold_rehearsed
from kaicore.analysis.ask.counterfactuals.reservations import (
    ReservationQuestion,
    end_by_limit,
    planned_reservation,
    reservation_of,
)
from kaicore.analysis.ask.counterfactuals.room_amendments import ends
from kaicore.analysis.json_spelling import Answer, AsOf, time_text
from kaicore.rules.deciding.cycle_run import run_on
from kaicore.rules.deciding.reserved_nodes import to_drain
from kaicore.rules.deciding.run_length import limits_of
from kaicore.rules.engine.config import Action
from kaicore.rules.engine.decisions import CycleResult, EvictionReason
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.victims.eviction_cost import gpu_seconds_lost
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons.base import gpu_hours_text
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.fork import fork
from kaicore.rules.state.pods.pod_entry import PodEntry, gpus_asked

#: After so many ends of other work a plan looks at the drain's own end alone.
_MOST_ENDS = 16


class DrainedGroupRow(Answer, frozen=True, kw_only=True):
    """A group with pods that a drain evicts.

    Attributes:
        pods: that are evicted; of a gang, all of them.
        lost: of work since each pod's checkpoint, or since its start.
        goes_on: the nodes on which its successors would start at once, or why not, and when it leaves and goes on.
    """

    group: str
    queue: str
    pods: int
    gpus: str
    lost: str
    goes_on: str


class DrainPlan(AsOf, frozen=True, kw_only=True):
    """A drain before it is made.

    Attributes:
        refusal: why it cannot be; empty if it can.
        waits_longer: groups that would start earlier without it, as far as limits say when running work ends.
        manifest: the Reservation by which it is made; empty where it is refused.
    """

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
        # A log may have been silent for long.
        now = max(state.recorded_at, reservation.start)
        rehearsal = _Rehearsal(state, policies, now=now)
        moved = rehearsal.drain(replace(reservation, start=now, drain_by=now))
        by = time_text(reservation.drain_by)
        groups = [_row(state, key, *found, rehearsal, by=by) for key, found in sorted(moved.items())]
        waits = sorted(map(display_key, rehearsal.waits_longer(state, reservation.end)))
    return DrainPlan.copied(plan, groups=groups, waits_longer=waits)


class _Rehearsal:
    """A copy of a state on which a drain is carried out at once.

    Attributes:
        starts: by uid of a waiting pod, when it starts, and on which node; of a successor, with `+` after the uid.
    """

    def __init__(self, state: ClusterState, policies: PolicyBook, *, now: int) -> None:
        self._policies, self.now = policies, now
        self._config = replace(state.config(), actions=(Action.ALLOCATE,))
        self._copy = fork(state)
        self.starts: dict[str, tuple[int, str]] = {}

    def drain(self, planned: NodeReservation) -> dict[str, tuple[list[PodEntry], bool]]:
        """Carry a drain out; return by group its pods that leave, and whether a disruption budget keeps them."""
        copy = self._copy
        fold_rehearsed(copy, [payloads.ReservationObserved(planned)])
        drained = to_drain(copy, self._config, now=self.now)
        touched = {entry.pod.uid: entry for entry, _ in drained if entry.node in planned.nodes}
        groups = {entry.group for entry in touched.values()}
        result = self._cycle(copy, now=self.now)
        leaving = [copy.pods[one.uid] for one in result.evictions if one.reason == EvictionReason.DRAINED]
        # Other drains go on beside it.
        entries = {entry.pod.uid: entry for entry in leaving if entry.group in groups}
        moved: dict[str, tuple[list[PodEntry], bool]] = {}
        for uid, entry in {**touched, **entries}.items():
            moved.setdefault(entry.group, ([], uid not in entries))[0].append(msgspec.structs.replace(entry))
        fold_rehearsed(copy, list(result.decisions))
        pods = [entry.pod for entry in entries.values()]
        fold_rehearsed(copy, ends(copy, pods))
        successors = [replace(pod, uid=f"{pod.uid}+", node_name="", phase="Pending") for pod in pods if pod.owner]
        fold_rehearsed(copy, [payloads.PodObserved(pod) for pod in successors])
        self.starts = {one.uid: (self.now, one.node) for one in result.placements} | self._go_on(copy, planned.end)
        return moved

    def waits_longer(self, state: ClusterState, end: int) -> set[str]:
        """Return the groups with pods that would start earlier without the drain."""
        without = self._go_on(fork(state), end)
        later = (uid for uid, (at, _) in without.items() if uid not in self.starts or self.starts[uid][0] > at)
        return {state.pods[uid].group for uid in later}

    def _go_on(self, copy: ClusterState, end: int) -> dict[str, tuple[int, str]]:
        """Let pods and windows end, and return when waiting pods start, and where; at last, the drain ends."""
        limit_of, starts = limits_of(copy), dict[str, tuple[int, str]]()
        times: dict[int, list[Pod]] = {self.now: [], end: []}
        windows = (one.window(self.now) for one in copy.reservations.values())
        times |= {window.end: [] for window in windows if window is not None}
        for entry in copy.pods.values():
            if entry.charged and (at := end_by_limit(entry, limit_of(entry))) >= 0:
                times.setdefault(max(at, self.now), []).append(entry.pod)
        for at in [*sorted(time for time in times if time < end)[:_MOST_ENDS], end]:
            fold_rehearsed(copy, ends(copy, times[at]))
            result = self._cycle(copy, now=at)
            fold_rehearsed(copy, list(result.decisions))
            starts |= {one.uid: (at, one.node) for one in result.placements}
            if not copy.waiting:
                break
        return starts

    def _cycle(self, state: ClusterState, *, now: int) -> CycleResult:
        return run_on(state, self._config, now=now, policies=self._policies).result


def _row(
    state: ClusterState, key: str, entries: Collection[PodEntry], kept: bool, rehearsal: _Rehearsal, *, by: str
) -> DrainedGroupRow:
    lost = sum(gpu_seconds_lost(entry, entry.requests, now=rehearsal.now) for entry in entries)
    starts = [rehearsal.starts[uid] for one in entries if (uid := f"{one.pod.uid}+") in rehearsal.starts]
    nodes = [node for at, node in starts if at <= rehearsal.now]
    first = next(iter(entries))
    if kept:
        goes_on = "stays: a disruption budget keeps it"
    elif first.pod.owner is None:
        goes_on = f"ends at {by}: no controller makes it anew"
    elif len(nodes) < len(entries):
        room = f"room for {len(nodes)} of {len(entries)} pods" if nodes else "no room now"
        then = "no limit says when it goes on"
        if len(starts) >= len(entries):
            then = f"goes on by {time_text(max(starts)[0])} on {_listed(node for _, node in starts)}"
        goes_on = f"{room}: leaves once there is, or at {by}; {then}"
    else:
        goes_on = f"at once: {_listed(nodes)}"
    return DrainedGroupRow(
        group=display_key(key),
        queue=state.queue_registry.tree.name_for(*state.queue_of(first)),
        pods=len(entries),
        gpus=gpus_text(sum(map(gpus_asked, entries))),
        lost=gpu_hours_text(lost),
        goes_on=goes_on,
    )


def _listed(nodes: Iterable[str]) -> str:
    return ", ".join(sorted(set(nodes)))
