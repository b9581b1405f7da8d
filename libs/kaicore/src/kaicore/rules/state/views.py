# ruff: noqa: D102 (described where they are kept)
"""Narrow views of a cluster's state: what a reader may see of it. Nothing can be folded through a view.

`ClusterState` fulfils all of them. A reader takes the narrowest that has what it reads, so its signature says of which
parts of the state its answer is made.

```
CycleView                               all that a cycle decides by
  ClusterView                           all that answers and pages are about
    FleetView  WorkView  QueuesView     nodes; groups and why they wait; queues
      PodsView                          the pods
        LogView                         the position in the log, and what was counted up to it
```

The attributes are described at `ClusterState` and at `PodIndexes`, and so are the methods.
"""

from collections.abc import Iterator, Mapping, Set
from typing import Protocol

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import PodClass
from kaicore.rules.engine.victims.eviction_cost import FailuresLeft
from kaicore.rules.events.payloads import PriorityClassObserved
from kaicore.rules.events.quarantine import QuarantinedEvent
from kaicore.rules.groups.table import GroupTable
from kaicore.rules.model.group import Group
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.queue import Queue
from kaicore.rules.model.reservation import NodeReservation
from kaicore.rules.queues.accounts import QueueAccounts
from kaicore.rules.state.charges.early_release import EarlyReleases
from kaicore.rules.state.charges.node_charges import NodeCharges
from kaicore.rules.state.charges.prediction_misses import PredictionMisses
from kaicore.rules.state.cluster_state import GroupOwners
from kaicore.rules.state.counters import Counters
from kaicore.rules.state.indexes.cluster_constraints import ClusterConstraints
from kaicore.rules.state.indexes.node_trials import NodeReadiness, NodeTrials, RejectionIndex
from kaicore.rules.state.indexes.past_runs import GpuUse, RecentWork, RunTimes
from kaicore.rules.state.indexes.recorded_reasons import RecordedReasons, ShadowBook
from kaicore.rules.state.indexes.repairs import RepairLedger
from kaicore.rules.state.indexes.workload_index import RestingGroups, WorkloadIndex
from kaicore.rules.state.pods.pod_entry import Home, PodEntry
from kaicore.rules.state.registries.policy_inputs import PolicyInputs
from kaicore.rules.state.registries.provisioning_registry import ProvisioningRegistry
from kaicore.rules.state.registries.queue_registry import QueueRegistry
from kaicore.rules.state.shared_gpus import SharedGpus
from kaicore.rules.topology.book import TopologyBook
from kaicore.rules.topology.resolve import Resolver


class LogView(Protocol):
    """The position in the log, and what was counted up to it."""

    cluster: str

    @property
    def position(self) -> int: ...
    @property
    def recorded_at(self) -> int: ...
    @property
    def last_cycles(self) -> Mapping[str, tuple[str, int]]: ...
    @property
    def quarantined(self) -> Mapping[int, QuarantinedEvent]: ...
    @property
    def counters(self) -> Counters: ...
    @property
    def misses(self) -> PredictionMisses: ...
    def config(self) -> EngineConfig: ...


class PodsView(LogView, Protocol):
    """The pods and their classes."""

    @property
    def pods(self) -> Mapping[str, PodEntry]: ...
    @property
    def waiting(self) -> Set[str]: ...
    @property
    def nominated(self) -> Set[str]: ...
    @property
    def misaligned(self) -> Set[str]: ...
    @property
    def shared_gpus(self) -> SharedGpus: ...
    @property
    def classes(self) -> Mapping[str, PodClass]: ...
    def class_of(self, entry: PodEntry) -> PodClass: ...
    def queue_of(self, entry: PodEntry) -> tuple[str, str]: ...


class FleetView(PodsView, Protocol):
    """The nodes, what pods hold of them, and the rules of which pod may go to which."""

    @property
    def columns(self) -> NodeColumns: ...
    @property
    def charges(self) -> NodeCharges: ...
    @property
    def constraints(self) -> ClusterConstraints: ...
    @property
    def reservations(self) -> Mapping[str, NodeReservation]: ...
    @property
    def rejections(self) -> RejectionIndex: ...
    @property
    def node_readiness(self) -> NodeReadiness: ...
    @property
    def network_topologies(self) -> TopologyBook: ...
    @property
    def node_trials(self) -> NodeTrials: ...


class WorkView(PodsView, Protocol):
    """The groups of pods, and why they wait."""

    @property
    def groups(self) -> Mapping[str, Group]: ...
    @property
    def group_table(self) -> GroupTable: ...
    @property
    def workload_index(self) -> WorkloadIndex: ...
    @property
    def priority_classes(self) -> Mapping[str, PriorityClassObserved]: ...
    @property
    def reasons(self) -> RecordedReasons: ...
    @property
    def shadows(self) -> ShadowBook: ...


class QueuesView(PodsView, Protocol):
    """The queues, and what their pods use."""

    @property
    def queues(self) -> Mapping[str, Queue]: ...
    @property
    def queue_registry(self) -> QueueRegistry: ...
    def queue_accounts(self, config: EngineConfig, *, now: int) -> QueueAccounts: ...


class ClusterView(FleetView, WorkView, QueuesView, Protocol):
    """Nodes, groups and queues: all that answers and pages are about."""

    @property
    def topology_resolver(self) -> Resolver: ...


class CycleView(ClusterView, Protocol):
    """All that a cycle decides by."""

    @property
    def revision(self) -> int: ...
    @property
    def versions(self) -> Mapping[str, int]: ...
    @property
    def configs(self) -> Mapping[str, dict[str, object]]: ...
    @property
    def replicas(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def group_owners(self) -> GroupOwners: ...
    @property
    def resting(self) -> RestingGroups: ...
    @property
    def policy_inputs(self) -> PolicyInputs: ...
    @property
    def provisioning(self) -> ProvisioningRegistry: ...
    @property
    def repairs(self) -> RepairLedger: ...
    @property
    def recent_work(self) -> RecentWork: ...
    @property
    def run_times(self) -> RunTimes: ...
    @property
    def gpu_use(self) -> GpuUse: ...
    @property
    def early_releases(self) -> EarlyReleases: ...
    @property
    def moved_at(self) -> Mapping[str, int]: ...
    @property
    def moved_pods(self) -> Mapping[int, int]: ...
    @property
    def freed_at(self) -> Mapping[str, int]: ...
    def failures_left(self, pod: Pod) -> FailuresLeft | None: ...
    def homes_to_keep(self, *, now: int, patience_us: int) -> Iterator[Home]: ...
