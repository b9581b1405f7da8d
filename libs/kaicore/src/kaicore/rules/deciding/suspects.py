"""Suspect nodes: which nodes fail what is put on them, so that a cycle keeps such work off.

A node that kills pods at once is always empty, so each cycle would fill it again (a *black hole*). The trials of nodes
(`kaicore.rules.state.indexes.node_trials`) tell these nodes from work that fails by itself:

1. Failures count that are in a row: of the last hour, with no pod of that kind of work since that lasted on the node.
2. A failure follows the work if the work has failed on two other nodes as well, or on one where other work lasts, and
   has lasted nowhere since it failed on any of them. It counts for no node.
3. A node is suspect for a kind of work after `suspect_after` failures: each of a work that ran elsewhere, or of another
   work. After so many of fewer works, which were tried nowhere else, it is suspect for these works alone: their next
   pods, elsewhere, tell which it was. One failure is enough on a node that reports a problem of itself, and for work
   with devices on one with a device of its own that a taint calls failed.
4. No more than `suspect_per_cent` of the nodes are suspect for a whole kind of work. Of one or two nodes none is, since
   nothing tells the node from the work there.
5. A suspect node gets one pod of the kind as a probe, once that is due. If none came for as long again it gets what
   starts there first, also all pods of one gang: a gang is lost by its first pod, so the others there cost no more.
   A probe that lasts clears the node; each that fails doubles the time to the next. Failures that turn out to follow
   the work clear it at once, and so does whoever ends its cordon, or what ends the problem that it reports.
   The end of a device's taint does not: drivers that start anew end it, too.

The pods that were on the node already when the first died are beyond this rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass, WorkKind
from kaicore.rules.events.payloads import NodeCleared, NodeSuspected
from kaicore.rules.events.reasons.base import plural, time_text
from kaicore.rules.model.gpu_share import GPU
from kaicore.rules.model.node import Node
from kaicore.rules.model.quantity import PODS
from kaicore.rules.state.indexes.node_trials import QUICK_US, FailedTrial, SuspectNode, kind_of
from kaicore.rules.state.indexes.past_runs import work_of
from kaicore.rules.state.pods.pod_entry import PodEntry
from kaicore.rules.state.views import ClusterView, FleetView

#: Failures that are older say nothing about a node as it is now, microseconds.
_WINDOW_US = 3_600_000_000
#: On so many other nodes a work must have failed to be what is wrong.
_OTHER_NODES = 2
#: Of fewer nodes, none is suspect.
_LEAST_NODES = 3


@dataclass(frozen=True, slots=True)
class Suspects:
    """The suspect nodes of a cycle.

    Attributes:
        standing: those that are suspect.
        news: what is to be recorded of them.
        probed: keys of those that may get a probe now; of `gang_probed` also a gang.
    """

    standing: Sequence[SuspectNode] = ()
    news: Sequence[NodeSuspected | NodeCleared] = ()
    probed: frozenset[str] = frozenset()
    gang_probed: frozenset[str] = frozenset()


NO_SUSPECTS = Suspects()


def suspects(state: ClusterView, config: EngineConfig, *, now: int, cycle: str = "") -> Suspects:
    """Return the nodes that are suspect now.

    Args:
        now: the cycle's clock, microseconds since the epoch.
        cycle: its id.
    """
    trials = state.node_trials
    if not config.suspect_after or not (trials.failures or trials.suspects):
        return NO_SUSPECTS
    return _Judge(state, config, now=now, cycle=cycle).suspects()


def probes_last_at(state: ClusterView) -> list[int]:
    """Return when each probe will have lasted, so that a cycle clears its node; microseconds since the epoch.

    The time is in the past where a probe has lasted or not begun: what happens next tells.
    """
    times = []
    for one in state.node_trials.suspects.values():
        times += [entry.started_at and entry.started_at + QUICK_US for entry in _probes(state, one)]
        times += [one.probe_at] if one.proven else []
    return times


def _probes(state: FleetView, suspect: SuspectNode) -> Iterable[PodEntry]:
    """Return the pods of a suspect node that came after it was found."""
    held = state.charges.held_on(suspect.suspected.node)
    return (entry for entry in held if kind_of(entry) == suspect.suspected.kind and suspect.tries(entry))


def probe_text(state: FleetView, entry: PodEntry) -> str:
    """Say of which suspect node a pod is the probe; empty where it is none."""
    for one in state.node_trials.of_node(entry.node):
        if entry in _probes(state, one):
            found = one.suspected
            return f"probe of node {found.node}, suspect since {time_text(one.since)}, event {one.position}"
    return ""


def suspect_texts(state: FleetView, node: str) -> list[str]:
    """Say for which work a node is suspect, why, and what becomes of its probe."""
    texts = []
    for one in state.node_trials.of_node(node):
        probe = "its probe succeeded" if one.proven else "a probe is on it" if any(_probes(state, one)) else ""
        texts.append(suspect_text(one, probe=probe))
    return texts


def suspect_text(suspect: SuspectNode, *, probe: str = "") -> str:
    """Say why a node is suspect, and until when; `probe` where that is known better."""
    found = suspect.suspected
    work = ", ".join(found.works) or ("devices" if found.kind == WorkKind.DEVICES else "work without devices")
    failed = f"{plural(len(suspect.failures), 'pod')} in a row failed within a minute"
    elsewhere = f", {found.ran_elsewhere} of work that ran elsewhere" if found.ran_elsewhere else ""
    events = ", ".join(str(one.position) for one in suspect.failures)
    problems = f"; it reports {', '.join(found.problems)}" if found.problems else ""
    of_gang = time_text(suspect.gang_probe_at)
    probe = probe or f"next probe from {time_text(suspect.probe_at)} on, by a gang from {of_gang} on"
    return f"for {work} since {time_text(suspect.since)}: {failed}{elsewhere} (events {events}){problems}; {probe}"


@dataclass(slots=True)
class SuspectRows:
    """The rows of suspect nodes, collected as a cycle looks at its waiting pods.

    Attributes:
        by_key: by kind of work and by key of a class, the rows, and why (`ExcludedNodes.suspects`).
        probes: rows where one pod is let in as a probe.
        starts: rows where one start of a kind of work is, with all its pods, and the kinds (`CycleInput.probed`).
    """

    state: ClusterView
    found: Suspects
    by_key: dict[str, dict[int, str]] = field(default_factory=dict)
    probes: set[int] = field(default_factory=set)
    starts: dict[int, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for suspect in self.found.standing:
            if suspect.key in self.found.gang_probed:
                row = self.state.columns.row(suspect.suspected.node)
                self.starts.setdefault(row, set()).add(suspect.suspected.kind)
            if not suspect.suspected.works and suspect.key not in self.found.probed:
                self._close(suspect.suspected.kind, suspect)

    def waits(self, entry: PodEntry, pod_class: PodClass) -> None:
        """Take in a pod that waits, and the class as which it is decided on."""
        for suspect in self.found.standing:
            works = suspect.suspected.works
            if suspect.suspected.kind != pod_class.kind or (works and work_of(entry.pod) not in works):
                continue
            workload = self.state.workload_index.workloads.get(entry.group)
            gang = workload is not None and workload.is_gang
            if suspect.key in self.found.gang_probed:
                continue
            if suspect.key in self.found.probed and not gang:
                self.probes.add(self.state.columns.row(suspect.suspected.node))
            elif works or suspect.key in self.found.probed:
                self._close(pod_class.key, suspect)

    def columns(self) -> NodeColumns:
        """Return the nodes, with room for one more pod at most where a probe is let in, or for those promised it."""
        columns, most = self.state.columns, dict.fromkeys(self.probes, 1)
        for uid in self.state.nominated if self.starts else ():
            nomination = self.state.pods[uid].nomination
            row = -1 if nomination is None else columns.row(nomination.node)
            if row in self.starts:
                most[row] = most.get(row, 0) + 1
        if not most:
            return columns
        columns, pods = columns.copy(), columns.resources[PODS]
        columns.allocatable = columns.allocatable.copy()
        for row, more in most.items():
            columns.allocatable[row, pods] = min(columns.allocatable[row, pods], columns.used[row, pods] + more)
        return columns

    def _close(self, key: str, suspect: SuspectNode) -> None:
        row = self.state.columns.row(suspect.suspected.node)
        self.by_key.setdefault(key, {})[row] = suspect_text(suspect)


class _Judge:
    """Works out which nodes are suspect, on a state that stays as it is."""

    def __init__(self, state: ClusterView, config: EngineConfig, *, now: int, cycle: str) -> None:
        self._state, self._config, self._now, self._cycle = state, config, now, cycle
        self._trials = state.node_trials
        self._news: list[NodeSuspected | NodeCleared] = []

    def suspects(self) -> Suspects:
        standing: dict[str, SuspectNode] = {}
        for key, one in sorted(self._trials.suspects.items()):
            reason = self._cleared(one)
            if reason:
                self._news.append(NodeCleared(one.suspected.node, one.suspected.kind, reason, self._cycle))
            else:
                standing[key] = one
        cleared = self._trials.suspects.keys() - standing.keys()
        for key in sorted(self._trials.failures.keys() - cleared):
            found = self._found(key, standing)
            if found is not None:
                self._news.append(found.suspected)
                standing[key] = found
        due = [one for one in standing.values() if one.probe_at <= self._now and not any(_probes(self._state, one))]
        later = [one for one in due if one.gang_probe_at <= self._now]
        return Suspects(
            [standing[key] for key in sorted(standing)],
            self._news,
            frozenset(one.key for one in due),
            frozenset(one.key for one in later),
        )

    def _cleared(self, suspect: SuspectNode) -> str:
        """Say why a node is suspect no more; empty while it is."""
        if suspect.proven or any(map(self._lasts, _probes(self._state, suspect))):
            return "Probed"
        if all(self._follows_work(suspect.suspected.node, one) for one in suspect.failures):
            return "FollowsWork"
        return ""

    def _found(self, key: str, standing: dict[str, SuspectNode]) -> SuspectNode | None:
        """Return what is found of a node with failures; None where nothing new is."""
        before, (kind, _, node) = standing.get(key), key.partition("/")
        row = self._state.columns.rows.get(node, -1)
        facts = self._state.columns.facts[row] if row >= 0 else None
        if facts is None or (before is not None and not before.suspected.works):
            return None
        failures = self._in_a_row(key, node, kind)
        problems = self._problems(facts, kind) if failures else ()
        if len(failures) < (1 if problems else self._config.suspect_after):
            return None
        ran = [one for one in failures if self._ran_elsewhere(node, one)]
        others = {one.work for one in failures} - {one.work for one in ran}
        enough = bool(problems) or len(ran) + len(others) >= self._config.suspect_after
        works = () if enough and self._may_be_one_more(kind, standing) else tuple(sorted({f.work for f in failures}))
        if self._nodes(kind) < _LEAST_NODES or (
            before is not None and works and set(works) <= {*before.suspected.works}
        ):
            return None
        found = NodeSuspected(
            node=node,
            kind=kind,
            cycle=self._cycle,
            failures=tuple(one.position for one in failures),
            probe_after_us=self._config.suspect_probe_us,
            works=works,
            ran_elsewhere=len(ran),
            problems=problems,
        )
        since, until = self._now, self._now + found.probe_after_us
        return SuspectNode(found, self._state.position, since, tuple(failures), until)

    def _problems(self, node: Node, kind: str) -> tuple[str, ...]:
        """Return the problems that a node reports of itself, and for work with devices those of its devices."""
        failed = self._state.constraints.devices.slices.failed_on(node.name) if kind == WorkKind.DEVICES else ()
        return node.problems + failed

    def _in_a_row(self, key: str, node: str, kind: str) -> list[FailedTrial]:
        """Return the failures of a node that count, in order."""
        proven = max((one.charged_at for one in self._held(node, kind) if self._lasts(one)), default=0)
        return [
            one
            for one in self._trials.failures[key]
            if one.position > proven and self._now - one.at < _WINDOW_US and not self._follows_work(node, one)
        ]

    def _follows_work(self, node: str, failure: FailedTrial) -> bool:
        others = [one for one in self._trials.works.get(failure.work, ()) if one.node != node]
        lasted = max((one.at for one in others if not one.failed), default=0)
        # Where it failed before it lasted elsewhere, that was the node.
        failed = {one.node for one in others if one.failed and one.at > max(failure.at - _WINDOW_US, lasted)}
        enough = len(failed) >= _OTHER_NODES or any(self._lets_others_last(node, failure) for node in failed)
        return enough and lasted <= failure.at and not self._runs_elsewhere(node, failure, since=failure.at)

    def _lets_others_last(self, node: str, failure: FailedTrial) -> bool:
        """Tell whether a pod of another work lasted on a node, not long before a failure or after it."""
        return any(
            one.node == node and not one.failed and one.at > failure.at - _WINDOW_US
            for work, trials in self._trials.works.items()
            if work != failure.work
            for one in trials
        )

    def _ran_elsewhere(self, node: str, failure: FailedTrial) -> bool:
        """Tell whether a work has run on other nodes, and failed on none since."""
        others = [one for one in self._trials.works.get(failure.work, ()) if one.node != node]
        if any(one.failed for one in others):
            return False
        return bool(others) or self._runs_elsewhere(node, failure)

    def _runs_elsewhere(self, node: str, failure: FailedTrial, *, since: int = 0) -> bool:
        """Tell whether a pod of a work has run on another node for a minute, started since then."""
        owner, namespace, _ = failure.work.split("/", 2)
        return any(
            entry.node != node
            and entry.started_at >= since
            and entry.pod.namespace == namespace
            and (entry.pod.owner.kind if entry.pod.owner is not None else "Pod") == owner
            and self._lasts(entry)
            and work_of(entry.pod) == failure.work
            for entry in self._state.pods.values()
        )

    def _may_be_one_more(self, kind: str, standing: dict[str, SuspectNode]) -> bool:
        """Tell whether the share of suspect nodes lets one more be suspect for all of a kind of work."""
        wholly = sum(one.suspected.kind == kind and not one.suspected.works for one in standing.values())
        return wholly < max(self._nodes(kind) * self._config.suspect_per_cent // 100, 1)

    def _nodes(self, kind: str) -> int:
        """Return how many nodes take a kind of work."""
        columns = self._state.columns
        usable = columns.present & columns.ready
        with_gpus = (
            usable & (columns.allocatable[:, columns.resources[GPU]] > 0) if GPU in columns.resources else usable
        )
        few = kind == WorkKind.DEVICES and with_gpus.any()
        return int((with_gpus if few else usable).sum())

    def _held(self, node: str, kind: str) -> Iterable[PodEntry]:
        return (entry for entry in self._state.charges.held_on(node) if kind_of(entry) == kind)

    def _lasts(self, entry: PodEntry) -> bool:
        return entry.charged and bool(entry.started_at) and self._now - entry.started_at >= QUICK_US
