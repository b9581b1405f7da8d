"""Network topologies from the wire into the model."""

from kaicore.errors import InvalidObject, InvalidPattern, Lost, unheard
from kaicore.kube.normalize.fields import label_requirements
from kaicore.kube.wire import custom_resources
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model.node import (
    CLUSTER_LAYER,
    CLUSTER_NETWORK_TOPOLOGY,
    HOSTNAME,
    KAI_TOPOLOGY,
    KUEUE_TOPOLOGY,
    NODE_LAYER,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.topology.paths import compile_pattern

#: As in the definitions of KAI (v0.17.0) and of Kueue (v0.20.0-devel).
MOST_LEVELS = 16

_TIERS = range(2**31)


def normalize_kai_topology(wire: custom_resources.LabelTopologyObject, lost: Lost = unheard) -> TopologyDefinition:
    """Reduce a `kai.scheduler` Topology. Raises InvalidObject: see `_label_topology`."""
    return _label_topology(KAI_TOPOLOGY, wire, lost)


def normalize_kueue_topology(wire: custom_resources.LabelTopologyObject, lost: Lost = unheard) -> TopologyDefinition:
    """Reduce a `kueue.x-k8s.io` Topology; its levels are the same in every version.

    Raises InvalidObject: see `_label_topology`.
    """
    return _label_topology(KUEUE_TOPOLOGY, wire, lost)


def _label_topology(kind: str, wire: custom_resources.LabelTopologyObject, lost: Lost) -> TopologyDefinition:
    """Reduce a Topology with labels as levels.

    Raises InvalidObject: it has no level or more than 16, a level without a label, a label twice, or the hostname above
    another level (Kueue apis/kueue/v1beta1/topology_types.go, v0.20.0-devel; KAI's definition says the same).
    """
    subject = named_subject("Topology", wire)
    given = wire.spec.levels or []
    if not 1 <= len(given) <= MOST_LEVELS:
        raise InvalidObject(subject, "spec.levels", len(given), f"must be 1 to {MOST_LEVELS} levels")
    levels: list[TopologyLevel] = []
    names: set[str] = {level.node_label for level in given}
    for index, level in enumerate(given):
        field, label = f"spec.levels[{index}]", level.node_label
        if not label:
            raise InvalidObject(subject, f"{field}.nodeLabel", label, "is missing")
        if any(label == other.name for other in levels):
            raise InvalidObject(subject, f"{field}.nodeLabel", label, "is there twice")
        if label == HOSTNAME and index < len(given) - 1:
            raise InvalidObject(subject, f"{field}.nodeLabel", label, "can only be the lowest level")
        alias = level.alias if kind == KAI_TOPOLOGY else None
        if alias and alias in names:
            lost(InvalidObject(subject, f"{field}.alias", alias, "is the name of another level"))
            alias = None
        if alias:
            names.add(alias)
        levels.append(TopologyLevel(label, () if label == HOSTNAME else (label,), (alias,) if alias else ()))
    metadata = wire.metadata
    return TopologyDefinition(kind, metadata.name, metadata.uid, metadata.resource_version, tuple(levels))


def normalize_cluster_network_topology(
    wire: custom_resources.ClusterNetworkTopologyObject, lost: Lost = unheard
) -> TopologyDefinition:
    """Reduce a ClusterNetworkTopology: the layers from NodeTopologyLayer up, as their parents say.

    Raises InvalidObject: there is no NodeTopologyLayer, a layer is there twice or has no label, a parent is no layer,
    or layers are each other's parents.
    """
    subject = named_subject("ClusterNetworkTopology", wire)
    field = "spec.networkTopologySpec"
    layers: dict[str, tuple[int, custom_resources.TopologyLayer]] = {}
    for index, layer in enumerate(wire.spec.network_topology_spec or ()):
        if layer.topology_layer in layers:
            raise InvalidObject(subject, f"{field}[{index}].topologyLayer", layer.topology_layer, "is there twice")
        layers[layer.topology_layer] = index, layer
    if NODE_LAYER not in layers:
        raise InvalidObject(subject, field, sorted(layers), f"has no {NODE_LAYER}")
    levels: list[TopologyLevel] = []
    above: str = NODE_LAYER
    while above not in ("", CLUSTER_LAYER):
        index, layer = layers.pop(above)
        keys = tuple(key for key in layer.label_key or () if key)
        if not keys and above != NODE_LAYER:
            raise InvalidObject(subject, f"{field}[{index}].labelKey", layer.label_key, "is missing")
        levels.append(TopologyLevel(above, () if above == NODE_LAYER else keys))
        parent = layer.parent_topology_layer or ""
        if parent not in ("", CLUSTER_LAYER) and parent not in layers:
            circular = any(parent == level.name for level in levels)
            problem = f"is below {above}" if circular else f"is none of the layers {', '.join(sorted(layers))}"
            raise InvalidObject(subject, f"{field}[{index}].parentTopologyLayer", parent, problem)
        above = parent
    for name, (index, _) in sorted(layers.items()):
        lost(InvalidObject(subject, f"{field}[{index}].topologyLayer", name, f"is not above {NODE_LAYER}"))
    metadata = wire.metadata
    return TopologyDefinition(
        CLUSTER_NETWORK_TOPOLOGY,
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        tuple(reversed(levels)),
        fills_lowest=True,
    )


def normalize_hyper_node(wire: custom_resources.HyperNodeObject, lost: Lost = unheard) -> HyperNode:
    """Reduce a HyperNode; a member that makes no sense is left out.

    Raises InvalidObject: it has no name, or its tier is no number of 0 or more.
    """
    subject = named_subject("HyperNode", wire)
    spec, metadata = wire.spec, wire.metadata
    try:
        tier = int(spec.tier) if spec.tier is not None else -1
    except ValueError:
        tier = -1
    if tier not in _TIERS:
        raise InvalidObject(subject, "spec.tier", spec.tier, "is no number of 0 or more")
    members = []
    for index, member in enumerate(spec.members or ()):
        try:
            members.append(_member(member, subject=subject, field=f"spec.members[{index}]"))
        except InvalidObject as error:
            lost(error)
    return HyperNode(metadata.name, metadata.uid, metadata.resource_version, tier, spec.tier_name or "", tuple(members))


def _member(member: custom_resources.HyperNodeMemberSpec, *, subject: str, field: str) -> HyperNodeMember:
    """Reduce a member of a HyperNode.

    Raises InvalidObject: it has no selector or several, one that its type cannot have, or an empty or invalid one
    (Volcano pkg/webhooks/admission/hypernodes/validate, v1.16.0-alpha.1).
    """
    selector = member.selector
    given = {
        "exactMatch": selector.exact_match,
        "regexMatch": selector.regex_match,
        "labelMatch": selector.label_match,
    }
    names = [name for name, one in given.items() if one is not None]
    if member.type not in ("Node", "HyperNode"):
        raise InvalidObject(subject, f"{field}.type", member.type, "is neither Node nor HyperNode")
    if len(names) != 1:
        raise InvalidObject(subject, f"{field}.selector", names, f"must have exactly one of {', '.join(given)}")
    where = f"{field}.selector.{names[0]}"
    if member.type == "HyperNode" and selector.exact_match is None:
        raise InvalidObject(subject, where, names[0], "is not for members of type HyperNode")
    if selector.exact_match is not None:
        name = selector.exact_match.name
        if not name:
            raise InvalidObject(subject, f"{where}.name", name, "is missing")
        return HyperNodeMember(hyper_node=name) if member.type == "HyperNode" else HyperNodeMember(node=name)
    if selector.regex_match is not None:
        pattern = selector.regex_match.pattern
        if not pattern:
            raise InvalidObject(subject, f"{where}.pattern", pattern, "is missing")
        try:
            compile_pattern(pattern)
        except InvalidPattern as error:
            raise InvalidObject(subject, f"{where}.pattern", pattern, f"is no regular expression: {error}") from error
        return HyperNodeMember(pattern=pattern)
    requirements = label_requirements(selector.label_match, subject=subject, field=where)
    if not requirements:
        raise InvalidObject(subject, where, {}, "has no requirement")
    return HyperNodeMember(labels=requirements)
