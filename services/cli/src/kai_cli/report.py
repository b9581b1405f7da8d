"""The demonstration's report: what was bound, what waits and why, what kubelets refused, and whether it all adds up."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.state.agreement import Agreement
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.contradiction import NO_FAULT, MissCause, contradiction
from kaicore.rules.state.pod_entry import Stage
from kaicore.rules.state.replay_report import ReplayReport
from kaicore.rules.state.why import pending_reasons, zones_text

from kai_cli.expectations import ExpectedGroup
from kai_cli.gang_domains import GangDomains

#: What a cause of a miss means.
_CAUSES: dict[str, str] = {
    MissCause.ZONES: "on other zones",
    MissCause.AMOUNTS: "with other amounts on the predicted zones",
    MissCause.RELEASED_EARLIER: "on other zones, for the kubelet had released pods whose end the API told later",
    MissCause.HALF_READ: "half of an admission was read first; the whole is as predicted",
    MissCause.OLDEST_FIRST: "on other zones, for the kubelet admitted pods that came together oldest first",
    MissCause.NOT_OBSERVED_YET: "on other zones, for pods before it were not observed yet",
}


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """What happened in one cluster.

    Attributes:
        seconds: until nothing happened any more.
        settled: whether it came to that.
        events: in the log.
        pods: of ours, successors of rejected and evicted ones included.
        bound: decisions that the API server took.
        succeeded: pods that ran to their end.
        rejected: kubelets' refusals by reason.
        evicted: pods that the scheduler had evicted, by reason.
        reselected: decisions for a node that had rejected such a pod before.
        pending: pods without a node, with the reasons.
        agreement: observed placements by how they compare with the prediction.
        misses: placements that were not as predicted, by cause; another split of what a prediction left open is none.
        surprises: of the placements that are there at the end, those that contradict their prediction, a line each.
        unobserved: pods that were placed on zones and ran, and that no exporter told of.
        groups: what became of each Job and pod that was asked for.
        gangs: where the groups with a topology constraint are.
    """

    name: str
    seconds: float
    settled: bool
    events: int
    nodes: int
    pods: int
    bound: int
    succeeded: int
    running: int
    rejected: dict[str, int]
    evicted: dict[str, int]
    reselected: int
    pending: dict[str, list[str]]
    agreement: dict[str, int]
    misses: dict[str, int]
    surprises: list[str]
    unobserved: list[str]
    groups: list[ExpectedGroup]
    gangs: list[GangDomains]
    cycles: int

    @classmethod
    def of(
        cls,
        state: ClusterState,
        groups: list[ExpectedGroup],
        gangs: list[GangDomains],
        *,
        seconds: float,
        settled: bool,
    ) -> "ClusterReport":
        """Take the figures from a state."""
        ours = [entry for entry in state.pods.values() if entry.pod.scheduler_name == EngineConfig().scheduler_name]
        phases = Counter(entry.pod.phase for entry in ours)
        pending = {
            entry.pod.subject: [str(reason) for reason in pending_reasons(entry, state)]
            for entry in sorted(ours, key=lambda item: item.pod.subject)
            if entry.stage is Stage.WAITING
        }
        return cls(
            name=state.cluster,
            seconds=seconds,
            settled=settled,
            events=state.position,
            nodes=sum(node is not None for node in state.columns.facts),
            pods=len(ours) + state.counters.evictions,
            bound=state.counters.bound,
            succeeded=phases["Succeeded"],
            running=phases["Running"],
            rejected=dict(sorted(state.counters.rejections.items())),
            evicted=_evicted(state),
            reselected=state.counters.reselections,
            pending=pending,
            agreement={kind: state.counters.agreement.get(kind, 0) for kind in Agreement},
            misses=_misses(state),
            surprises=[
                f"{entry.pod.subject} on {entry.node}: predicted{zones_text(entry.predicted)}; "
                f"observed{zones_text(entry.observed)}"
                for entry in ours
                if entry.predicted and entry.observed and contradiction(entry.predicted, entry.observed) is not None
            ],
            unobserved=sorted(
                entry.pod.subject
                for entry in ours
                if entry.predicted and not entry.observed and entry.pod.phase in ("Running", "Succeeded")
            ),
            groups=groups,
            gangs=gangs,
            cycles=state.counters.cycles,
        )


def _misses(state: ClusterState) -> dict[str, int]:
    """What tells a kubelet's rejection is not counted here but as that; what nothing has explained yet, as recorded."""
    total = Counter(miss.cause for miss in state.misses.open.values())
    for by_policy_and_cause in state.counters.misses.values():
        for key, count in by_policy_and_cause.items():
            total[key.rpartition("/")[2]] += count
    return {cause: total[cause] for cause in sorted(total) if cause not in state.counters.rejections}


def _evicted(state: ClusterState) -> dict[str, int]:
    decided = {**state.counters.evictions_decided, "Healed": state.counters.heal_requests}
    return {reason: count for reason, count in sorted(decided.items()) if count}


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The comparison of scheduling with and without NUMA."""

    sighted: ClusterReport
    blind: ClusterReport
    replays: list[ReplayReport]
    audits: list[bool]

    @property
    def good(self) -> bool:
        """Whether the demonstration shows what it is to show."""
        return not self.complaints

    @property
    def complaints(self) -> list[str]:
        """The checks that failed, a line each."""
        sighted, failed = self.sighted, []
        if not sighted.settled:
            failed.append(f"not done after {sighted.seconds:.0f} s")
        for group in sighted.groups:
            if not group.as_expected:
                outcome = f"{group.ran} of {group.wanted} ran" if group.wanted else "ran, and could not"
                failed.append(f"{group.name}: {outcome}")
        failed += [
            f"{gang.name}: its pods are in {gang.domains[gang.required]} domains of {gang.required}, one is required"
            for cluster in (sighted, self.blind)
            for gang in cluster.gangs
            if not gang.as_required
        ]
        failed += [f"{name} waits without a reason" for name, reasons in sighted.pending.items() if not reasons]
        failed += [f"{count} rejected by kubelets: {reason}" for reason, count in sighted.rejected.items()]
        failed += [
            f"{count} placed by kubelets otherwise than predicted: {_CAUSES.get(cause, cause)}"
            for cause, count in sighted.misses.items()
            if cause not in NO_FAULT
        ]
        if sighted.unobserved:
            failed.append(f"{len(sighted.unobserved)} not observed by any exporter, such as {sighted.unobserved[0]}")
        for replay in self.replays:
            if replay.differences:
                failed.append(f"cluster {replay.cluster}: {len(replay.differences)} differences in replay")
            elif not replay.cycles:
                failed.append(f"cluster {replay.cluster}: no cycle was replayed")
        for name, ok in zip((sighted.name, self.blind.name), self.audits, strict=True):
            if not ok:
                failed.append(f"cluster {name}: the hash chain is broken")
        return failed


def render(report: DemoReport) -> str:
    """Write the report for a terminal."""
    columns = (report.sighted, report.blind)
    # Controllers create a pod for each that was rejected or evicted, and otherwise just what the workload asks for.
    made = [item.pods - sum(item.evicted.values()) for item in columns]
    rows: list[tuple[str, list[str]]] = [
        ("Jobs and pods that can run, and did", [_in_full(item.groups) for item in columns]),
        ("pods created", [str(item.pods) for item in columns]),
        ("  bound", [str(item.bound) for item in columns]),
        ("  succeeded", [str(item.succeeded) for item in columns]),
        ("  pending, with a reason", [str(len(item.pending)) for item in columns]),
        ("rejected by kubelets", [str(sum(item.rejected.values())) for item in columns]),
    ]
    rows += [
        (f"  {reason}", [str(item.rejected.get(reason, 0)) for item in columns])
        for reason in sorted({*report.sighted.rejected, *report.blind.rejected})
    ]
    rows += [
        ("retries by their controllers", [str(pods - min(made)) for pods in made]),
        ("  on a node that had rejected such a pod", [str(item.reselected) for item in columns]),
        ("evicted to make room, or for better zones", [str(sum(item.evicted.values())) for item in columns]),
        *(
            (f"  {reason}", [str(item.evicted.get(reason, 0)) for item in columns])
            for reason in sorted({*report.sighted.evicted, *report.blind.evicted})
        ),
        ("until all was done", [f"{item.seconds:.0f} s" if item.settled else "not done" for item in columns]),
        ("cycles", [str(item.cycles) for item in columns]),
        ("events in the log", [str(item.events) for item in columns]),
        ("replay: differences", [str(len(item.differences)) for item in report.replays]),
        ("hash chain", ["intact" if ok else "BROKEN" for ok in report.audits]),
    ]
    lines = ["", f"{report.sighted.nodes} nodes, the same workload twice", ""]
    lines.append(f"{'':44}{'NUMA-aware':>12}{'NUMA-blind':>12}")
    lines += [f"{name:44}" + "".join(f"{value:>12}" for value in values) for name, values in rows]
    lines += _gangs(columns)
    lines += _agreement(report.sighted)
    for name, reasons in report.sighted.pending.items():
        lines += ["", f"pending: {name}", *(f"  - {reason}" for reason in reasons)]
    first = next((difference for replay in report.replays for difference in replay.differences), None)
    if first is not None:
        lines += ["", f"first difference: {first}"]
    if report.good:
        lines += ["", "all checks passed", ""]
    else:
        lines += ["", "checks that failed:", *(f"  - {line}" for line in report.complaints), ""]
    return "\n".join(lines)


def _gangs(clusters: Sequence[ClusterReport]) -> list[str]:
    """Into how many domains of each level the groups went that ask for a topology, a line each."""
    by_cluster = [{gang.name: gang for gang in cluster.gangs} for cluster in clusters]
    levels = {
        gang.name: " / ".join(f"{_short(level)}{'*' * (level == gang.required)}" for level in gang.domains)
        for gangs in reversed(by_cluster)
        for gang in gangs.values()
    }
    if not levels:
        return []
    counts = [
        {name: " / ".join(map(str, gang.domains.values())) for name, gang in gangs.items()} for gangs in by_cluster
    ]
    return [
        "",
        "domains that gangs span, of each level (* all pods in one is required):",
        *(
            f"{f'  {_short(name)}: {levels[name]}':50}" + "".join(f"{count.get(name, '-'):>12}" for count in counts)
            for name in sorted(levels)
        ),
    ]


def _short(name: str) -> str:
    """A name without its namespace, or a label without its domain."""
    return name.rpartition("/")[2]


def _agreement(cluster: ClusterReport) -> list[str]:
    """How observed placements compare with the predictions, a line for each cause of a difference."""
    observed = sum(cluster.agreement.values())
    if not observed:
        return []
    exact = cluster.agreement[Agreement.EXACT]
    left_open = max(observed - exact - sum(cluster.misses.values()), 0)
    rows = [(exact, "as predicted, to the amount"), (left_open, "as predicted, but for what the prediction left open")]
    rows += [(count, _CAUSES.get(cause, cause)) for cause, count in cluster.misses.items()]
    return [
        "",
        f"placements of {observed} pods, as observed:",
        *(f"{count:6} {text}" for count, text in rows if count),
        *(f"  - {line}" for line in cluster.surprises),
    ]


def _in_full(groups: list[ExpectedGroup]) -> str:
    wanted = [group for group in groups if group.wanted]
    return f"{sum(group.as_expected for group in wanted)} of {len(wanted)}"
