"""The face of policies: rules of an operator that filter and score nodes, order and hold groups, and choose victims.

A policy is a class in a Python file of its own, or of a package's entry point `kai_ledger.policies`. It derives from
`Policy`, has a name and a version, and defines the points that it wants; the other points stay as they are. A point is
a pure function of its facts. It reads no clock, file, network or random number. What it needs from outside comes as a
recorded fact (`kai policy input`; `Nodes.inputs`, `Facts.inputs`), so that a replay has it too.

    class SpotLast(Policy):
        name, version = "spot-last", "1"

        class Arguments(NoArguments):
            weight: int = 500

        def score(self, nodes, work, facts):
            return np.where(nodes.labels("cloud.example/spot") == "true", 0, self.arguments.weight)

Vectors have one element per node, in the order of `Nodes.names`; an answer must not depend on that order. Amounts are
integers in the units of the log: CPU in thousandths, memory and other bytes in bytes, all else in pieces. GPUs of work,
groups and queues are in thousandths of one, so that shares add up. Times are microseconds since the epoch.

Points about nodes answer for all of them at once, for there are thousands. Points about groups and queues answer for
one: that is simpler to write, and five policies about 1,000 groups took 21 of a cycle's 1,325 ms (`bench policies`).

A policy is trusted code of the operator; it runs in the scheduler's process. What raises, answers with another shape or
range, changes what it was given, or takes too long, is left out of that cycle. No policy can place a pod that the fixed
rules refuse.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

#: A vector of integers, of truth values, or of texts.
Ints: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]
Texts: TypeAlias = npt.NDArray[np.str_]
#: A fact from outside.
Input: TypeAlias = int | str

#: The highest score, and the highest extra cost of a victim.
MOST = 1000
#: Names of resources.
CPU, MEMORY, GPU = "cpu", "memory", "nvidia.com/gpu"


def is_device(resource: str) -> bool:
    """Tell whether a resource is one that Kubernetes does not define itself, such as a GPU."""
    return "/" in resource and "kubernetes.io/" not in resource


class Point(StrEnum):
    """The points of a policy, by the names of the methods that define them."""

    FILTER = "filter"
    SCORE = "score"
    ORDER = "order"
    ORDER_QUEUE = "order_queue"
    VICTIMS = "victims"
    ADMIT = "admit"


class PolicyBand(StrEnum):
    """The bands of the score table, the most important first.

    Policies fill `PREFERRED`, which is below the pods' own preferences, alone. The others replace the built-in rule of
    the band (`kaicore.rules.engine.policies.builtin`), and may answer as far as the band reaches: -9,000 to 9,000 for
    `FULL`, -3,095 to 1,000 for `ROOM_TAKEN`, -1 to 100 for `ZONES`; `kai policy list` has the rest.
    """

    PREFERRED = "preferred"
    LEAVES_DEVICES = "leaves_devices"
    AVOIDED = "avoided"
    KEEPS_POLICY = "keeps_policy"
    TURN = "turn"
    ZONES = "zones"
    ROOM_TAKEN = "room_taken"
    OPENED = "opened"
    FULL = "full"


class NodeFinding(StrEnum):
    """A figure that the engine finds for each node about some work, as far as a policy declares it (`Nodes.found`).

    - `ZONES`: how well the zones serve a pod, -1 to 100 (`numa_scoring`); -1 where nothing of it is bound to zones.
    - `KEEPS_POLICY`: 1 where the kubelet keeps the pods' own NUMA policy, or they have none.
    - `ROOM_TAKEN`: the room for recent work that a pod with devices takes, in hundredths of a device.
    - `PARTS`: what the GPUs of a share cost; the better they fit, the less. `OPENED`: how many are opened for it.
    - `FREE_PARTS`: what is free of GPUs that are opened for sharing, in whole GPUs.
    - `CLAIMABLE`: the devices for resource claims. `FREE_CLAIMABLE`: those that no claim has.
    - `TURN`: how many other replicas of the shard take the node first.
    - `AVOIDED`: 1 where pods of the class had to leave, for their zones were not right.
    """

    ZONES = "zones"
    KEEPS_POLICY = "keeps_policy"
    ROOM_TAKEN = "room_taken"
    PARTS = "parts"
    OPENED = "opened"
    FREE_PARTS = "free_parts"
    CLAIMABLE = "claimable"
    FREE_CLAIMABLE = "free_claimable"
    TURN = "turn"
    AVOIDED = "avoided"


class PastUse(StrEnum):
    """The past use that a policy looks at, folded from the log.

    `OWNER`: `used_gpu_seconds` counts pods of the group that have ended, too. `NAMESPACE`: `namespace_use`. `QUEUE`:
    `Queue.past_use`. Use of the hours of the shard's `fair_share` window counts, by its half-life.
    """

    OWNER = "owner"
    NAMESPACE = "namespace"
    QUEUE = "queue"


class NoArguments(BaseModel):
    """The arguments of a policy that has none, and the base class of those that it has: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Undeclared(LookupError):
    """A policy asked for something that it did not declare."""


class Nodes:
    """The nodes of a cluster as columns, one row per node; nothing of them can be changed.

    Attributes:
        names: of the nodes, by row.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        labels: Mapping[str, Texts] | None = None,
        allocatable: Mapping[str, Ints] | None = None,
        used: Mapping[str, Ints] | None = None,
        pods: Mapping[str, Ints] | None = None,
        inputs: Mapping[str, Mapping[str, Input]] | None = None,
        found: Mapping[str, Ints] | None = None,
        made: dict[tuple[object, ...], Any] | None = None,
        numbered: Callable[[str], tuple[Texts, Ints]] | None = None,
    ) -> None:
        """Args:
        names: of the nodes.
        labels: by key, the values by row, empty where a node has no such label; those that the policy declares.
        allocatable: by resource, what each node offers.
        used: by resource, what is charged to each node.
        pods: by namespace, how many pods are charged to each node; None where the policy does not declare `tenants`.
        inputs: by name, the facts from outside by the node's name; those that the policy declares.
        found: by name, the findings about the work that is asked about; those that the policy declares.
        made: takes up what is worked out of labels and inputs, for the next question about the same nodes.
        numbered: returns what `domains` does, faster than by sorting the labels.
        """
        self.names = tuple(names)
        self._labels, self._allocatable, self._used = labels or {}, allocatable or {}, used or {}
        self._pods, self._inputs, self._found = pods, inputs or {}, found or {}
        self._made: dict[tuple[object, ...], Any] = {} if made is None else made
        self._numbered = numbered

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self.names)

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources that any node offers or pods ask for, by name."""
        return tuple(sorted(self._allocatable))

    def labels(self, key: str) -> Texts:
        """Return each node's value of a label, empty without the label.

        Raises:
            Undeclared: the label is not in `Policy.node_labels`.
        """
        if key not in self._labels:
            raise Undeclared(f"node label {key}: is not in node_labels")
        return _read_only(self._labels[key])

    def domains(self, key: str) -> tuple[Texts, Ints]:
        """Return the values that a label has, in order, and by node the place of its own among them.

        The empty value stands for nodes without the label. It is worked out once in a cycle, as sums by rack need it.

        Raises:
            Undeclared: the label is not in `Policy.node_labels`.
        """
        labels, of = self.labels(key), ("domains", key)
        if of not in self._made:
            known = self._numbered
            values, places = np.unique(labels, return_inverse=True) if known is None else known(key)
            self._made[of] = _read_only(values), _read_only(places)
        values, places = self._made[of]
        return values, places

    def allocatable(self, resource: str) -> Ints:
        """Return how much of a resource each node offers, 0 for a resource that no node has."""
        return self._amounts(self._allocatable, resource)

    def used(self, resource: str) -> Ints:
        """Return how much of a resource is charged to each node."""
        return self._amounts(self._used, resource)

    def free(self, resource: str) -> Ints:
        """Return how much of a resource is free on each node; negative where more is charged than there is."""
        return _read_only(self.allocatable(resource) - self.used(resource))

    def pods_of(self, namespace: str) -> Ints:
        """Return how many pods of a namespace are charged to each node.

        Raises:
            Undeclared: the policy does not declare `tenants`.
        """
        if self._pods is None:
            raise Undeclared("pods by namespace: tenants is not True")
        return self._amounts(self._pods, namespace)

    def inputs(self, name: str, default: Input = 0) -> npt.NDArray[Any]:
        """Return the fact of a name that was recorded for each node: integers or texts, as the default is.

        Args:
            name: one of `Policy.inputs`.
            default: for nodes without such a fact, and with one of the other type.

        Raises:
            Undeclared: the name is not in `Policy.inputs`.
        """
        if name not in self._inputs:
            raise Undeclared(f"input {name}: is not in inputs")
        of_nodes, kind = self._inputs[name], type(default)
        if (of := ("inputs", name, kind, default)) not in self._made:
            values = [value if isinstance(value := of_nodes.get(node), kind) else default for node in self.names]
            self._made[of] = _read_only(np.array(values, np.int64 if kind is int else np.str_))
        vector: npt.NDArray[Any] = self._made[of]
        return vector

    def found(self, finding: NodeFinding) -> Ints:
        """Return what the engine finds for each node about the work that is asked about.

        Raises:
            Undeclared: the finding is not in `Policy.findings`.
        """
        if finding not in self._found:
            raise Undeclared(f"finding {finding}: is not in findings")
        return _read_only(self._found[finding])

    def _amounts(self, amounts: Mapping[str, Ints], name: str) -> Ints:
        return _read_only(amounts[name] if name in amounts else np.zeros(len(self.names), np.int64))


def _read_only(vector: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = vector.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The pods of one class, queue and namespace, that are to be placed.

    Attributes:
        namespace: of the pods.
        queue: of their group.
        priority: of their group.
        preemptible: whether they may be evicted for others.
        requests: what one pod takes of a node, by resource.
        gpus: that one pod asks for, in thousandths; of a share by memory, 0.
        shares_gpu: whether it asks for parts of GPUs.
        claims: devices that a pod's resource claims ask for, where nodes have such devices.
        labels: those that the policy declares in `pod_labels` and the pods have.
        annotations: those that it declares in `pod_annotations` and the pods have.
    """

    namespace: str = ""
    queue: str = ""
    priority: int = 0
    preemptible: bool = True
    requests: Mapping[str, int] = field(default_factory=dict)
    gpus: int = 0
    shares_gpu: bool = False
    claims: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[str, ...]:
        """The resources of the requests that are devices; GPUs where it asks for parts of them."""
        return (GPU,) if self.shares_gpu else tuple(filter(is_device, self.requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """The pods of a group that wait, or those that run.

    Attributes:
        key: of the group.
        namespace: of the group.
        queue: of the group.
        priority: of the group.
        pods: how many there are.
        gpus: that they ask for or hold together, in thousandths.
        labels: of the first of these pods by name, those that the policy declares in `pod_labels`.
        annotations: of that pod, those that it declares in `pod_annotations`.
        used_gpu_seconds: that its pods which run now have had so far; with `PastUse.OWNER` also those that have ended.
        namespace_use: past use of its namespace, in millionths of the cluster's GPUs; with `PastUse.NAMESPACE`, else 0.
    """

    key: str = ""
    namespace: str = ""
    queue: str = ""
    priority: int = 0
    pods: int = 1
    gpus: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    used_gpu_seconds: int = 0
    namespace_use: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(_Group):
    """A group with pods that wait; `pods` and what follows are of these.

    Attributes:
        created_us: when it was created.
        waited_us: for how long it has waited.
    """

    created_us: int = 0
    waited_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue and its GPUs, in thousandths.

    Attributes:
        name: of the queue.
        quota: that it deserves; -1 for all that there is.
        used: by its pods as the cycle begins.
        fair_share: that the cycle gives it.
        past_use: its use of the past and that of queues below it, in millionths of the cluster's GPUs; with
            `PastUse.QUEUE`, else 0.
    """

    name: str = ""
    quota: int = 0
    used: int = 0
    fair_share: int = 0
    past_use: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Running(_Group):
    """A running group that may give up pods; `pods` and what follows are of those that run.

    Attributes:
        running_us: since its first pod runs.
        lost_us: of work that its pods lose if they go, the longest of them: since its last checkpoint, or its start.
    """

    running_us: int = 0
    lost_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of a cycle.

    Attributes:
        now_us: the cycle's clock.
        inputs: the facts from outside that are of no node, by name; those that the policy declares.
    """

    now_us: int = 0
    inputs: Mapping[str, Input] = field(default_factory=dict)

    def input(self, name: str, default: Any = 0) -> Any:
        """Return the fact of a name; the default where there is none, or one of the other type."""
        value = self.inputs.get(name)
        return value if isinstance(value, type(default)) else default


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer of `Policy.admit` for a group that is not to start yet.

    Attributes:
        reason: a short text for people.
        until_us: when the group is looked at again, at the latest; 0 for with the next cycle.
    """

    reason: str
    until_us: int = 0


class Policy:
    """A rule of an operator. A class of its own derives from this one and defines the points that it wants.

    Attributes:
        name: of the policy; lower case, digits and `-`.
        version: of the policy, for people; its code is known by the digest of its source.
        node_labels: keys of nodes' labels that it looks at.
        pod_labels: keys of pods' labels that it looks at.
        pod_annotations: keys of pods' annotations that it looks at; of those that the watcher keeps.
        inputs: names of facts from outside that it looks at.
        history: past use that it looks at, of `PastUse`.
        tenants: whether it asks which namespaces have pods on a node.
        findings: figures of `NodeFinding` that it looks at.
        reason: for the nodes that `filter` refuses; a short text for people.
        band: that `score` fills.
        live: whether nodes are filtered and scored again once the cycle has charged pods to any of them; otherwise
            once per class and cycle.
        within: for a live one, the nodes that charges to one of them make it ask again about: those with the same value
            of this label, which is one of `node_labels`; empty for the node alone, None for all nodes.
        order_before_priority: whether `order` decides before the groups' priorities, or among those of one priority.
        arguments: as the operator's settings give them.
    """

    name: ClassVar[str] = ""
    version: ClassVar[str] = ""
    node_labels: ClassVar[tuple[str, ...]] = ()
    pod_labels: ClassVar[tuple[str, ...]] = ()
    pod_annotations: ClassVar[tuple[str, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ()
    history: ClassVar[tuple[PastUse | str, ...]] = ()
    tenants: ClassVar[bool] = False
    findings: ClassVar[tuple[NodeFinding | str, ...]] = ()
    reason: ClassVar[str] = ""
    band: ClassVar[PolicyBand | str] = PolicyBand.PREFERRED
    live: ClassVar[bool] = False
    within: ClassVar[str | None] = None
    order_before_priority: ClassVar[bool] = False

    class Arguments(NoArguments):
        """The policy's arguments, with their types and defaults; a class of its own replaces this one."""

    def __init__(self, arguments: BaseModel | None = None) -> None:
        """Args:
        arguments: an `Arguments` of the class; None for all defaults.

        Raises:
            pydantic.ValidationError: None is given, and an argument has no default.
        """
        self.arguments: Any = self.Arguments() if arguments is None else arguments

    @classmethod
    def points(cls) -> frozenset[Point]:
        """Return the points that the policy defines."""
        return frozenset(point for point in Point if getattr(cls, point) is not getattr(Policy, point))

    def filter(self, nodes: Nodes, work: Work, facts: Facts) -> Flags:
        """Return which nodes may take a pod of some work, of those that the fixed rules let take it."""
        raise NotImplementedError

    def score(self, nodes: Nodes, work: Work, facts: Facts) -> Ints:
        """Return how well each node suits a pod of some work; higher is better. 0 to `MOST`, or as the band reaches."""
        raise NotImplementedError

    def order(self, group: Waiting, queue: Queue, facts: Facts) -> int:
        """Return the place of a group among the groups of its queue; lower comes first. Of 64 bits, with sign."""
        raise NotImplementedError

    def order_queue(self, queue: Queue, facts: Facts) -> int:
        """Return the place of a queue among its siblings that are equal in fair share, quota and priority.

        Lower comes first. Of 64 bits, with sign. Queues for which the policy does not decide have 0.
        """
        raise NotImplementedError

    def victims(self, running: Running, facts: Facts) -> int:
        """Return the extra cost of taking pods from a group, 0 to `MOST`; it decides among equal priorities."""
        raise NotImplementedError

    def admit(self, group: Waiting, queue: Queue, facts: Facts) -> Hold | None:
        """Return why a group may not start yet; None where it may."""
        raise NotImplementedError
