"""Metrics of a scheduler: its cycles, and the counts of its state."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from kaicore.rules.deciding.cycle_input import is_unobserved
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.decisions import CycleResult
from kaicore.rules.events.envelope import Stale
from kaicore.rules.events.payloads import ShadowDecided
from kaicore.rules.events.quarantine import QUARANTINED
from kaicore.rules.model.gpu_share import WHOLE
from kaicore.rules.state.pods.agreement import Agreement
from kaicore.rules.state.pods.pod_entry import PRESENT, Stage
from kaicore.rules.state.views import FleetView
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_QUANTILES = (0.5, 0.9, 1.0)
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class SchedulerMetrics:
    """Metrics of one scheduler process."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._state: _StateCollector | None = None
        self._decide = Histogram(
            "kai_cycle_decide_seconds", "Duration of a cycle's decision", ["shard"], buckets=_BUCKETS, registry=registry
        )
        self._append = Histogram(
            "kai_cycle_append_seconds", "Duration of a cycle's append", ["shard"], buckets=_BUCKETS, registry=registry
        )
        self._placed = Counter("kai_cycle_placed_pods", "Pods placed by cycles", ["shard"], registry=registry)
        self._pending = Gauge("kai_pending_pods", "Pods that the last cycle left", ["shard"], registry=registry)
        self._left_out = Gauge(
            "kai_cycle_left_out",
            "Groups, nodes and policies that the last cycle left out, for it fails with them; or the cycle itself",
            ["shard", "what"],
            registry=registry,
        )
        self._units = Counter(
            "kai_decided_units",
            "Units of decisions that were appended or were stale: kai_stale_decisions of them were",
            ["shard"],
            registry=registry,
        )
        self._replicas = Gauge(
            "kai_shard_replicas", "Replicas that share the shard's groups", ["shard"], registry=registry
        )
        self._owner_changes = Counter(
            "kai_group_owner_changes", "Waiting groups that became this replica's", ["shard"], registry=registry
        )
        self._shadowed = Counter(
            "kai_shadow_decisions",
            "Decisions that a shadow recorded about another scheduler's pods",
            ["scheduler", "decision"],
            registry=registry,
        )
        self.relisted = Counter(
            "kai_relisted_cycles",
            "Cycles dropped because the list of the shard's replicas had changed",
            registry=registry,
        )
        self._stale = Counter(
            "kai_stale_decisions", "Decisions dropped because they were stale", ["about"], registry=registry
        )
        self.fenced = Counter(
            "kai_fenced_cycles", "Cycles dropped because another scheduler leads the shard", registry=registry
        )

    def watch(self, state: FleetView, config: EngineConfig, clock: Callable[[], int]) -> None:
        """Export what a state counts, in place of another one; the clock gives microseconds since the epoch."""
        if self._state is not None:
            self._registry.unregister(self._state)
        self._state = _StateCollector(state, config, clock)
        self._registry.register(self._state)

    def cycle(self, result: CycleResult, *, decide_s: float, append_s: float, shard: str) -> None:
        """Record a cycle."""
        self._decide.labels(shard).observe(decide_s)
        self._append.labels(shard).observe(append_s)
        self._placed.labels(shard).inc(len(result.placements))
        self._pending.labels(shard).set(sum(item.pods for item in result.pending))

    def left_out(self, shard: str, *, groups: int = 0, nodes: int = 0, policies: int = 0, cycles: int = 0) -> None:
        """Set what the last cycle left out because it fails with it; it may be the cycle itself."""
        for what, count in (("group", groups), ("node", nodes), ("policy", policies), ("cycle", cycles)):
            self._left_out.labels(shard, what).set(count)

    def shadowed(self, decided: ShadowDecided) -> None:
        """Count what a shadow recorded."""
        for kind, decisions in (
            ("placed", decided.placed),
            ("nominated", decided.nominated),
            ("left", decided.left),
            ("evicted", decided.evicted),
        ):
            if decisions:
                self._shadowed.labels(decided.scheduler, kind).inc(len(decisions))

    def decided(self, shard: str, *, units: int, stale: Sequence[Stale]) -> None:
        """Count the units of an appended cycle, and those of them that were stale."""
        self._units.labels(shard).inc(units)
        for one in stale:
            self._stale.labels(one.stream.split("/", 1)[0]).inc()

    def listed(self, shard: str, replicas: Sequence[str], *, taken_over: int) -> None:
        """Record a new list of replicas, and how many waiting groups became this one's."""
        self._replicas.labels(shard).set(len(replicas))
        self._owner_changes.labels(shard).inc(taken_over)


class _StateCollector(Collector):
    """Reads the state as Prometheus asks, so that nothing is counted twice after a restart."""

    def __init__(self, state: FleetView, config: EngineConfig, clock: Callable[[], int]) -> None:
        self._state = state
        self._config = config
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        yield GaugeMetricFamily("kai_state_position", "Position that is folded", self._state.position)
        yield GaugeMetricFamily(
            "kai_quarantined_events",
            QUARANTINED,
            len(self._state.quarantined),
        )
        yield from self._stages()
        if self._config.gpu_sharing:
            yield from self._shared_gpus()
        yield self._waiting()
        yield from self._contradictions()
        yield self._overdue()
        yield from self._outcomes()

    def _stages(self) -> Iterator[Metric]:
        """Pods by progress, and the number of pods with incomplete records."""
        state = self._state
        stages = GaugeMetricFamily("kai_pods", "Pods by how far they have come", labels=["stage"])
        counts = dict.fromkeys(PRESENT, 0)
        unobserved = 0
        incomplete = set()
        for entry in state.pods.values():
            counts[entry.stage] += 1
            if state.charges.partly_unknown(entry):
                incomplete.add(entry.node)
            unobserved += entry.stage is Stage.BOUND and entry.predicted is not None and entry.observed is None
        for stage, count in counts.items():
            stages.add_metric([stage], count)
        yield stages
        yield GaugeMetricFamily(
            "kai_pods_unobserved", "Bound pods with a predicted placement that no exporter has observed", unobserved
        )
        yield GaugeMetricFamily(
            "kai_nodes_history_incomplete",
            "Nodes with zones of which no record names all that is held",
            len(incomplete),
        )

    def _shared_gpus(self) -> Iterator[Metric]:
        """GPUs that are opened for sharing, and their parts."""
        groups, supply = self._state.shared_gpus.groups, self._state.columns.gpus
        opened = [name for name, group in groups.items() if group.uid]
        free = sum(WHOLE - supply.used(name) for name in opened if supply.is_offered(name))
        held = sum(part.milli for group in groups.values() for part in group.parts.values())
        yield GaugeMetricFamily("kai_gpus_opened", "GPUs opened for sharing", len(opened))
        parts = GaugeMetricFamily("kai_gpu_parts", "Parts of opened GPUs, in GPUs", labels=["use"])
        parts.add_metric(["held"], held / WHOLE)
        parts.add_metric(["free"], free / WHOLE)
        yield parts

    def _waiting(self) -> Metric:
        """For how long pods have waited that are ours."""
        now_s, ours = self._clock() / 1_000_000, self._config.scheduler_name
        seconds = sorted(
            max(0.0, now_s - entry.pod.created_at)
            for entry in self._state.pods.values()
            if entry.waiting and entry.pod.scheduler_name == ours
        )
        family = GaugeMetricFamily(
            "kai_waiting_seconds",
            "Time since the creation of the pods that wait, quantiles over pods; 1.0 is the oldest",
            labels=["quantile"],
        )
        for quantile in _QUANTILES if seconds else ():
            family.add_metric([str(quantile)], seconds[min(int(quantile * len(seconds)), len(seconds) - 1)])
        return family

    def _contradictions(self) -> Iterator[Metric]:
        """Differences between kubelets and predictions, and impossible reports."""
        tally = self._state.counters
        misses = CounterMetricFamily(
            "kai_predictions_missed",
            "Kubelets did otherwise than was predicted, by node that exists",
            labels=["node", "policy", "cause"],
        )
        for node, by_cause in sorted(tally.misses.items()):
            for key, count in sorted(by_cause.items()):
                misses.add_metric([node, *key.split("/", 1)], count)
        yield misses
        yield _counted(
            "kai_observations_disbelieved",
            "Observations of more than the pod or the zone can hold, by node that exists",
            "node",
            tally.disbelieved,
        )

    def _overdue(self) -> Metric:
        """Pods that run for long unobserved."""
        state = self._state
        now = max(self._clock(), state.recorded_at)
        late: dict[str, int] = {}
        for entry in state.pods.values():
            if now - entry.started_at > self._config.unobserved_after_us and is_unobserved(state, entry):
                late[entry.node] = late.get(entry.node, 0) + 1
        overdue = GaugeMetricFamily(
            "kai_pods_unobserved_overdue",
            "Pods that run for long on zones of their node, and that no exporter has observed",
            labels=["node"],
        )
        for node, count in sorted(late.items()):
            overdue.add_metric([node], count)
        return overdue

    def _outcomes(self) -> Iterator[Metric]:
        """Outcomes of decisions, counted over the whole log."""
        state, tally = self._state, self._state.counters
        yield GaugeMetricFamily(
            "kai_pods_missed",
            "Pods on other zones than their own NUMA policy asks for, or on an exposed GPU",
            len(state.misaligned),
        )
        yield GaugeMetricFamily(
            "kai_gpus_exposed",
            "GPUs that pods share and no reservation pod holds",
            len(state.shared_gpus.exposed),
        )
        yield GaugeMetricFamily(
            "kai_nodes_suspect", "Nodes that fail what is put on them, by kind of work", len(state.node_trials.suspects)
        )
        yield _counted(
            "kai_evictions_decided", "Decisions to evict a pod; Repaired: such a pod", "reason", tally.evictions_decided
        )
        yield CounterMetricFamily("kai_evictions", "Of those, the ones that the API server took", tally.evictions)
        yield CounterMetricFamily("kai_decisions", "Pods placed, since the log's first event", tally.placed)
        yield CounterMetricFamily("kai_bound", "Decisions that the API server took", tally.bound)
        yield _counted("kai_bind_failures", "Failed binds", "reason", tally.bind_failures)
        yield _counted("kai_kubelet_rejections", "Pods that kubelets refused", "reason", tally.rejections)
        yield CounterMetricFamily(
            "kai_reselections", "Decisions for a node that had rejected such a pod before", tally.reselections
        )
        promises = CounterMetricFamily(
            "kai_promised_starts", "Reserved starts, by what became of them", labels=["outcome", "reason"]
        )
        for key, count in sorted(tally.promises.items()):
            outcome, _, reason = key.partition("/")
            promises.add_metric([outcome, reason], count)
        yield promises
        yield CounterMetricFamily(
            "kai_promised_starts_late_seconds",
            "By how much groups started later than was promised to them first",
            tally.promises_late_us / 1e6,
        )
        agreement = GaugeMetricFamily(
            "kai_predictions_observed",
            "Observed placements, by how they compare with the prediction",
            labels=["agreement"],
        )
        for kind in Agreement:
            agreement.add_metric([kind], tally.agreement.get(kind, 0))
        yield agreement


def _counted(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    """Return a counter with one label, of counts by its value."""
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family
