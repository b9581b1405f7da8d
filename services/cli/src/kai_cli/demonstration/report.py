"""The demonstration's report: what was bound, what waits and why, what kubelets refused, and whether it all adds up.

The report knows which Jobs and pods must run in full, and which show that they cannot run. It counts the topology
domains of each group. No report is made of a log that is behind the API server.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from kaicore.kube.api.client import KubeClient
from kaicore.rules.deciding.replay import ReplayReport
from kaicore.rules.deciding.why import pending_reasons, zones_text
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.node import HYPER_NODE
from kaicore.rules.state.pods.agreement import NO_FAULT, Agreement, MissCause, contradiction
from kaicore.rules.state.views import ClusterView, LogView, PodsView
from kaicore.rules.topology.placing.request import NO_LEVEL
from kaicore.rules.topology.resolve import Resolved, resolve

from kai_cli.sources.manifests import Manifest

_PODS_PATH = "/api/v1/pods"


@dataclass(frozen=True, slots=True)
class ListedPod:
    """A pod as the API server has it, as far as a report depends on it."""

    uid: str
    node: str
    phase: str


async def listed_pods(client: KubeClient) -> list[ListedPod]:
    """Return all pods of a cluster. Raises ClusterUnavailable: the API server does not answer."""
    pods = msgspec.json.decode(await client.get(_PODS_PATH))["items"]
    return [ListedPod(pod["metadata"]["uid"], pod["spec"].get("nodeName", ""), pod["status"]["phase"]) for pod in pods]


def has_caught_up(state: PodsView, listed: Iterable[ListedPod]) -> bool:
    """Tell whether a state has each pod where and as the API server has it, and none besides."""
    there = {pod.uid: (pod.node, pod.phase) for pod in listed}
    recorded = {uid: (entry.pod.node_name, entry.pod.phase) for uid, entry in state.pods.items() if not entry.gone}
    return recorded == there


#: On a Job or pod that no node can ever take: the demonstration then wants it to wait, with reasons.
NEVER_FITS = "demo.kai.scheduler/never-fits"


@dataclass(frozen=True, slots=True)
class ExpectedGroup:
    """A Job, or a pod of its own, and what became of it.

    Attributes:
        name: as in `Job default/train`.
        wanted: how many of its pods must run; 0 for one that cannot.
        ran: how many ran to their end; of a pod of its own also while it runs.
    """

    name: str
    wanted: int
    ran: int

    @property
    def as_expected(self) -> bool:
        """True if all of it ran; nothing of a sample that cannot run."""
        return self.ran == 0 if self.wanted == 0 else self.ran >= self.wanted


def groups_of(
    manifests: Iterable[Manifest], state: PodsView, *, succeeded: Mapping[tuple[str, str], int]
) -> list[ExpectedGroup]:
    """Hold what became of a workload against what was asked for.

    Args:
        manifests: what was applied; Jobs and pods of our scheduler count.
        state: at the end.
        succeeded: how many pods of each Job have ended well, as the Jobs themselves tell, by namespace and name. A pod
            that was evicted when it had ended already is gone from the state, and counts.
    """
    ours = EngineConfig().scheduler_name
    phases = {(entry.pod.namespace, entry.pod.name): entry.pod.phase for entry in state.pods.values()}
    groups = []
    for manifest in manifests:
        kind, metadata, spec = manifest["kind"], manifest["metadata"], manifest.get("spec") or {}
        key = metadata.get("namespace") or "default", metadata.get("name", "")
        if kind == "Job":
            scheduler = ((spec.get("template") or {}).get("spec") or {}).get("schedulerName")
            wanted, ran = spec.get("completions") or spec.get("parallelism") or 1, succeeded.get(key, 0)
        elif kind == "Pod":
            scheduler, wanted, ran = spec.get("schedulerName"), 1, int(phases.get(key) in ("Running", "Succeeded"))
        else:
            continue
        if scheduler != ours:
            continue
        if (metadata.get("annotations") or {}).get(NEVER_FITS) == "true":
            wanted = 0
        groups.append(ExpectedGroup(f"{kind} {'/'.join(key)}", wanted, ran))
    return groups


@dataclass(frozen=True, slots=True)
class GangDomains:
    """The places of the pods of a group with a topology constraint.

    Attributes:
        name: of the group, as in `default/train`.
        pods: how many of its pods are counted.
        domains: how many domains they are in, by level from the widest to the single nodes.
        required: the level of which all of them are to share a domain; empty for none.
    """

    name: str
    pods: int
    domains: Mapping[str, int]
    required: str = ""

    @property
    def as_required(self) -> bool:
        """True if they share a domain of the required level."""
        return self.domains.get(self.required, 0) <= 1


#: The events that say where a pod is placed, and that it has ended.
_OF_LIVES = frozenset({payloads.PodPlaced.__name__, payloads.PodObserved.__name__})


@dataclass(slots=True)
class PlacedDomains:
    """The domains of placed pods, by the recorded decisions, and the positions at which pods were placed and ended."""

    _by_uid: dict[str, dict[str, str]] = field(default_factory=dict)
    _placed_at: dict[str, int] = field(default_factory=dict)
    _ended_at: dict[str, int] = field(default_factory=dict)

    def see(self, events: Iterable[Event]) -> None:
        """Take in what follows in the log."""
        for event in events:
            if event.type not in _OF_LIVES:
                continue
            seen = decode_payload(event)
            if isinstance(seen, payloads.PodPlaced) and seen.domains:
                self._by_uid[seen.uid], self._placed_at[seen.uid] = seen.domains, event.position
            elif isinstance(seen, payloads.PodObserved) and seen.pod.finished:
                self._ended_at.setdefault(seen.pod.uid, event.position)

    def of_gangs(self, state: ClusterView) -> list[GangDomains]:
        """Return the groups that ask for a topology, by name.

        Args:
            state: at the end of what was seen. Pods that are gone, and those that failed, do not count: they have
                successors. Nor does a pod beside one that was placed after its end: a gang is kept together only while
                it runs.
        """
        gangs = []
        for key, group in state.groups.items():
            name = f"{group.namespace}/{group.name}"
            resolved = resolve(group.sets, state.network_topologies, group=name)
            if not isinstance(resolved, Resolved):
                continue
            entries = [state.pods[uid] for uid in state.group_table.pods_of(key) if uid in state.pods]
            placed = [
                entry.pod.uid for entry in entries if entry.pod.uid in self._by_uid and entry.pod.phase != "Failed"
            ]
            levels = state.network_topologies.paths(resolved.topology).levels
            # The lowest level of any topology is its single nodes.
            tier = "tier " if resolved.topology.kind == HYPER_NODE else ""
            named = [*(f"{tier}{level.name}" for level in levels[:-1]), "node"]
            names = [level.name for level in levels]
            counts = [
                max((len(self._domains_beside(uid, placed, names[: depth + 1])) for uid in placed), default=0)
                for depth in range(len(names))
            ]
            required = resolved.constraints[""].required if "" in resolved.constraints else NO_LEVEL
            level = "" if required == NO_LEVEL else named[required]
            gangs.append(GangDomains(name, len(placed), dict(zip(named, counts, strict=True)), level))
        return sorted(gangs, key=lambda one: one.name)

    def _domains_beside(self, uid: str, placed: Iterable[str], levels: Sequence[str]) -> set[tuple[str, ...]]:
        """Return the domains of the last of some levels that pods held as one of them was placed.

        A domain is known by the names from the top down.
        """
        at = self._placed_at[uid]
        beside = (one for one in placed if self._placed_at[one] <= at < self._ended_at.get(one, at + 1))
        paths = {tuple(self._by_uid[one].get(level, "") for level in levels) for one in beside}
        return {path for path in paths if path[-1]}


#: What a cause of a miss means.
_CAUSES: dict[str, str] = {
    MissCause.ZONES: "on other zones",
    MissCause.AMOUNTS: "with other amounts on the predicted zones",
    MissCause.INIT_KEPT: "with other CPUs kept by an init container",
    MissCause.RELEASED_EARLIER: "on other zones: the kubelet released pods before the API reported their end",
    MissCause.HALF_READ: "half of an admission was read first; the whole is as predicted",
    MissCause.OLDEST_FIRST: "on other zones: of pods that came together, the kubelet admitted the oldest first",
    MissCause.NOT_OBSERVED_YET: "on other zones: earlier pods were not observed yet",
}


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A report of one cluster.

    Attributes:
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
        unobserved: pods that were placed on zones and ran, and that no exporter reported.
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
        state: ClusterView,
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
            if entry.waiting
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
            evicted=dict(sorted(state.counters.evictions_decided.items())),
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


def _misses(state: LogView) -> dict[str, int]:
    """The differences by cause; a kubelet's rejection counts elsewhere, and unexplained ones count as recorded."""
    total = Counter(miss.cause for miss in state.misses.open.values())
    for by_policy_and_cause in state.counters.misses.values():
        for key, count in by_policy_and_cause.items():
            total[key.rpartition("/")[2]] += count
    return {cause: total[cause] for cause in sorted(total) if cause not in state.counters.rejections}


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The comparison of scheduling with and without NUMA."""

    sighted: ClusterReport
    blind: ClusterReport
    replays: list[ReplayReport]
    audits: list[bool]

    @property
    def good(self) -> bool:
        """True if the demonstration shows everything that it should."""
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
    """The comparison of observed placements with predictions, a line for each cause of a difference."""
    observed = sum(cluster.agreement.values())
    if not observed:
        return []
    exact = cluster.agreement[Agreement.EXACT]
    left_open = max(observed - exact - sum(cluster.misses.values()), 0)
    rows = [(exact, "as predicted, to the amount"), (left_open, "as predicted, except for amounts that it left open")]
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
