"""Grove: serving gangs of roles that start together, and scale by parts.

A PodCliqueSet makes, for each of its replicas, one PodGang of its cliques and of the least replicas of each scaling
group; each further replica of a scaling group has a PodGang of its own. Pods name their PodGang and their PodClique.

Sources: Grove, main of 2026-08-19 (`operator/api/core/v1alpha1`, `scheduler/api/core/v1alpha1`, `components/podgang`,
`podclique/components/pod`); KAI-Scheduler 0.17 (`pkg/podgrouper/podgrouper/plugins/grove`).
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kaicore.rules.groups.dialects.dialect import (
    ControllerGate,
    Dialect,
    ReadObject,
    WorkloadKind,
    check_names,
    named_by,
)
from kaicore.rules.groups.kai_topology import TOPOLOGY_ANNOTATION
from kaicore.rules.model.group import GroupSource, GroupTemplate, PodSet, RankSource, TopologyConstraint
from kaicore.rules.objects.made import Made, list_in, made_object, pod_from
from kaicore.rules.objects.mappings import Fields, Object, name_of, spec_of

POD_GANG = "PodGang.scheduler.grove.io"
POD_CLIQUE_SET = "PodCliqueSet.grove.io"
POD_CLIQUE = "PodClique.grove.io"
_GROVE = "grove.io"
POD_GANG_LABEL = f"{_GROVE}/podgang"
POD_CLIQUE_LABEL = f"{_GROVE}/podclique"
_POD_INDEX = f"{_GROVE}/podclique-pod-index"
_TOPOLOGY = f"{_GROVE}/topology-name"
_BASE_GANG = f"{_GROVE}/base-podgang"


def normalize_pod_gang(gang: ReadObject) -> GroupSource:
    """Reduce a PodGang: the least pods of all its PodCliques start together, each part in a place of its own."""
    spec, annotations = gang.spec, gang.annotations
    topology = annotations.get(_TOPOLOGY) or annotations.get(TOPOLOGY_ANNOTATION, "")
    parent_of: dict[str, str] = {}
    parts: list[PodSet] = []
    for part in spec.items("topologyConstraintGroupConfigs"):
        if names := part.texts("podGroupNames"):
            parts.append(PodSet(part.text("name"), topology=_place(part, topology)))
            parent_of |= dict.fromkeys(names, part.text("name"))
    leaves = []
    for item in spec.items("podgroups"):
        name, least = item.text("name"), item.integer("minReplicas", 0)
        place = _place(item, topology)
        leaves.append(PodSet(name, parent_of.get(name, ""), least, topology=place, rank=RankSource(_POD_INDEX)))
    with_pods = {one.parent for one in leaves}
    sets = [one for one in parts if one.name in with_pods] + leaves
    check_names([one.name for one in sets], spec, "podgroups")
    template = GroupTemplate(sets=(PodSet(topology=_place(spec, topology)), *sets))
    return gang.source(template, priority_class=spec.text("priorityClassName"))


def _place(part: Fields, topology: str) -> TopologyConstraint | None:
    pack = part.inside("topologyConstraint").inside("packConstraint")
    required, preferred = pack.text("required"), pack.text("preferred")
    if not (required or preferred):
        return None
    return TopologyConstraint(topology, required=required, preferred=preferred, field=pack.path)


class _Clique(NamedTuple):
    """A PodClique that a PodCliqueSet makes.

    Attributes:
        name: of the PodClique.
        labels: of the PodClique and of its pods, besides those of the template.
        part: name of the replica of a scaling group that it belongs to; empty for none.
        group: that scaling group.
        after: names of the PodCliques of which the least pods must be ready before its own pods do anything.
    """

    name: str
    template: Fields
    labels: dict[str, str]
    part: str = ""
    group: Fields | None = None
    after: tuple[str, ...] = ()


def pod_clique_set_parts(owner: Object) -> Iterator[Made]:
    """Yield the PodGangs, then the PodCliques of a PodCliqueSet."""
    spec = spec_of(owner)
    template = spec.inside("template", required=True)
    cliques: list[tuple[str, _Clique]] = []
    for replica in range(spec.pods("replicas", 0)):
        for gang, place, unordered in _gangs(name_of(owner), template, replica):
            of_gang = _in_order(template, unordered)
            yield Made(_pod_gang(owner, template, gang, place, of_gang), template.path)
            cliques += [(gang, clique) for clique in of_gang]
    for gang, clique in cliques:
        yield _pod_clique(owner, gang, clique)


def _gangs(name: str, template: Fields, replica: int) -> Iterator[tuple[str, Fields, list[_Clique]]]:
    """Yield the PodGangs of a replica: their names, the fields with their place in the network, and their cliques."""
    base = f"{name}-{replica}"
    labels = {f"{_GROVE}/podcliqueset-replica-index": str(replica)}
    templates = {one.text("name"): one for one in template.items("cliques")}
    groups = [(group, _clique_names(group, templates)) for group in template.items("podCliqueScalingGroups")]
    scaled = {clique for _, names in groups for clique in names}
    together = [_Clique(f"{base}-{one}", templates[one], labels) for one in templates if one not in scaled]
    further: list[tuple[str, Fields, list[_Clique]]] = []
    for group, names in groups:
        of_group, least = f"{base}-{group.text('name')}", group.pods("minAvailable", 1)
        for number in range(group.pods("replicas", 1)):
            part = f"{of_group}-{number}"
            of_part = labels | {
                f"{_GROVE}/podcliquescalinggroup": of_group,
                f"{_GROVE}/podcliquescalinggroup-replica-index": str(number),
            }
            if number < least:
                together += [_Clique(f"{part}-{one}", templates[one], of_part, part, group) for one in names]
                continue
            place = group if _pack(group) else template
            of_part[_BASE_GANG] = base
            gang = f"{of_group}-{number - least}"
            further.append((gang, place, [_Clique(f"{part}-{one}", templates[one], of_part) for one in names]))
    yield base, template, together
    yield from further


def _in_order(template: Fields, of_gang: list[_Clique]) -> list[_Clique]:
    """Return the cliques of a PodGang, each with those that it starts after; of other PodGangs there are none."""
    order = template.text("cliqueStartupType").removeprefix("CliqueStartupType")
    if order not in ("InOrder", "Explicit"):
        return of_gang
    names = [one.text("name") for one in template.items("cliques")]
    before = {name: [previous] for previous, name in itertools.pairwise(names)} if order == "InOrder" else {}
    by_template: dict[str, list[str]] = {}
    for one in of_gang:
        by_template.setdefault(one.template.text("name"), []).append(one.name)
    ordered = []
    for one in of_gang:
        parents = before.get(one.template.text("name"), [])
        if order == "Explicit":
            parents = one.template.inside("spec", required=True).texts("startsAfter")
        ordered.append(one._replace(after=tuple(name for parent in parents for name in by_template.get(parent, ()))))
    return ordered


def _clique_names(group: Fields, templates: Mapping[str, Fields]) -> list[str]:
    names = group.texts("cliqueNames")
    if not names or any(one not in templates for one in names):
        raise group.error("cliqueNames", f"must be a list of cliques; there are {', '.join(templates)}")
    return names


def _pod_gang(owner: Object, template: Fields, name: str, place: Fields, cliques: list[_Clique]) -> Object:
    gang = made_object(
        owner, api_version="scheduler.grove.io/v1alpha1", kind="PodGang", name=name, metadata=_metadata(owner)
    )
    parts = {one.part: _pack(one.group) for one in cliques if one.group is not None}
    places = [place, *(one.group for one in cliques if one.group is not None), *(one.template for one in cliques)]
    named = (one.inside("topologyConstraint").text("topologyName") for one in places)
    if topology := next(filter(None, named), ""):
        gang["metadata"]["annotations"][_TOPOLOGY] = topology
    gang["spec"] = {
        "podgroups": [
            {"name": one.name, "minReplicas": _least(one.template), "topologyConstraint": _pack(one.template)}
            for one in cliques
        ],
        "topologyConstraint": _pack(place),
        "topologyConstraintGroupConfigs": [
            {
                "name": part,
                "podGroupNames": [one.name for one in cliques if one.part == part],
                "topologyConstraint": constraint,
            }
            for part, constraint in parts.items()
            if constraint
        ],
        "priorityClassName": template.text("priorityClassName"),
    }
    return gang


def _metadata(owner: Object) -> Fields:
    """Return the labels and annotations of an owner that Grove gives its PodGangs, too."""
    given = Fields("", owner["metadata"], "metadata")
    kept = {name: given.copy(name) for name in ("labels", "annotations")}
    return Fields(
        "", {name: {k: v for k, v in of.items() if not k.startswith(f"{_GROVE}/")} for name, of in kept.items()}
    )


def _least(template: Fields) -> int:
    spec = template.inside("spec", required=True)
    return spec.pods("minAvailable", spec.pods("replicas", 1))


def _pack(template: Fields) -> Object | None:
    """Return a PodGang's words for the place that a template names; levels stay as they are."""
    given = template.inside("topologyConstraint")
    pack = given.inside("pack")
    words = {"required": pack.text("required") or given.text("packDomain"), "preferred": pack.text("preferred")}
    said = {name: value for name, value in words.items() if value}
    return {"packConstraint": said} if said else None


def _pod_clique(owner: Object, gang: str, clique: _Clique) -> Made:
    made = made_object(
        owner, api_version="grove.io/v1alpha1", kind="PodClique", name=clique.name, metadata=clique.template
    )
    part_of = {"app.kubernetes.io/managed-by": "grove-operator", "app.kubernetes.io/part-of": name_of(owner)}
    made["metadata"]["labels"].update({**part_of, **clique.labels, POD_GANG_LABEL: gang})
    made["spec"] = clique.template.copy("spec") | ({"startsAfter": list(clique.after)} if clique.after else {})
    return Made(made, clique.template.where("spec"))


def pod_clique_pods(owner: Object) -> Iterator[Made]:
    """Yield the pods of a PodClique, without the gate that Grove takes off when the PodGang is complete.

    Pods that start after others have a container more, which waits for those on the node. It asks for nothing, so that
    their quality of service is not Guaranteed.
    """
    spec = spec_of(owner)
    pod_spec = spec.inside("podSpec", required=True).value
    template = Fields("", {"metadata": owner["metadata"], "spec": pod_spec})
    name, after = name_of(owner), spec.value.get("startsAfter")
    for index in range(spec.pods("replicas", 1)):
        labels = {POD_CLIQUE_LABEL: name, _POD_INDEX: str(index)}
        pod = pod_from(owner, template, generate_name=f"{name}-", key=str(index), labels=labels)
        if after:
            waits = {"name": "grove-initc", "args": [f"--podcliques={parent}" for parent in after]}
            list_in(pod, "initContainers").append(waits)
        yield pod._replace(spec_field=spec.where("podSpec"))


DIALECT = Dialect(
    "Grove",
    (
        WorkloadKind(
            POD_GANG,
            "podgangs",
            ("v1alpha1",),
            normalize_pod_gang,
            name_label=POD_GANG_LABEL,
            pod_set=named_by(POD_CLIQUE_LABEL),
            gate=ControllerGate(f"{_GROVE}/podgang-pending-creation", _BASE_GANG),
        ),
        WorkloadKind(POD_CLIQUE_SET, "podcliquesets", ("v1alpha1",), made=pod_clique_set_parts, short_names=("pcs",)),
        WorkloadKind(POD_CLIQUE, "podcliques", ("v1alpha1",), made=pod_clique_pods, short_names=("pclq",)),
    ),
)
