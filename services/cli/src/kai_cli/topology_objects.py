"""Topologies and nodes of manifests."""

from dataclasses import dataclass, field

import msgspec
from kaicore.analysis.simulation import Located
from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.kube.normalize_node import normalize_node
from kaicore.kube.resources import NODES
from kaicore.kube.topology_kinds import topology_kind
from kaicore.rules.model.node import Node
from kaicore.rules.topology.book import TopologyBook

from kai_cli.manifests import Reading

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
    topologies = Topologies()
    topologies.warnings += [f"skipped {where}: not a Kubernetes object" for where in reading.strangers]
    problems: list[KaiError] = list(reading.problems)
    for item in reading.objects:
        try:
            _take_in(topologies, item)
        except InvalidObject as error:
            problems.append(ConfigurationError(f"{item.where}: {error}"))
    if problems:
        raise ConfigurationError("\n     ".join(map(str, problems)))
    return topologies


def _take_in(topologies: Topologies, item: Located) -> None:
    api_version, name = item.object["apiVersion"], item.object["kind"]
    body = _encoder.encode(item.object)
    if (api_version, name) == ("v1", NODES.kind):
        node = normalize_node(NODES.decode(body))
        topologies.nodes[node.name] = node
        topologies.book.node_seen(node.name, node.labels)
        return
    kind = topology_kind(api_version, name)
    if kind is None:
        return
    if api_version.rpartition("/")[2] not in kind.resource.versions:
        versions = ", ".join(kind.resource.versions)
        raise InvalidObject(kind.name, "apiVersion", api_version, f"its version is none of {versions}")
    model = kind.normalize(kind.decode(body), lambda error: topologies.warnings.append(f"{item.where}: {error}"))
    topologies.book.take(kind.observed(model))
