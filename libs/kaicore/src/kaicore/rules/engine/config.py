"""Settings of an operator about decisions. They are recorded in full, so that every cycle can be run again.

Those of a policy are recorded with the digest of its source. So a cycle's record, which names its configuration, names
the code as well.
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Self

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.model.gpu_share import RESERVATION_NAMESPACE
from kaicore.rules.model.node import TopologyPolicy, TopologyScope
from kaicore.rules.model.queue import NODE_POOL_LABEL
from kaicore.rules.numa.kubelet.settings import KubeletSettings
from kaicore.rules.numa.kubelet.versions import GATES, versioned_model
from kaicore.rules.numa.scoring import NumaScoring, ScoringStrategy
from kaicore.rules.queues.division import FairShareConfig
from kaicore.rules.topology.placing.request import TopologyStrategy


class PolicyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `policies` in a shard's settings: a file, or the name of an entry point.

    Attributes:
        file: path of a Python file, from the folder of the settings; empty for an entry point.
        name: of an entry point of `kai_ledger.policies`; empty for a file.
        arguments: for the policy, by name.
        queues: for which it decides; empty for all.
    """

    file: str = ""
    name: str = ""
    arguments: dict[str, object] = {}
    queues: tuple[str, ...] = ()


class PolicySetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One policy of a shard; made by the loader (`kaicore.runtime.policies.loading`) and not by hand.

    Attributes:
        name: of the policy.
        version: of the policy, for people.
        digest: of its source, SHA-256 in hexadecimal digits.
        arguments: as plain data, defaults included.
        queues: for which it decides; empty for all.
        points: which points it defines (`kaicore.policy.Point`), sorted.
        pod_labels: keys of pods' labels that it looks at.
        pod_annotations: keys of pods' annotations that it looks at.
        tenants: whether it asks which namespaces have pods on a node.
    """

    name: str
    version: str
    digest: str
    arguments: dict[str, object] = {}
    queues: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()
    tenants: bool = False

    @property
    def places(self) -> bool:
        """True if it has a say about which nodes pods get."""
        return "filter" in self.points or "score" in self.points

    def decides_for(self, queue: str) -> bool:
        """Tell whether it decides about the work of a queue."""
        return not self.queues or queue in self.queues


#: Version of the rules; raised by every change that can make a cycle decide otherwise.
ENGINE_VERSION = "32"

#: A day, in microseconds.
DAY_US = 86_400_000_000
#: Work of more days is not kept.
MOST_RECENT_DAYS = 30


class PlacementStrategy(StrEnum):
    """The order of preference among the nodes that can take a pod."""

    BINPACK = "binpack"
    SPREAD = "spread"


class Evaluator(StrEnum):
    """The rule that predicts the admissions of kubelets."""

    KUBELET = "kubelet"
    COUNTING = "counting"


class KubeletOverride(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of some nodes' kubelets, where they do not publish them, or not rightly.

    Attributes:
        match_labels: the nodes that have all these labels.
        topology_policy: Topology Manager policy.
        topology_scope: Topology Manager scope.
        topology_options: names of the Topology Manager options that are on, such as `prefer-closest-numa-nodes`.
        cpu_manager: whether the CPU manager's policy is `static`.
        cpu_options: names of the CPU manager options that are on, such as `full-pcpus-only`.
        threads_per_core: CPUs per core.
        zones_per_socket: zones per socket, which `align-by-socket` needs to know.
        memory_manager: whether the memory manager's policy is `Static`.
        version: the version with the rules that they follow, such as `1.36`, whatever they report.
        feature_gates: by name, which of the feature gates that matter here (`kubelet_versions.GATES`) are on or off.
    """

    match_labels: dict[str, str] = {}
    topology_policy: TopologyPolicy | None = None
    topology_scope: TopologyScope | None = None
    topology_options: tuple[str, ...] | None = None
    cpu_manager: bool | None = None
    cpu_options: tuple[str, ...] | None = None
    threads_per_core: Annotated[int, msgspec.Meta(ge=1, le=8)] | None = None
    zones_per_socket: Annotated[int, msgspec.Meta(ge=1, le=64)] | None = None
    memory_manager: bool | None = None
    version: Annotated[str, msgspec.Meta(pattern=r"^v?1\.[0-9]{1,4}($|[^0-9])")] | None = None
    feature_gates: dict[str, bool] | None = None

    def __post_init__(self) -> None:
        """Raises: ValueError: a feature gate is none that matters here."""
        for name in self.feature_gates or ():
            if name not in GATES:
                known = ", ".join(GATES)
                raise ValueError(f"feature_gates[{name}]: must be one of {known}")

    def applied(self, settings: KubeletSettings) -> KubeletSettings:
        """Return settings with what this says of them."""
        options = (self.topology_options, self.cpu_options)
        topology_options, cpu_options = (None if names is None else frozenset(names) for names in options)
        overridden = {
            "policy": self.topology_policy,
            "scope": self.topology_scope,
            "topology_options": topology_options,
            "static_cpu": self.cpu_manager,
            "cpu_options": cpu_options,
            "threads_per_core": self.threads_per_core,
            "threads_known": None if self.threads_per_core is None else True,
            "zones_per_socket": self.zones_per_socket,
            "static_memory": self.memory_manager,
            "minor": None if self.version is None else versioned_model(self.version).minor,
        }
        if self.feature_gates is not None:
            on = frozenset(name for name, is_on in self.feature_gates.items() if is_on)
            off = frozenset(self.feature_gates) - on
            overridden |= {"gates_on": settings.gates_on - off | on, "gates_off": settings.gates_off - on | off}
        return msgspec.structs.replace(
            settings, **{name: value for name, value in overridden.items() if value is not None}
        )


class Backfill(StrEnum):
    """The work that may start before a group that came first and does not fit (decision 0660).

    `OFF`: all that fits. `EASY`: what does not delay the first such group that is owed its room, of groups of several
    pods and of pods that have waited for long. `CONSERVATIVE`: what delays none of the first such groups
    (`most_promises`).
    """

    OFF = "off"
    EASY = "easy"
    CONSERVATIVE = "conservative"


class PriorityAging(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The growth of groups' priority while they wait (asked for in KAI-Scheduler's issue 1970).

    It only decides who comes first: what may be evicted for a group goes by the group's own priority.

    Attributes:
        queue: the queue of the groups; empty for all queues that no other entry names.
        every_us: how long a group waits for each step, microseconds.
        step: how much its priority grows each time.
        most: how much it grows at most.
    """

    queue: str = ""
    every_us: Annotated[int, msgspec.Meta(gt=0)] = 3_600_000_000
    step: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 1
    most: Annotated[int, msgspec.Meta(ge=0, le=2**31)] = 10

    def gained(self, waited_us: int) -> int:
        """Return how much the priority of a group has grown that has waited for so many microseconds."""
        return min(max(waited_us, 0) // self.every_us * self.step, self.most)


class Action(StrEnum):
    """The actions of a cycle, one after the other.

    `ALLOCATE` starts what fits. `CONSOLIDATE` moves running pods so that something fits; each of them fits elsewhere.
    `RECLAIM` takes back what other queues use beyond their share. `PREEMPT` makes way for higher priority in the same
    queue. `STALE_GANG` ends gangs that have been below their minimum for too long.
    """

    ALLOCATE = "allocate"
    CONSOLIDATE = "consolidate"
    RECLAIM = "reclaim"
    PREEMPT = "preempt"
    STALE_GANG = "stale-gang"


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of one scheduling shard.

    Attributes:
        scheduler_name: pods with this `spec.schedulerName` are ours.
        numa: whether NUMA zones are looked at at all.
        ignore_list: resources that zones report but the kubelets do not align (KAI-Scheduler v0.17: `ignoreList`).
        kubelets: settings of kubelets that they do not publish; of several that match a node, each is applied.
        evaluator: `kubelet` predicts exactly; `counting` is one rule for all, kept to compare with.
        reconstruct_available: free is allocatable less known placements (`kaicore.rules.numa.columns`); otherwise the
            exporter's figure.
        wait_for_observation: pods that are bound to zones keep off nodes where nothing tells what some pod holds.
        placement_strategy: see `PlacementStrategy`; of pods that ask for devices, and of the others unless they have
            one of their own.
        cpu_placement_strategy: of pods that ask for no device; None for the same.
        recent_work_days: pods with devices keep off nodes that work of so many last days would miss most
            (`kaicore.rules.engine.placement.room_for_work`); 0 for off.
        bind_backoff_us: how long a pod waits after its first failed bind; doubles with each further one.
        bind_backoff_max_us: the longest such wait.
        numa_scoring: which nodes are preferred for their zones, before `placement_strategy` is asked.
        unobserved_after_us: a pod that runs for longer without an observation is a sign of a sick exporter.
        repair: whether pods that ask for it are placed anew when their own NUMA policy was missed.
        repair_after_us: how long a miss must stand before anything is done about it.
        repair_backoff_us: least time between two repairs among the alike pods of one owner; doubles with each, and with
            each eviction of a pod that failed.
        repair_backoff_max_us: the longest such time.
        fair_share: fairness between queues.
        actions: what a cycle does, in this order.
        consolidate_groups: how many running groups may be moved so that one can start; 0 for none.
        consolidate_cooldown_us: how long a group that was moved is not moved again; a day at most.
        consolidate_win_us: so much GPU time is won by each GPU that starts, and pods are moved if they lose less work
            than that (`kaicore.rules.engine.victims.room`); 0 where sizes are compared instead.
        consolidate_pods_per_day: so many pods are moved at most within 24 hours, counted by hours that have begun, of
            all shards; 0 for as many as pay.
        consolidate_from_per_cent: pods are moved only where so many per cent of the GPUs of ready nodes are held, for
            later work often takes what is stranded before that.
        consolidate_bare_pods: whether pods without a controller are moved too, which are not made again.
        staleness_grace_us: how long a gang may be below its minimum, where its group does not say; negative for ever.
        nomination_us: how long room is reserved for a pod while its victims do not go.
        replace_failed_nodes: whether pods on failed nodes are placed anew beside the others of their group, for groups
            with a topology constraint (Kueue's gate TASFailedNodeReplacement).
        replace_on_pod_termination: whether a node that is not ready has failed as soon as pods of the group are
            terminating there or have ended, and not before (TASReplaceNodeOnPodTermination). So has then a node with a
            taint that such pods do not tolerate, or a cordoned one.
        replace_fail_fast: whether a group is evicted as a whole where there is no other place for its pods
            (TASFailedNodeReplacementFailFast).
        node_not_ready_us: how long a node must have been not ready to have failed, where terminating pods do not count.
        recheck_us: how long nothing may happen until a cycle is run all the same, while pods wait.
        search_steps: how many times a cycle tries whether a node fits with some of its pods gone, at most; a search may
            use half of the rest.
        topology_strategy: which domains of a network topology are preferred, for groups that ask for any.
        node_pool: of nodes, groups and queues, only those with this value of the label are this shard's; with the empty
            one, those without the label; None for all.
        node_pool_label: the label's key (KAI-Scheduler: `--nodepool-label-key`); queues always have the default one.
        provisioning: whether and how nodes are asked for, for groups that need new ones.
        priority_aging: see `PriorityAging`; none for priorities that stay as they are.
        backfill: see `Backfill`.
        most_promises: to how many groups a start is promised at once, where backfill is conservative.
        run_time_per_cent: a pod without a declared limit is expected to run for as long as this part of the last runs
            like its own; 0 for not to expect anything.
        promise_alone_after_us: a pod that starts alone is promised a start, as a gang is, once it has waited for so
            long; 0 for never.
        hold_after_us: for a group that waits for pods without a declared limit, room is held once it is so old.
        hold_us: such room is held for so long at most, and then not for the same group for as long again.
        gpu_sharing: whether pods get shares of GPUs; without, pods that ask for one wait.
        gpu_reservation_namespace: the namespace of the pods that hold GPUs that are opened for sharing.
        suspect_after: a node is suspect for a kind of work after so many failures in a row that do not follow the work;
            0 for never (`kaicore.rules.deciding.suspects`).
        suspect_probe_us: how long until a suspect node gets its first probe; doubles with each that fails, to a day.
        suspect_per_cent: of the nodes, so many at most are suspect for all of a kind of work; one in any case.
        policies: the operator's own rules (`kaicore.policy`), in this order.
    """

    scheduler_name: str = "kai-ledger"
    numa: bool = True
    ignore_list: tuple[str, ...] = ()
    kubelets: tuple[KubeletOverride, ...] = ()
    evaluator: Evaluator = Evaluator.KUBELET
    reconstruct_available: bool = True
    wait_for_observation: bool = False
    placement_strategy: PlacementStrategy = PlacementStrategy.BINPACK
    cpu_placement_strategy: PlacementStrategy | None = None
    recent_work_days: Annotated[int, msgspec.Meta(ge=0, le=MOST_RECENT_DAYS)] = 7
    bind_backoff_us: int = 1_000_000
    bind_backoff_max_us: int = 300_000_000
    numa_scoring: NumaScoring = NumaScoring()
    unobserved_after_us: int = 120_000_000
    repair: bool = True
    repair_after_us: int = 10_000_000
    repair_backoff_us: int = 60_000_000
    repair_backoff_max_us: int = 3_600_000_000
    fair_share: FairShareConfig = FairShareConfig()
    actions: tuple[Action, ...] = tuple(Action)
    consolidate_groups: int = 16
    consolidate_cooldown_us: Annotated[int, msgspec.Meta(ge=0, le=DAY_US)] = 600_000_000
    consolidate_win_us: Annotated[int, msgspec.Meta(ge=0, le=MOST_RECENT_DAYS * DAY_US)] = 0
    consolidate_pods_per_day: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    consolidate_from_per_cent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    consolidate_bare_pods: bool = False
    staleness_grace_us: int = 60_000_000
    nomination_us: int = 600_000_000
    replace_failed_nodes: bool = True
    replace_on_pod_termination: bool = True
    replace_fail_fast: bool = True
    node_not_ready_us: Annotated[int, msgspec.Meta(ge=0, le=DAY_US)] = 30_000_000
    recheck_us: int = 30_000_000
    search_steps: int = 200_000
    topology_strategy: TopologyStrategy = TopologyStrategy.BEST_FIT
    provisioning: ProvisioningConfig = ProvisioningConfig()
    node_pool: str | None = None
    node_pool_label: str = NODE_POOL_LABEL
    priority_aging: tuple[PriorityAging, ...] = ()
    backfill: Backfill = Backfill.EASY
    most_promises: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    run_time_per_cent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    promise_alone_after_us: Annotated[int, msgspec.Meta(ge=0)] = 14_400_000_000
    hold_after_us: Annotated[int, msgspec.Meta(ge=0)] = 10_800_000_000
    hold_us: Annotated[int, msgspec.Meta(ge=0)] = DAY_US
    gpu_sharing: bool = False
    gpu_reservation_namespace: str = RESERVATION_NAMESPACE
    suspect_after: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3
    suspect_probe_us: Annotated[int, msgspec.Meta(ge=1_000_000, le=DAY_US)] = 7_200_000_000
    suspect_per_cent: Annotated[int, msgspec.Meta(ge=0, le=50)] = 25
    policies: tuple[PolicySetting, ...] = ()

    @property
    def policies_place(self) -> bool:
        """True if any policy has a say about which nodes pods get."""
        return any(one.places for one in self.policies)

    def in_pool(self, labels: Mapping[str, str]) -> bool:
        """Tell whether what has these labels is this shard's, by its node pool."""
        return self.node_pool is None or labels.get(self.node_pool_label, "") == self.node_pool

    def priority_gained(self, queue: str, waited_us: int) -> int:
        """Return how much the priority of a queue's group has grown that has waited for so many microseconds."""
        by_queue = {one.queue: one for one in self.priority_aging}
        aging = by_queue.get(queue) or by_queue.get("")
        return aging.gained(waited_us) if aging is not None else 0

    def strategy(self, *, devices: bool) -> PlacementStrategy:
        """Return the strategy of pods that ask for devices, or of those that do not."""
        return self.placement_strategy if devices else self.cpu_placement_strategy or self.placement_strategy

    @classmethod
    def recorded(cls, document: Mapping[str, object]) -> Self:
        """Return the configuration that `document` made.

        Raises:
            msgspec.ValidationError: it is of a version with other settings.
        """
        return msgspec.convert({**_UNSAID, **current_names(document)}, cls)

    def document(self) -> dict[str, object]:
        """Return the configuration as plain data, for the log.

        A setting that came after logs were written stands in it only where it is not as it was before: so a
        configuration that says nothing of it keeps its digest. A renamed setting keeps its former name there.
        """
        document: dict[str, object] = msgspec.to_builtins(self)
        for name in _LATER:
            if document[name] == _UNSAID[name]:
                del document[name]
        return {_FORMER.get(name, name): value for name, value in document.items()}

    def digest(self) -> str:
        """Identify the configuration."""
        return sha256(msgspec.json.encode(self.document(), order="deterministic")).hexdigest()[:16]


#: Settings that came after engine 15, and what a recorded configuration means that does not say them.
_LATER = (
    "recent_work_days",
    "topology_strategy",
    "replace_failed_nodes",
    "replace_on_pod_termination",
    "replace_fail_fast",
    "node_not_ready_us",
    "provisioning",
    "node_pool",
    "node_pool_label",
    "priority_aging",
    "backfill",
    "most_promises",
    "run_time_per_cent",
    "promise_alone_after_us",
    "hold_after_us",
    "hold_us",
    "consolidate_win_us",
    "consolidate_pods_per_day",
    "consolidate_from_per_cent",
    "gpu_sharing",
    "gpu_reservation_namespace",
    "suspect_after",
    "suspect_probe_us",
    "suspect_per_cent",
    "policies",
)
_UNSAID: dict[str, object] = {name: msgspec.to_builtins(getattr(EngineConfig(), name)) for name in _LATER}
_UNSAID |= {"backfill": Backfill.OFF.value, "promise_alone_after_us": 0, "hold_after_us": 0, "suspect_after": 0}

#: Former names of settings: they are still read, and they are the names in the log.
_FORMER = {
    "repair": "heal",
    "repair_after_us": "heal_after_us",
    "repair_backoff_us": "heal_backoff_us",
    "repair_backoff_max_us": "heal_backoff_max_us",
}
_CURRENT = {former: current for current, former in _FORMER.items()}
#: Words that YAML 1.1 reads as false where nobody quotes them, by setting.
_OFF = {"backfill": Backfill.OFF.value, "numa_scoring.strategy": ScoringStrategy.OFF.value}


def current_names(settings: Mapping[str, object]) -> dict[str, object]:
    """Return settings under their current names, with a bare `off` of YAML as the word that it stands for.

    Raises:
        ConfigurationError: one stands there under its current and its former name.
    """
    for former, current in _CURRENT.items():
        if former in settings and current in settings:
            raise ConfigurationError(f"{current} and {former} are one setting: give {current}")
    return {_CURRENT.get(name, name): _word(_CURRENT.get(name, name), value) for name, value in settings.items()}


def _word(name: str, value: object) -> object:
    if isinstance(value, dict):
        return {part: _word(f"{name}.{part}", of_part) for part, of_part in value.items()}
    return _OFF[name] if value is False and name in _OFF else value
