"""Topologies, nodes and pods of manifests, and the shape of a pod of a manifest."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from kaicore.analysis.ask.topology.answers import TopologiesAnswer, TopologyQuestion
from kaicore.analysis.ask.topology.domains import comes_with_the_node, topologies
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.simulation.manifest_text import Reading
from kaicore.analysis.trial.simulation.resource_claims import admitted_node
from kaicore.errors import ConfigurationError, InvalidObject, KaiError
from kaicore.kube.kinds.table import topology_kind
from kaicore.kube.normalize.node import normalize_node
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import NODES, PODS
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.groups.dialects.table import expand, is_owner
from kaicore.rules.model.node import Node
from kaicore.rules.model.pod import Pod
from kaicore.rules.topology.book import TopologyBook

from kai_cli.output import warn
from kai_cli.sources.manifests import Manifest, read_files, read_manifests

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

    Raises ConfigurationError: some of them make no sense; names each, with file and document.
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


#: What decides where a pod fits; all else is not asked about, and may be long.
_OF_POD = ("nodeSelector", "affinity", "tolerations", "overhead", "resources")
_OF_CONTAINER = ("name", "resources", "restartPolicy")


def answer_of_files(files: list[Path], wanted: TopologyQuestion) -> TopologiesAnswer:
    """Return the topologies of manifests over their nodes, with what their pods use.

    Raises:
        ConfigurationError: manifests or the question make no sense.
        UnknownSubject: there is no topology of the name.
    """
    objects = read_topologies(read_files(files))
    warn(objects.warnings)
    columns = NodeColumns()
    for name in sorted(objects.nodes):
        columns.set_node(objects.nodes[name], columns.row(name))
    for pod in objects.pods:
        if pod.node_name in columns.rows:
            columns.charge(columns.rows[pod.node_name], node_requests(pod))
    occupied = {pod.node_name for pod in objects.pods if not comes_with_the_node(pod)}
    return topologies(objects.book, columns, occupied, wanted)


def pod_of_file(file: Path) -> str:
    """Return the manifest of the pod of a file as JSON; of what makes pods, the first that it makes.

    Raises ConfigurationError: there is none.
    """
    for manifest in read_manifests([file]):
        pod = _pod(manifest)
        if pod is not None:
            metadata = {"name": pod["metadata"].get("name") or "pod", "namespace": "default"}
            return msgspec.json.encode({"metadata": metadata, "spec": _shape(pod.get("spec") or {})}).decode()
    raise ConfigurationError(f"--pod {file}: there is no pod, and nothing that makes pods")


def _pod(manifest: Manifest) -> Manifest | None:
    if (manifest["apiVersion"], manifest["kind"]) == ("v1", "Pod"):
        return manifest
    if not is_owner(manifest["apiVersion"], manifest["kind"]):
        return None
    named = {"namespace": "default", "uid": "", **manifest["metadata"]}
    made = next(expand({**manifest, "metadata": named}, nodes_for=lambda _: [""]), None)
    return None if made is None else made.object


def _shape(spec: dict[str, Any]) -> dict[str, Any]:
    shape = {name: spec[name] for name in _OF_POD if name in spec}
    for name in ("initContainers", "containers"):
        shape[name] = [
            {key: container[key] for key in _OF_CONTAINER if key in container}
            for container in spec.get(name) or ()
            if isinstance(container, dict)
        ]
    return shape
