"""Network topologies from the wire into the model."""

from kaicore.errors import InvalidObject, InvalidPattern, Lost, unheard
from kaicore.kube.normalize.fields import selector as label_selector
from kaicore.kube.wire.resources import named_fields
from kaicore.rules.model.node import (
    CLUSTER_LAYER,
    CLUSTER_NETWORK_TOPOLOGY,
    HOSTNAME,
    KAI_TOPOLOGY,
    NODE_LAYER,
    HyperNode,
    HyperNodeMember,
    TopologyDefinition,
    TopologyLevel,
)
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import PlainObject, count_in
from kaicore.rules.topology.paths import compile_pattern

#: As in the definitions of KAI (v0.17.0) and of Kueue (v0.20.0-devel).
MOST_LEVELS = 16


def normalize_label_topology(kind: str, wire: PlainObject, lost: Lost) -> TopologyDefinition:
    """Reduce a Topology of KAI or of Kueue, which has labels as levels; Kueue's are the same in every version.

    Raises InvalidObject: it has no level or more than 16, a level without a label, a label twice, or the hostname above
    another level (Kueue apis/kueue/v1beta1/topology_types.go, v0.20.0-devel; KAI's definition says the same).
    """
    spec = named_fields("Topology", wire).inside("spec")
    given = spec.items("levels")
    if not 1 <= len(given) <= MOST_LEVELS:
        raise InvalidObject(spec.subject, "spec.levels", len(given), f"must be 1 to {MOST_LEVELS} levels")
    levels: list[TopologyLevel] = []
    names = {level.text("nodeLabel") for level in given}
    for level in given:
        label = level.text("nodeLabel")
        if not label:
            raise level.error("nodeLabel", "is missing")
        if any(label == other.name for other in levels):
            raise level.error("nodeLabel", "is there twice")
        if label == HOSTNAME and level is not given[-1]:
            raise level.error("nodeLabel", "can only be the lowest level")
        alias = level.text("alias") if kind == KAI_TOPOLOGY else ""
        if alias and alias in names:
            lost(level.error("alias", "is the name of another level"))
            alias = ""
        if alias:
            names.add(alias)
        levels.append(TopologyLevel(label, () if label == HOSTNAME else (label,), (alias,) if alias else ()))
    metadata = wire.metadata
    return TopologyDefinition(kind, metadata.name, metadata.uid, metadata.resource_version, tuple(levels))


def normalize_cluster_network_topology(wire: PlainObject, lost: Lost = unheard) -> TopologyDefinition:
    """Reduce a ClusterNetworkTopology: the layers from NodeTopologyLayer up, as their parents say.

    Raises InvalidObject: there is no NodeTopologyLayer, a layer is there twice or has no label, a parent is no layer,
    or layers are each other's parents.
    """
    spec = named_fields("ClusterNetworkTopology", wire).inside("spec")
    layers: dict[str, Fields] = {}
    for layer in spec.items("networkTopologySpec"):
        name = layer.text("topologyLayer")
        if name in layers:
            raise layer.error("topologyLayer", "is there twice")
        layers[name] = layer
    if NODE_LAYER not in layers:
        raise InvalidObject(spec.subject, "spec.networkTopologySpec", sorted(layers), f"has no {NODE_LAYER}")
    levels: list[TopologyLevel] = []
    above: str = NODE_LAYER
    while above not in ("", CLUSTER_LAYER):
        layer = layers.pop(above)
        keys = tuple(key for key in layer.texts("labelKey") if key)
        if not keys and above != NODE_LAYER:
            raise layer.error("labelKey", "is missing")
        levels.append(TopologyLevel(above, () if above == NODE_LAYER else keys))
        parent = layer.text("parentTopologyLayer")
        if parent not in ("", CLUSTER_LAYER) and parent not in layers:
            circular = any(parent == level.name for level in levels)
            problem = f"is below {above}" if circular else f"is none of the layers {', '.join(sorted(layers))}"
            raise layer.error("parentTopologyLayer", problem)
        above = parent
    for _, layer in sorted(layers.items()):
        lost(layer.error("topologyLayer", f"is not above {NODE_LAYER}"))
    metadata = wire.metadata
    return TopologyDefinition(
        CLUSTER_NETWORK_TOPOLOGY,
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        tuple(reversed(levels)),
        fills_lowest=True,
    )


def normalize_hyper_node(wire: PlainObject, lost: Lost = unheard) -> HyperNode:
    """Reduce a HyperNode; a member that makes no sense is left out.

    Raises InvalidObject: it has no name, or its tier is no number of 0 or more.
    """
    spec, metadata = named_fields("HyperNode", wire).inside("spec"), wire.metadata
    # The tier was text once.
    tier = count_in(str(spec.value.get("tier")))
    if tier is None:
        raise spec.error("tier", "is no number of 0 or more")
    members = []
    for member in spec.items("members"):
        try:
            members.append(_member(member))
        except InvalidObject as error:
            lost(error)
    return HyperNode(
        metadata.name, metadata.uid, metadata.resource_version, tier, spec.text("tierName"), tuple(members)
    )


#: What selects members.
_SELECTORS = ("exactMatch", "regexMatch", "labelMatch")


def _member(member: Fields) -> HyperNodeMember:
    """Reduce a member of a HyperNode.

    Raises InvalidObject: it has no selector or several, one that its type cannot have, or an empty or invalid one
    (Volcano pkg/webhooks/admission/hypernodes/validate, v1.16.0-alpha.1).
    """
    of_nodes, selector = member.text("type") == "Node", member.inside("selector")
    names = [name for name in _SELECTORS if selector.value.get(name) is not None]
    if not of_nodes and member.text("type") != "HyperNode":
        raise member.error("type", "is neither Node nor HyperNode")
    if len(names) != 1:
        problem = f"must have exactly one of {', '.join(_SELECTORS)}"
        raise InvalidObject(member.subject, selector.path, names, problem)
    match = selector.inside(names[0])
    if not of_nodes and names != ["exactMatch"]:
        raise InvalidObject(member.subject, match.path, names[0], "is not for members of type HyperNode")
    if names == ["exactMatch"]:
        if not (name := match.text("name")):
            raise match.error("name", "is missing")
        return HyperNodeMember(node=name) if of_nodes else HyperNodeMember(hyper_node=name)
    if names == ["regexMatch"]:
        if not (pattern := match.text("pattern")):
            raise match.error("pattern", "is missing")
        try:
            compile_pattern(pattern)
        except InvalidPattern as error:
            raise match.error("pattern", f"is no regular expression: {error}") from error
        return HyperNodeMember(pattern=pattern)
    requirements = label_selector(selector, "labelMatch")
    if not requirements:
        raise InvalidObject(match.subject, match.path, {}, "has no requirement")
    return HyperNodeMember(labels=requirements)
