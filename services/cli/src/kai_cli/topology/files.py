"""Topologies of manifests, and the shape of a pod of a manifest."""

import sys
from pathlib import Path
from typing import Any

import msgspec
from kaicore.analysis.ask.topologies import comes_with_the_node, topologies
from kaicore.analysis.ask.topology_answers import TopologiesAnswer, TopologyQuestion
from kaicore.errors import ConfigurationError
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.groups.dialects.table import expand, is_owner

from kai_cli.sources.manifests import Manifest, read_files, read_manifests
from kai_cli.topology.objects import read_topologies

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
    for warning in objects.warnings:
        sys.stderr.write(f"kai: warning: {warning}\n")
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

    Raises:
        ConfigurationError: there is none.
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
    made = expand({**manifest, "metadata": named}, nodes_for=lambda _: [""])
    return made[0].object if made else None


def _shape(spec: dict[str, Any]) -> dict[str, Any]:
    shape = {name: spec[name] for name in _OF_POD if name in spec}
    for name in ("initContainers", "containers"):
        shape[name] = [
            {key: container[key] for key in _OF_CONTAINER if key in container}
            for container in spec.get(name) or ()
            if isinstance(container, dict)
        ]
    return shape
