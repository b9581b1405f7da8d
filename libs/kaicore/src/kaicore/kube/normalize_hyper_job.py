"""HyperJobs from the wire into the model: a tree of Jobs of Volcano, each with its tasks.

Source: Volcano, `docs/design/Network Topology Aware Scheduling.md`, and `training/v1alpha1` of `volcano.sh/apis`.
"""

from msgspec.structs import replace

from kaicore.errors import InvalidObject
from kaicore.kube.hyper_job_objects import HyperJobObject, HyperReplicatedJob
from kaicore.kube.losses import Lost, unheard
from kaicore.kube.normalize_source import count, group_source
from kaicore.kube.owner_objects import VolcanoJobSpec
from kaicore.kube.resources import subject_of
from kaicore.kube.volcano_tasks import network_topology, volcano_job_sets
from kaicore.rules.groups.tree import check_minimums
from kaicore.rules.groups.volcano_topology import tier_topology
from kaicore.rules.model.group import PodSet, TopologyConstraint
from kaicore.rules.model.group_source import GroupSource, GroupTemplate

_SOFT = "soft"

#: The tier of the HyperNode that a Job has for itself where none is said.
_OWN_TIER = 1

#: Most pod sets that are believed.
_MOST_SETS = 20_000


def normalize_hyper_job(wire: HyperJobObject, lost: Lost = unheard, *, kind: str) -> GroupSource:
    """Reduce a HyperJob: `minAvailable` of its Jobs start together, by default all of them.

    Where it or one of its Jobs says something of the network, each Job is in a HyperNode of its own: of the tier that
    its template allows at most, by default of tier 1, unless it is `soft`.

    Args:
        wire: the object.
        lost: is told of what is left out.
        kind: with its API group.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    subject = subject_of(kind, wire.metadata.namespace, wire.metadata.name)
    given = spec.replicated_jobs or []
    names = [one.name for one in given]
    if not given or len(set(names)) < len(names) or "" in names:
        raise InvalidObject(subject, "spec.replicatedJobs", names, "needs jobs with names, each of them once")
    templates = [
        _template(one, subject=subject, field=f"spec.replicatedJobs[{index}]") for index, one in enumerate(given)
    ]
    near = bool(spec.network_topology or any(template.network_topology for template, _ in templates))
    root = PodSet(
        min_sets=count(spec.min_available, 0, subject=subject, field="spec.minAvailable") or None,
        topology=network_topology(spec.network_topology, field="spec.networkTopology"),
    )
    sets = [root]
    for index, (one, (template, field)) in enumerate(zip(given, templates, strict=True)):
        where = f"spec.replicatedJobs[{index}].replicas"
        replicas = count(one.replicas, 1, subject=subject, field=where)
        tree = volcano_job_sets(template, {}, subject=subject, field=field)
        if len(sets) + replicas * len(tree) > _MOST_SETS:
            raise InvalidObject(subject, where, replicas, f"are jobs of more than {_MOST_SETS} pod sets together")
        place = _place(template, field=field) if near else None
        for number in range(replicas):
            sets += _job(tree, f"{one.name}-{number}", place)
    check_minimums(sets, subject=subject, field="spec.minAvailable")
    return group_source(
        wire,
        kind,
        (GroupTemplate(sets=tuple(sets)),),
        lost=lost,
        queue=next((template.queue for template, _ in templates if template.queue), None),
        priority_class=next((template.priority_class_name for template, _ in templates), None),
    )


def _template(one: HyperReplicatedJob, *, subject: str, field: str) -> tuple[VolcanoJobSpec, str]:
    """Return the spec of Jobs, and where it stands."""
    if one.template is not None:
        return one.template, f"{field}.template"
    if one.template_spec is None:
        raise InvalidObject(subject, f"{field}.template", None, "is missing")
    return one.template_spec, f"{field}.templateSpec"


def _place(template: VolcanoJobSpec, *, field: str) -> TopologyConstraint:
    """Return where each Job of a template is to be."""
    where = f"{field}.networkTopology"
    constraint = network_topology(template.network_topology, field=where)
    if constraint is None or not (constraint.required or constraint.problem or _is_soft(template)):
        constraint = tier_topology(mode="", tier=_OWN_TIER, tier_name="", field=where)
    return replace(constraint, exclusive=bool(constraint.required))


def _is_soft(template: VolcanoJobSpec) -> bool:
    given = template.network_topology
    return any(one.mode == _SOFT for one in (given if isinstance(given, list) else [given]) if one is not None)


def _job(tree: tuple[PodSet, ...], name: str, place: TopologyConstraint | None) -> list[PodSet]:
    """Return the tree of a Job below its HyperJob."""
    root, *inside = tree
    return [
        replace(root, name=name, topology=place),
        *(
            replace(one, name=f"{name}.{one.name}", parent=f"{name}.{one.parent}" if one.parent else name)
            for one in inside
        ),
    ]
