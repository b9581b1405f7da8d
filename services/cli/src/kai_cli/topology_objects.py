"""Topologies and nodes of manifests."""

from dataclasses import dataclass, field

import msgspec
from kaicore.analysis.simulation import Located
from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.kube.normalize_node import normalize_node
from kaicore.kube.resources import NODES
from kaicore.kube.topology_kinds import TOPOLOGY_KINDS
from kaicore.rules.model.network_topology import HyperNode
from kaicore.rules.model.node import Node
from kaicore.rules.topology.book import TopologyBook

from kai_cli.manifests import Reading

_READERS = {resource.kind: (resource, normalize) for resource, normalize in TOPOLOGY_KINDS}

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(slots=True)
class Topologies:
    """What manifests say: topologies and nodes, everything else is passed over; `warnings` says what was left out."""

    book: TopologyBook = field(default_factory=TopologyBook)
    nodes: dict[str, Node] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read_topologies(reading: Reading) -> Topologies:
    """Read the topologies and nodes of manifests.

    Raises:
        ConfigurationError: some of them make no sense; names each, with file and document.
    """
    found = Topologies()
    found.warnings += [f"skipped {where}: not a Kubernetes object" for where in reading.strangers]
    problems: list[KaiError] = list(reading.problems)
    for item in reading.objects:
        try:
            _take_in(found, item)
        except InvalidObject as error:
            problems.append(ConfigurationError(f"{item.where}: {error}"))
    if problems:
        raise ConfigurationError("\n     ".join(map(str, problems)))
    return found


def _take_in(found: Topologies, item: Located) -> None:
    group, _, version = item.object["apiVersion"].rpartition("/")
    kind = f"{item.object['kind']}.{group}".rstrip(".")
    if kind == NODES.kind:
        node = normalize_node(NODES.decode(_encoder.encode(item.object)))
        found.nodes[node.name] = node
        found.book.node_seen(node.name, node.labels)
        return
    if kind not in _READERS:
        return
    resource, normalize = _READERS[kind]
    if version not in resource.versions:
        known = ", ".join(resource.versions)
        raise InvalidObject(kind, "apiVersion", item.object["apiVersion"], f"its version is none of {known}")
    wire = resource.at(version).decode(_encoder.encode(item.object))
    model = normalize(wire, lambda error: found.warnings.append(f"{item.where}: {error}"))
    if isinstance(model, HyperNode):
        found.book.hyper_node_seen(model)
    else:
        found.book.definition_seen(model)
