"""The changes of a what-if, applied to a window of history: the facts that they change, and checks of the names they
use.

A patch of a what-if over history: its changes, in the form that people write (docs/how-to/what-if.md).

Settings are changed as with `--set KEY=VALUE` (docs/reference/scheduler-settings.md). Three patches are ready: the
policies that the league measured as the best.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self

import msgspec
import yaml

from kaicore.analysis.trial.history.reading import History
from kaicore.errors import ConfigurationError
from kaicore.kube.normalize.node import normalize_node, normalize_topology
from kaicore.kube.wire.objects import NodeObject, TopologyObject
from kaicore.rules.engine.config import EngineConfig, PolicySetting, current_names
from kaicore.rules.engine.work.provisioning import ProvisioningConfig
from kaicore.rules.events import payloads
from kaicore.rules.events.payloads import Payload
from kaicore.rules.model.node import Node, NodeTopology, TopologyPolicy, TopologyScope
from kaicore.rules.model.quantity import parse_amount
from kaicore.rules.model.queue import Queue, QueueShare
from kaicore.rules.objects.mappings import Object
from kaicore.rules.state.snapshot import decode_state
from kaicore.rules.state.views import CycleView, FleetView
from kaicore.spelling import did_you_mean
from kaicore.yaml_text import fault_text, load_yaml

Settings = Mapping[str, object]


def read_setting(text: str) -> tuple[str, object]:
    """Read `KEY=VALUE`, the value as YAML. Raises ConfigurationError: it is none."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {text}: is no KEY=VALUE, such as numa=false")
    try:
        return key.strip(), load_yaml(value)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"--set {text}: {value!r} is no YAML") from error


def read_settings(texts: Sequence[str]) -> dict[str, object]:
    """Read several; of two for one key the last counts."""
    settings = dict(read_setting(text) for text in texts)
    applied(EngineConfig(), settings, where="--set")
    return settings


def other_rule(texts: Sequence[str]) -> Callable[[EngineConfig], EngineConfig] | None:
    """Return what makes a configuration of other settings, `KEY=VALUE`; None without any.

    Raises ConfigurationError: one is none.
    """
    settings = read_settings(texts)
    return (lambda config: applied(config, settings, where="--set")) if settings else None


def applied(config: EngineConfig, settings: Settings, *, where: str) -> EngineConfig:
    """Return a configuration with settings changed; parts of parts are `numa_scoring.strategy`.

    Raises ConfigurationError: there is no such setting, or it cannot have the value.
    """
    document: dict[str, Any] = msgspec.to_builtins(config)
    for key, value in current_names(settings).items():
        into, kind = document, EngineConfig
        *outer, last = key.split(".")
        for part in outer:
            kind = _part(kind, part, key, where)
            into = into.setdefault(part, {})
        _part(kind, last, key, where)
        into[last] = value
        try:
            msgspec.convert(document, EngineConfig)
        except (msgspec.ValidationError, ConfigurationError) as error:
            raise ConfigurationError(f"{where}: {key}: {error}: {value!r}") from error
    return msgspec.convert(document, EngineConfig)


def _part(kind: Any, name: str, key: str, where: str) -> Any:
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)} if is_struct else {}
    if name not in fields:
        close = did_you_mean(name, fields)
        raise ConfigurationError(f"{where}: {key}: there is no such setting{close}")
    return fields[name]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Part of a question or a patch."""


class PatchText(_Part, frozen=True, kw_only=True):
    """A patch as it is written (see the module), and what it is called where it says nothing."""

    name: str
    text: str

    @classmethod
    def of(cls, name: str, **document: object) -> Self:
        """Return a patch of a name, with the other fields of `Patch`."""
        return cls(name=name, text=msgspec.json.encode({"name": name, **document}).decode())


class HistoryQuestion(_Part, frozen=True, kw_only=True):
    """The question: window and alternatives.

    Attributes:
        since: the window's first event (`kaicore.analysis.replay.moments`); empty for the log's first.
        until: its last event; empty for the log's last.
        settings: `KEY=VALUE`, of every alternative.
        patches: one for each alternative; without any, `settings` are the only one.
        policies: the best policies are alternatives too (`kaicore.analysis.trial.history.alternative`).
    """

    since: str = msgspec.field(name="from", default="")
    until: str = msgspec.field(name="to", default="")
    settings: tuple[str, ...] = ()
    patches: tuple[PatchText, ...] = ()
    policies: bool = False


class NodesToAdd(_Part, frozen=True, kw_only=True):
    """Nodes that are there from the beginning on.

    Attributes:
        like: a node of the window that they copy.
        profile: or a profile of the simulated fleet: they are its nodes, one after the other.
        prefix: of their names; by default that of what they are like, and `new`.
    """

    like: str = ""
    profile: str = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    prefix: str = ""


class NodesToChange(_Part, frozen=True, kw_only=True):
    """Nodes that are another way from the beginning on.

    Attributes:
        nodes: names, with `*` and `?`; empty for all.
        match_labels: of these, those that have all these labels.
        topology_policy: of the Topology Manager.
        labels: to be set; null takes one off.
        unschedulable: cordoned, or not.
    """

    nodes: tuple[str, ...] = ()
    match_labels: dict[str, str] = {}
    topology_policy: TopologyPolicy | None = None
    topology_scope: TopologyScope | None = None
    labels: dict[str, str | None] = {}
    unschedulable: bool | None = None


class NodesPatch(_Part, frozen=True, kw_only=True):
    """The changes of nodes; `remove` has names, with `*` and `?`."""

    add: tuple[NodesToAdd, ...] = ()
    remove: tuple[str, ...] = ()
    change: tuple[NodesToChange, ...] = ()


class SharePatch(_Part, frozen=True, kw_only=True):
    """A queue's amounts of one resource; `unlimited` for no bound."""

    quota: str | int | None = None
    limit: str | int | None = None
    weight: Annotated[int, msgspec.Meta(ge=0)] | None = None


class QueuePatch(_Part, frozen=True, kw_only=True):
    """The changes of one queue; `resources` by name, such as `gpu`, `cpu`, `memory`."""

    parent: str | None = None
    priority: int | None = None
    resources: dict[str, SharePatch] = {}


class Patch(_Part, frozen=True, kw_only=True):
    """An alternative.

    Attributes:
        name: by which reports call it; the file's, where it has none.
        settings: of the scheduler, as `--set`.
        nodes: see `NodesPatch`.
        queues: by name, as the log has it: `team-a`, `ClusterQueue/team-a`.
        priorities: values of priority classes, by name.
        policies: added to the shard's, in place of one of the same name (`kai policy try` writes them).
    """

    name: str = ""
    settings: dict[str, object] = {}
    nodes: NodesPatch = NodesPatch()
    queues: dict[str, QueuePatch] = {}
    priorities: dict[str, int] = {}
    policies: tuple[PolicySetting, ...] = ()


def patch_of(text: str, *, where: str, name: str) -> Patch:
    """Read a patch. Raises ConfigurationError: naming where, the field, and what is wrong.

    Args:
        text: YAML, of which JSON is a part.
        name: that it has where it says none.
    """
    try:
        document = load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where}: {fault_text(error)}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{where}: a patch is a mapping of {', '.join(Patch.__struct_encode_fields__)}")
    try:
        patch = msgspec.convert(document, Patch)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{where}: {error}{_close(str(error))}") from error
    return patch if patch.name else msgspec.structs.replace(patch, name=name)


def _close(message: str) -> str:
    """Return what may have been meant by an unknown field."""
    before, field, _ = (*message.split("`"), "", "")[:3]
    if "unknown field" not in before:
        return ""
    parts = (Patch, NodesPatch, NodesToAdd, NodesToChange, QueuePatch, SharePatch)
    return did_you_mean(field, {name for part in parts for name in part.__struct_encode_fields__})


_HOUR_US = 3_600_000_000

#: Placement of all three: pods with devices leave room for the work of the last week.
_PLACEMENT: Mapping[str, object] = {"placement_strategy": "binpack", "recent_work_days": 7}


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """A policy: its settings, and the clusters for which it measured best.

    Attributes:
        name: of its column in a report.
        meaning: what it does, in a few words.
        settings: of the scheduler, as `--set` has them.
    """

    name: str
    meaning: str
    settings: Mapping[str, object]

    def patch(self) -> PatchText:
        """Return it as an alternative of a question."""
        return PatchText.of(self.name, settings={**_PLACEMENT, **self.settings})


#: The first two differ in what may start before the oldest group that waits; the third also moves running pods.
BEST_POLICIES = (
    MeasuredPolicy(
        "fill", "all that fits starts; large groups wait longest", {"backfill": "off", "consolidate_win_us": 0}
    ),
    MeasuredPolicy(
        "reserve",
        "the oldest group that waits for room has a reserved start",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": 0},
    ),
    MeasuredPolicy(
        "reserve-and-move",
        "as reserve; pods are moved where a start wins more than they lose, at an hour for each GPU",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": _HOUR_US},
    ),
)

_replace = msgspec.structs.replace
_encode = msgspec.json.Encoder().encode
_decode_node = msgspec.json.Decoder(NodeObject).decode
_decode_topology = msgspec.json.Decoder(TopologyObject).decode

#: The objects of a profile's nodes, as a model of kubelets has them.
Profile = Callable[[str], list[Object]]


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node that is not in the log."""

    node: Node
    topology: NodeTopology | None


class Changes:
    """One alternative: the differences of one run."""

    def __init__(
        self,
        patch: Patch,
        *,
        removed: frozenset[str] = frozenset(),
        changed: tuple[tuple[NodesToChange, frozenset[str]], ...] = (),
        new: tuple[NewNode, ...] = (),
    ) -> None:
        """Args:
        patch: that was checked (`changes_of`).
        removed: names of the nodes that it removes.
        """
        self.patch = patch
        self.new = new
        self._removed = removed
        self._changed = changed

    def config(self, config: EngineConfig, *, provisioning: ProvisioningConfig) -> EngineConfig:
        """Return a shard's settings as they are to be; `provisioning` as it is simulated."""
        changed = applied(config, self.patch.settings, where=self.patch.name)
        names = {one.name for one in self.patch.policies}
        kept = tuple(one for one in changed.policies if one.name not in names)
        return _replace(changed, provisioning=provisioning, policies=(*kept, *self.patch.policies))

    def adapted(self, payload: Payload) -> Payload | None:
        """Return a fact as it is to be; None for one that does not happen."""
        match payload:
            case payloads.NodeObserved(node):
                return None if node.name in self._removed else payloads.NodeObserved(self._node(node))
            case payloads.TopologyObserved(topology):
                known = topology.node not in self._removed
                return payloads.TopologyObserved(self._topology(topology)) if known else None
            case payloads.NodeDeleted(name=name) | payloads.TopologyDeleted(node=name):
                return None if name in self._removed else payload
            case payloads.QueueObserved(queue) if queue.name in self.patch.queues:
                return payloads.QueueObserved(_queue(queue, self.patch.queues[queue.name], self.patch.name))
            case payloads.PriorityClassObserved(one) if one.name in self.patch.priorities:
                return payloads.PriorityClassObserved(_replace(one, value=self.patch.priorities[one.name]))
            case payloads.PodObserved(pod) if pod.priority_class in self.patch.priorities:
                return payloads.PodObserved(_replace(pod, priority=self.patch.priorities[pod.priority_class]))
        return payload

    def at_start(self, state: CycleView) -> list[tuple[str, Payload]]:
        """Return what makes a state what it is to be, as events of streams."""
        events: list[tuple[str, Payload]] = []
        for stream, fact in _facts_of(state):
            after = self.adapted(fact)
            if after is None and isinstance(fact, payloads.NodeObserved):
                events.append((stream, payloads.NodeDeleted(fact.node.uid, fact.node.name)))
            elif after is None and isinstance(fact, payloads.TopologyObserved):
                events.append((stream, payloads.TopologyDeleted(fact.topology.node)))
            elif after is not None and after != fact:
                events.append((stream, after))
        for one in self.new:
            events.append((f"node/{one.node.name}", payloads.NodeObserved(one.node)))
            if one.topology is not None:
                events.append((f"nrt/{one.node.name}", payloads.TopologyObserved(one.topology)))
        return events

    def _node(self, node: Node) -> Node:
        for change, names in self._changed:
            if node.name not in names:
                continue
            labels = dict(node.labels)
            for key, value in change.labels.items():
                if value is None:
                    labels.pop(key, None)
                else:
                    labels[key] = value
            unschedulable = node.unschedulable if change.unschedulable is None else change.unschedulable
            node = _replace(node, labels=labels, unschedulable=unschedulable)
        return node

    def _topology(self, topology: NodeTopology) -> NodeTopology:
        for change, names in self._changed:
            if topology.node in names:
                policy = change.topology_policy or topology.policy
                topology = _replace(topology, policy=policy, scope=change.topology_scope or topology.scope)
        return topology


def _facts_of(state: CycleView) -> Iterator[tuple[str, Payload]]:
    """Yield the facts of a state that an alternative may change, with their streams."""
    columns = state.columns
    for name in sorted(columns.rows):
        node, topology = columns.facts[columns.rows[name]], columns.topologies[columns.rows[name]]
        if topology is not None:
            yield f"nrt/{name}", payloads.TopologyObserved(topology)
        if node is not None:
            yield f"node/{name}", payloads.NodeObserved(node)
    for name in sorted(state.queues):
        yield f"queue/{name}", payloads.QueueObserved(state.queues[name])
    for name, observed in sorted(state.priority_classes.items()):
        yield f"priorityclass/{name}", observed
    for uid in sorted(state.pods):
        yield f"pod/{uid}", payloads.PodObserved(state.pods[uid].pod)


def _queue(queue: Queue, patch: QueuePatch, where: str) -> Queue:
    shares = dict(queue.shares)
    for resource, given in patch.resources.items():
        share = shares.get(resource, QueueShare())
        field = f"queues[{queue.name}].resources[{resource}]"
        if given.quota is not None:
            share = _replace(share, quota=_bound(given.quota, resource, where, f"{field}.quota"), quota_milli=0)
        if given.limit is not None:
            share = _replace(share, limit=_bound(given.limit, resource, where, f"{field}.limit"), limit_milli=0)
        if given.weight is not None:
            share = _replace(share, weight=given.weight * 1000)
        shares[resource] = share
    parent = queue.parent if patch.parent is None else patch.parent
    return _replace(
        queue, shares=shares, parent=parent, priority=queue.priority if patch.priority is None else patch.priority
    )


def _bound(amount: str | int, resource: str, where: str, field: str) -> int | None:
    return None if amount == "unlimited" else parse_amount(amount, resource=resource, subject=where, field=field)


def changes_of(patch: Patch, history: History, profile: Profile) -> Changes:
    """Check a patch against a window, and find the nodes that it means.

    Raises ConfigurationError: it names something that is not there, or sets something to what it cannot be.

    Args:
        history: it may name nodes, queues and priority classes of this.
        profile: returns the objects of a profile's nodes.
    """
    state = decode_state(history.state)
    nodes, topologies = _nodes_of(history, state)
    seen = (fact.payload for fact in history.facts)
    queues = {*state.queues, *(one.queue.name for one in seen if isinstance(one, payloads.QueueObserved))}
    classes = {*state.priority_classes, *(story.pod.priority_class for story in history.stories.values())} - {""}
    where = patch.name
    for name in patch.queues:
        _check(name, queues, "queue", where)
    for name, queue in patch.queues.items():
        if queue.parent:
            _check(queue.parent, queues, "queue", f"{where}: queues[{name}].parent")
        _queue(Queue(name), queue, where)
    for name in patch.priorities:
        _check(name, classes, "priority class", where)
    applied(EngineConfig(), patch.settings, where=where)
    removed: set[str] = set()
    for pattern in patch.nodes.remove:
        removed |= _matching(pattern, nodes, where)
    changed = tuple((change, _selected(change, nodes, where)) for change in patch.nodes.change)
    new: list[NewNode] = []
    for added in patch.nodes.add:
        new += _added(added, nodes, topologies, profile, where, taken={*nodes, *(one.node.name for one in new)})
    return Changes(patch, removed=frozenset(removed), changed=changed, new=tuple(new))


def _nodes_of(history: History, state: FleetView) -> tuple[dict[str, Node], dict[str, NodeTopology]]:
    """Return the nodes of a window and their zones, as they were first."""
    columns = state.columns
    nodes = {node.name: node for node in columns.facts if node is not None}
    topologies = {topology.node: topology for topology in columns.topologies if topology is not None}
    for fact in history.facts:
        if isinstance(fact.payload, payloads.NodeObserved):
            nodes.setdefault(fact.payload.node.name, fact.payload.node)
        elif isinstance(fact.payload, payloads.TopologyObserved):
            topologies.setdefault(fact.payload.topology.node, fact.payload.topology)
    return nodes, topologies


def _check(name: str, names: Iterable[str], kind: str, where: str) -> None:
    known = set(names)
    if name not in known:
        raise ConfigurationError(f"{where}: there is no {kind} {name!r} in this window{did_you_mean(name, known)}")


def _matching(pattern: str, nodes: Mapping[str, Node], where: str) -> set[str]:
    names = {name for name in nodes if fnmatchcase(name, pattern)}
    if not names:
        _check(pattern, nodes, "node", where)
    return names


def _selected(change: NodesToChange, nodes: Mapping[str, Node], where: str) -> frozenset[str]:
    names = set().union(*(_matching(pattern, nodes, where) for pattern in change.nodes)) if change.nodes else set(nodes)
    wanted = change.match_labels.items()
    names = {name for name in names if wanted <= nodes[name].labels.items()}
    if not names:
        raise ConfigurationError(f"{where}: nodes.change: no node has the labels {dict(change.match_labels)}")
    return frozenset(names)


def _added(
    added: NodesToAdd,
    nodes: Mapping[str, Node],
    topologies: Mapping[str, NodeTopology],
    profile: Profile,
    where: str,
    *,
    taken: Collection[str],
) -> Iterator[NewNode]:
    if bool(added.like) == bool(added.profile):
        raise ConfigurationError(f"{where}: nodes.add: say either like or profile")
    if added.like:
        _check(added.like, nodes, "node", where)
        models = [NewNode(nodes[added.like], topologies.get(added.like))]
    else:
        models = _of_profile(profile(added.profile))
    prefix = added.prefix or f"{added.like or added.profile}-new"
    for number in range(added.count):
        name = f"{prefix}-{number}"
        if name in taken:
            raise ConfigurationError(f"{where}: nodes.add: there is a node {name} already; give another prefix")
        yield _renamed(models[number % len(models)], name)


def _renamed(model: NewNode, name: str) -> NewNode:
    old = model.node.name
    labels = {key: name if value == old else value for key, value in model.node.labels.items()}
    node = _replace(model.node, name=name, uid=f"new/{name}", labels=labels, ready=True, unschedulable=False)
    # What its likes hold is not what it holds: only what the zones have is taken over.
    topology = None if model.topology is None else _replace(model.topology.lasting(), node=name, uid=f"new/{name}")
    return NewNode(node, topology)


def _of_profile(objects: Iterable[Object]) -> list[NewNode]:
    nodes: dict[str, Node] = {}
    topologies: dict[str, NodeTopology] = {}
    for item in objects:
        if item["kind"] == "Node":
            node = normalize_node(_decode_node(_encode(item)))
            nodes[node.name] = node
        else:
            topology = normalize_topology(_decode_topology(_encode(item)))
            topologies[topology.node] = topology
    return [NewNode(node, topologies.get(name)) for name, node in nodes.items()]
