"""Changes to groups: a group is completed, its names are corrected, or it asks for less. Less means fewer pods, another
topology level, or a preferred level in place of a required one.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kaicore.analysis.ask.counterfactuals.asked import Amendment, Asked, Effort, edited
from kaicore.rules.deciding.cycle_input import retry_at
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import group as group_reasons
from kaicore.rules.events.reasons.base import CodedReason, plural
from kaicore.rules.groups.membership import (
    KAI_GROUP_ANNOTATION,
    KAI_SUBGROUP_LABEL,
    SIGS_GROUP_LABEL,
    VOLCANO_GROUP_ANNOTATIONS,
    X_GROUP_LABEL,
)
from kaicore.rules.model.group import GroupSource, PodSet, leaves
from kaicore.rules.model.node import KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.pod import Pod, WorkloadRef

#: Names, of levels, topologies or sub-groups, that are tried instead of one that is not there.
_MOST_NAMES = 8


def group_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield changes of the pods' group and of what it names."""
    for reason in asked.reasons:
        yield from _of_membership(asked, reason)
        yield from _of_gang(asked, reason)
        if isinstance(reason, group_reasons.TopologyReason | group_reasons.TopologyHasNoRoom):
            yield from _of_topology(asked, reason)


def source_of(asked: Asked) -> GroupSource | None:
    """Return the object that the pods' group is made of; None where pods alone make it."""
    place = asked.state.group_table.place_of(asked.pod.uid)
    return None if place is None else asked.state.group_table.sources.get(place.source)


def edit_source(kind: str, words: str, before: GroupSource, after: GroupSource, *, amount: int = 0) -> Amendment:
    """Return that an object which groups are made of is changed; see `Amendment` for the other arguments."""
    seen, pairs = payloads.GroupSourceObserved, [(before, after)]
    return Amendment.edits(kind, words, Effort.EDIT_WORK, seen, pairs, place=_name(after), amount=amount)


def _name(source: GroupSource) -> str:
    return f"{source.kind.partition('.')[0]} {source.namespace}/{source.name}"


# Which group a pod is of.


def _of_membership(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    match reason:
        case group_reasons.GroupNotFound() | group_reasons.OwnerNotFound():
            yield _made(asked, reason.group)
            if isinstance(reason, group_reasons.GroupNotFound):
                words = f"take the name of {reason.group} off pod {asked.pod.subject}"
                yield asked.edit_pods("leave-group", words, _without_group)
        case group_reasons.GroupTreeInvalid():
            words = f"take the name of its group off pod {asked.pod.subject}"
            yield asked.edit_pods("leave-group", words, _without_group)
        case group_reasons.PodGroupNotInWorkload():
            source = source_of(asked)
            for template in (source.templates if source is not None else ())[:_MOST_NAMES]:
                words = f"name pod group {template.name} of {reason.group} in pod {asked.pod.subject}"
                yield asked.edit_pods("name-group", words, partial(_referring, name=template.name))
        case group_reasons.SubGroupNotFound() | group_reasons.SubGroupNotNamed():
            source = source_of(asked)
            names = {one.name for template in (source.templates if source else ()) for one in leaves(template.sets)}
            for name in sorted(names - {""})[:_MOST_NAMES]:
                words = f"label pod {asked.pod.subject} with {KAI_SUBGROUP_LABEL}={name}, a sub-group of {reason.group}"
                yield asked.edit_pods("name-group", words, partial(_in_set, name=name))
        case _:
            pass


def _made(asked: Asked, group: str) -> Amendment:
    """Return that an object which pods name, or that owns them, is there."""
    kind, _, name = group.partition(" ")
    namespace, _, plain = name.partition("/")
    owner = asked.pod.owner
    owns = owner is not None and owner.name == plain and kind.startswith(owner.kind)
    uid = owner.uid if owner is not None and owns else "made"
    source = GroupSource(kind=kind, uid=uid, namespace=namespace, name=plain, resource_version="")
    return Amendment(
        "make-group",
        f"make {group}",
        Effort.MAKE_OBJECT,
        facts=[payloads.GroupSourceObserved(source)],
        undo=[payloads.GroupSourceDeleted(kind, uid, namespace, plain)],
        place=group,
    )


def _without_group(pod: Pod) -> Pod:
    named = {KAI_GROUP_ANNOTATION, *VOLCANO_GROUP_ANNOTATIONS}
    labels = {key: value for key, value in pod.labels.items() if key not in (SIGS_GROUP_LABEL, X_GROUP_LABEL)}
    annotations = {key: value for key, value in pod.annotations.items() if key not in named}
    return edited(pod, labels=labels, annotations=annotations, workload=None)


def _referring(pod: Pod, name: str) -> Pod:
    return edited(pod, workload=edited(pod.workload or WorkloadRef(name), group=name))


def _in_set(pod: Pod, name: str) -> Pod:
    return edited(pod, labels={**pod.labels, KAI_SUBGROUP_LABEL: name})


# How many pods a group needs.


def _of_gang(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    match reason:
        case group_reasons.GangIncomplete():
            yield _more_pods(asked, reason.min_pods - reason.ready_pods)
            yield from _lower_minimum(asked, reason.ready_pods)
        case group_reasons.GangDoesNotFit(fitting_pods=fitting) if fitting:
            yield from _lower_minimum(asked, fitting)
        case group_reasons.TopologyHasNoRoom(slice_size=0, fitting=fitting) if fitting:
            yield from _lower_minimum(asked, fitting)
        case group_reasons.GangGroupWaits():
            yield from _of_other_group(asked, reason)
        case group_reasons.WaitsAfterFailedBinds():
            due = max(retry_at(one, asked.config) for one in asked.fellows)
            words = f"wait: binding {plural(reason.pods, 'pod')} of it is tried again then"
            yield Amendment("wait", words, Effort.WAIT, until=due, amount=reason.pods, place=asked.pod.subject)
        case _:
            pass


def _more_pods(asked: Asked, missing: int) -> Amendment:
    pods = [
        edited(asked.pod, uid=f"made-{number}", name=f"{asked.pod.name}-made-{number}", scheduling_gates=())
        for number in range(missing)
    ]
    return Amendment(
        "make-pods",
        f"make {plural(missing, 'more pod')} like {asked.pod.subject}",
        Effort.MAKE_OBJECT,
        facts=[payloads.PodObserved(pod) for pod in pods],
        undo=[payloads.PodDeleted(pod.uid, pod.namespace, pod.name) for pod in pods],
        amount=missing,
        place=asked.pod.subject,
    )


def _lower_minimum(asked: Asked, least: int) -> Iterator[Amendment]:
    source, place = source_of(asked), asked.state.group_table.place_of(asked.pod.uid)
    if source is None or place is None:
        return
    template = source.template(place.template) or source.templates[0]
    sets = [one for one in template.sets if one.min_pods > least]
    if not sets or least < 1:
        return
    one = next((one for one in sets if one.name == place.pod_set), sets[0])
    what = f"sub-group {one.name} of {_name(source)}" if one.name else _name(source)
    words = f"lower the minimum of {what} from {one.min_pods} to {least}"
    after = _with_sets(source, lambda each: edited(each, min_pods=least) if each.name == one.name else each)
    yield edit_source("lower-minimum", words, source, after, amount=least)


def _of_other_group(asked: Asked, reason: group_reasons.GangGroupWaits) -> Iterator[Amendment]:
    state, config = asked.state, asked.config
    waiting = sorted(state.group_table.pods_of(reason.other_group) & state.waiting)
    if waiting:
        other = Asked(state, config, state.pods[waiting[0]])
        yield from (
            one
            for why in other.reasons
            for one in _of_gang(other, why)
            if not isinstance(why, group_reasons.GangGroupWaits)
        )
    source = source_of(asked)
    if source is not None and source.together:
        words = f"let {_name(source)} start without {reason.other_group.replace('/', ' ', 1)}"
        yield edit_source("start-alone", words, source, edited(source, together=()))


def _with_sets(source: GroupSource, edit: Callable[[PodSet], PodSet]) -> GroupSource:
    templates = tuple(edited(template, sets=tuple(edit(one) for one in template.sets)) for template in source.templates)
    return edited(source, templates=templates)


# What a group asks of a topology.


def _of_topology(
    asked: Asked, reason: group_reasons.TopologyReason | group_reasons.TopologyHasNoRoom
) -> Iterator[Amendment]:
    source = source_of(asked)
    if source is None:
        yield from _unannotated(asked)
        return
    name = _name(source)
    match reason:
        case group_reasons.TopologyNotFound() | group_reasons.TopologyAmbiguous():
            for there in _names(reason.topologies):
                plain = there.rpartition(" ")[2]
                yield _reconstrained("name-topology", f"name topology {plain} in {name}", source, topology=plain)
            if isinstance(reason, group_reasons.TopologyNotFound):
                yield _made_topology(source, reason)
        case group_reasons.TopologyLevelNotFound():
            for level in _names(reason.levels):
                words = f"name level {level} in {name} instead of {reason.level}"
                yield _reconstrained("name-level", words, source, renamed=(reason.level, level))
        case group_reasons.TopologyHasNoRoom(level=level) if level:
            words = f"prefer level {level} of topology {reason.topology} in {name} instead of requiring it"
            yield _reconstrained("prefer-level", words, source, preferred=True)
        case _:
            pass
    words = f"take the topology constraint off {name}"
    after = _with_sets(source, lambda one: edited(one, topology=None))
    yield edit_source("unconstrain", words, source, after)


def _unannotated(asked: Asked) -> Iterator[Amendment]:
    """Yield that pods that make their group by themselves ask for nothing of a topology."""
    keys = sorted(key for key in asked.pod.annotations if "topology" in key)
    if keys:
        words = f"take the annotation {', '.join(keys)} off pod {asked.pod.subject}"
        yield asked.edit_pods("unconstrain", words, partial(_without_annotations, keys=keys))


def _without_annotations(pod: Pod, *, keys: Sequence[str]) -> Pod:
    return edited(pod, annotations={key: value for key, value in pod.annotations.items() if key not in keys})


def _names(text: str) -> list[str]:
    return [name for name in text.split(", ") if name][:_MOST_NAMES]


def _reconstrained(
    kind: str,
    words: str,
    source: GroupSource,
    *,
    topology: str = "",
    renamed: tuple[str, str] = ("", ""),
    preferred: bool = False,
) -> Amendment:
    """Return that what a group asks of a topology is edited.

    Args:
        kind: see `Amendment`.
        topology: the topology that is named; empty for as it is.
        renamed: a level, and the one that is named instead.
        preferred: whether what is required is only preferred.
    """
    old, new = renamed

    def edit(one: PodSet) -> PodSet:
        asked = one.topology
        if asked is None:
            return one
        if topology:
            asked = edited(asked, topology=topology, kind="")
        if preferred:
            level = asked.preferred or asked.required
            asked = edited(asked, required="", preferred=level, required_also=(), slices=())
        elif old:
            required, wished = (new if level == old else level for level in (asked.required, asked.preferred))
            asked = edited(asked, required=required, preferred=wished)
        return edited(one, topology=asked)

    return edit_source(kind, words, source, _with_sets(source, edit))


def _made_topology(source: GroupSource, reason: group_reasons.TopologyNotFound) -> Amendment:
    """Return that the topology is made, of the levels that the group names, which are labels of nodes then."""
    asked_for = [one.topology for template in source.templates for one in template.sets if one.topology]
    named = [level for one in asked_for for level in (one.required, one.preferred) if level]
    levels = tuple(TopologyLevel(name, (name,)) for name in dict.fromkeys(named))
    plain = reason.topology.rpartition(" ")[2]
    definition = TopologyDefinition(KAI_TOPOLOGY, plain, "made", "", levels)
    return Amendment(
        "make-topology",
        f"make Topology {plain} with levels {', '.join(one.name for one in levels)}",
        Effort.MAKE_OBJECT,
        facts=[payloads.TopologyDefinitionObserved(definition)],
        undo=[payloads.TopologyDefinitionDeleted(KAI_TOPOLOGY, "made", plain)],
        place=plain,
    )
