"""Topologies, nodes and pods of manifests."""

from dataclasses import dataclass, field

import msgspec
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.simulation.admission import admitted_node
from kaicore.analysis.trial.simulation.manifest_text import Reading
from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.kube.kinds.table import topology_kind
from kaicore.kube.normalize.node import normalize_node
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import NODES, PODS
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.topology.book import TopologyBook

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(slots=True)
class Topologies:
    """The contents of manifests: topologies, nodes, and the pods on them; `warnings` names what was left out."""

    book: TopologyBook = field(default_factory=TopologyBook)
    nodes: dict[str, Node] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def read_topologies(reading: Reading) -> Topologies:
    """Read the topologies, nodes and placed pods of manifests; everything else is passed over.

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
        node = normalize_node(NODES.decode(_encoder.encode(admitted_node(item.object))))
        topologies.nodes[node.name] = node
        topologies.book.node_seen(node.name, node.labels)
        return
    if (api_version, name) == ("v1", PODS.kind):
        pod = normalize_pod(PODS.decode(body))
        if pod.node_name and not pod.finished:
            topologies.pods.append(pod)
        return
    kind = topology_kind(api_version, name)
    if kind is None:
        return
    if api_version.rpartition("/")[2] not in kind.resource.versions:
        versions = ", ".join(kind.resource.versions)
        raise InvalidObject(kind.name, "apiVersion", api_version, f"its version is none of {versions}")
    model = kind.normalize(kind.decode(body), lambda error: topologies.warnings.append(f"{item.where}: {error}"))
    topologies.book.take(kind.observed(model))
