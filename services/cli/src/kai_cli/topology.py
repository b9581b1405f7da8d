"""`kai topology`: the trees that a cluster's topologies make of its nodes, and what is free in them.

Topologies of manifests, and the shape of a pod of a manifest.
"""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.ask.topologies import comes_with_the_node, topologies
from kaicore.analysis.ask.topology_answers import TopologiesAnswer, TopologyQuestion
from kaicore.errors import ConfigurationError, InvalidObject, UnknownSubject
from kaicore.rules.engine.placement.node_columns import NodeColumns
from kaicore.rules.engine.placement.pod_class import node_requests
from kaicore.rules.groups.dialects.table import expand, is_owner

from kai_cli.answers import open_answers
from kai_cli.manifests import Manifest, read_files, read_manifests
from kai_cli.printing import print_data
from kai_cli.source import AnswerSource, AtFlag, SourceFlags
from kai_cli.tables import as_of
from kai_cli.topology_objects import read_topologies
from kai_cli.topology_svg import picture
from kai_cli.topology_view import MOST_ROWS, Narrowing, draw, narrowed

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
        pod = _slot_pod(manifest)
        if pod is not None:
            metadata = {"name": pod["metadata"].get("name") or "pod", "namespace": "default"}
            return msgspec.json.encode({"metadata": metadata, "spec": _shape(pod.get("spec") or {})}).decode()
    raise ConfigurationError(f"--pod {file}: there is no pod, and nothing that makes pods")


def _slot_pod(manifest: Manifest) -> Manifest | None:
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


Output = Literal["tree", "json", "yaml", "svg"]


def show(  # long: one flag for each way to look
    # For `-`, which is no option.
    *files: Annotated[Path, Parameter(allow_leading_hyphen=True)],
    topology: str = "",
    level: str = "",
    domain: str = "",
    nodes: bool = False,
    slots: str = "",
    pod: Path | None = None,
    segments: str = "",
    limit: Annotated[int, Parameter(validator=Number(gte=0))] = MOST_ROWS,
    at: AtFlag = "",
    source: SourceFlags | None = None,
    output: Annotated[Output, Parameter(name=["--output", "-o"])] = "tree",
) -> int:
    """Draw the trees of a cluster's topologies: what each domain uses and has free, and what still fits there.

    Args:
        files: ask these manifests instead of a cluster: YAML or JSON, folders, or - for standard input, such as what
            `kai dump` writes.
        topology: only the topologies of this name.
        level: draw down to this level, by its name or alias; by default as far as there are few enough domains.
        domain: only this domain and what is in it, such as block-1/rack-3.
        nodes: draw the single nodes too.
        slots: count the pods that fit, each of which asks for this: gpu=8,cpu=16.
        pod: count the pods that fit like the one of this manifest: its selector, affinity and tolerations count.
        segments: count the disjoint segments of so many idle nodes: 4,18; by default of powers of two.
        limit: how many domains to draw at most where no level is named; 0 for all.
        at: as of a moment: a position, a time (2026-11-22T02:55:00Z, 02:55Z), or a time before the log's end (-5m).
        source: where to ask.
        output: tree, json, yaml, or svg for a picture.
    """
    if at and files:
        raise ConfigurationError(f"--at {at}: manifests have no past")
    narrowing = Narrowing(level=level, domain=domain, nodes=nodes or output == "svg", limit=limit)
    wanted = TopologyQuestion(
        topology=topology,
        slots=slots,
        pod=_pod(pod),
        segments=segments,
        nodes=narrowing.asks_for_nodes,
    )
    try:
        answers = _of_files(list(files), wanted) if files else asyncio.run(_ask(source or AnswerSource(), wanted, at))
    except InvalidObject as error:
        raise ConfigurationError(str(error)) from error
    if not any(answer.topologies for answer in answers):
        if files:
            raise ConfigurationError(f"no topology in {', '.join(map(str, files))}")
        where = ", ".join(answer.cluster for answer in answers)
        raise UnknownSubject(f"no topology in cluster {where}; `kai topology generate` writes one")
    answers = narrowed(answers, narrowing)
    if output == "tree":
        if at:
            print("\n".join(as_of(answer.position, answer.recorded_at) for answer in answers))
        sys.stdout.write("\n".join(draw(answer, narrowing) for answer in answers))
    elif output == "svg":
        sys.stdout.write(picture(answers))
    else:
        print_data(answers[0] if len(answers) == 1 else answers, output)
    return 1 if any(one.problems for answer in answers for one in answer.topologies) else 0


async def _ask(source: AnswerSource, wanted: TopologyQuestion, at: str) -> list[TopologiesAnswer]:
    topologies: list[TopologiesAnswer] = []
    unknown: UnknownSubject | None = None
    async with open_answers(source, at) as (answers, clusters):
        for cluster in clusters:
            try:
                topologies.append(await answers.topologies(cluster, wanted, at=at))
            except UnknownSubject as error:
                unknown = error
    if not topologies:
        raise unknown or UnknownSubject("the log is empty")
    return topologies


def _of_files(files: list[Path], wanted: TopologyQuestion) -> list[TopologiesAnswer]:
    # Neither files nor figures are of use to a question that an API answers.

    return [answer_of_files(files, wanted)]


def _pod(file: Path | None) -> str:
    if file is None:
        return ""

    return pod_of_file(file)
