"""Pod groups of Kueue: pods that declare their own number and start together, and their topology constraints.

Topology constraints of a pod set are annotations on its pod template, or on its pods.

Source: Kueue v0.20.0-devel, `pkg/controller/jobs/pod`, `pkg/controller/jobframework/tas_validation.go` and
`pkg/controller/tas`.
"""

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from kaicore.errors import InvalidQuantity
from kaicore.rules.events.reasons.group import Malformed
from kaicore.rules.groups.labels import refused
from kaicore.rules.model.group import RankSource, SliceLayer, SpreadRule, TopologyConstraint
from kaicore.rules.model.node import KUEUE_TOPOLOGY
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import CPU, parse_amount
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.wire import count_in

KUEUE_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
TOTAL_COUNT = "kueue.x-k8s.io/pod-group-total-count"
FAST_ADMISSION = "kueue.x-k8s.io/pod-group-fast-admission"


def pod_group_problem(pod: Pod) -> Malformed | None:
    """Return what is wrong with what a pod says of the size of its pod group; None if nothing is."""
    text = pod.annotations.get(TOTAL_COUNT)
    if text is None:
        return Malformed(problem=f"annotation {TOTAL_COUNT} is missing")
    if not count_in(text):
        return Malformed(problem=f"annotation {TOTAL_COUNT} is no count of 1 or more: {text[:80]!r}")
    return None


def pod_group_size(pod: Pod) -> int:
    """Return how many pods there are in a group, as one of them says (`pod_group_problem` has no objection)."""
    return int(pod.annotations[TOTAL_COUNT])


def starts_whole(pod: Pod) -> bool:
    """Tell whether all pods of a group start together: fast admission lets each start as it comes."""
    return pod.annotations.get(FAST_ADMISSION) != "true"


_KUEUE = "kueue.x-k8s.io"
REQUIRED = f"{_KUEUE}/podset-required-topology"
PREFERRED = f"{_KUEUE}/podset-preferred-topology"
UNCONSTRAINED = f"{_KUEUE}/podset-unconstrained-topology"
SLICE_REQUIRED = f"{_KUEUE}/podset-slice-required-topology"
SLICE_SIZE = f"{_KUEUE}/podset-slice-size"
SLICE_LAYERS = f"{_KUEUE}/podset-slice-required-topology-constraints"
GROUP_NAME = f"{_KUEUE}/podset-group-name"
SPREADING = f"{_KUEUE}/podset-topology-spreading"

INDEX_LABEL = f"{_KUEUE}/pod-group-pod-index"
INDEX_NAMED_BY = f"{_KUEUE}/pod-group-pod-index-label"
INDEX_OFFSET = f"{_KUEUE}/pod-index-offset"

_PLACES = (REQUIRED, PREFERRED, UNCONSTRAINED)
_SLICES = (SLICE_REQUIRED, SLICE_SIZE, SLICE_LAYERS)
_FLAGS = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}

#: Most layers of slices.
_MOST_LAYERS = 3
#: Most rules of spreading.
_MOST_RULES = 2


class _Impossible(Exception):
    """Annotations that make no sense; names the one that is to blame."""

    def __init__(self, annotation: str, problem: str) -> None:
        super().__init__(problem)
        self.annotation = annotation


def kueue_topology(
    annotations: Mapping[str, str], *, pods: int, where: str = "metadata", slice_size: int = 0
) -> TopologyConstraint | None:
    """Return the constraint of the pods of a set; None without one.

    Slices alone, without a level for all of them, may be anywhere: the smallest gaps are filled first.

    Args:
        annotations: of the pod template, or of a pod.
        pods: how many there are in all; 0 where it is not known.
        where: the metadata that they stand in, for people.
        slice_size: the default of slices; 0 for none.
    """
    names = (*_PLACES, *_SLICES, GROUP_NAME, SPREADING)
    given = {name: annotations[name] for name in names if name in annotations}
    if not given:
        return None
    try:
        return _constraint(given, pods=pods, where=where, slice_size=slice_size)
    except _Impossible as error:
        field = f"{where}.annotations[{error.annotation}]"
        return refused(KUEUE_TOPOLOGY, field, str(error), given.get(error.annotation))


def refused_group(annotations: Mapping[str, str], *, where: str, problem: str) -> TopologyConstraint:
    """Return the constraint of a pod set with an invalid group of pod sets, and the problem."""
    return refused(KUEUE_TOPOLOGY, f"{where}.annotations[{GROUP_NAME}]", problem, annotations.get(GROUP_NAME))


def _constraint(given: Mapping[str, str], *, pods: int, where: str, slice_size: int) -> TopologyConstraint | None:
    places = [name for name in _PLACES if name in given]
    if len(places) > 1:
        raise _Impossible(places[1], f"excludes {places[0].partition('/')[2]}")
    required, preferred = (_level(given, name) for name in (REQUIRED, PREFERRED))
    anywhere = _flag(given, UNCONSTRAINED)
    _check_group(given)
    slices = _layers(given, pods) if SLICE_LAYERS in given else _slices(given, pods, slice_size)
    by = next((name for name in (REQUIRED, SLICE_REQUIRED, *_SLICES) if name in given), "")
    spread, spread_with = _spreading(given)
    constraint = TopologyConstraint(
        required=required,
        preferred=preferred,
        field=f"{where}.annotations[{by}]" if by else "",
        kind=KUEUE_TOPOLOGY,
        unconstrained=anywhere or bool(slices and not (required or preferred)),
        slices=slices,
        spread=spread,
        spread_with=spread_with,
    )
    return None if constraint == TopologyConstraint(kind=KUEUE_TOPOLOGY) else constraint


def _level(given: Mapping[str, str], name: str) -> str:
    if name not in given:
        return ""
    if not given[name]:
        raise _Impossible(name, "is empty")
    return given[name]


def _flag(given: Mapping[str, str], name: str) -> bool:
    if name not in given:
        return False
    if given[name] not in _FLAGS:
        raise _Impossible(name, "is neither true nor false")
    return _FLAGS[given[name]]


def _check_group(given: Mapping[str, str]) -> None:
    """Check what a set's own annotations say of the sets that it belongs with."""
    if GROUP_NAME not in given:
        return
    if not given[GROUP_NAME]:
        raise _Impossible(GROUP_NAME, "is empty")
    if given[GROUP_NAME].isdecimal():
        raise _Impossible(GROUP_NAME, "is a number")
    if not (REQUIRED in given or PREFERRED in given):
        raise _Impossible(GROUP_NAME, "needs a required or a preferred topology")


def _slices(given: Mapping[str, str], pods: int, default: int) -> tuple[SliceLayer, ...]:
    level = _level(given, SLICE_REQUIRED)
    if SLICE_SIZE not in given:
        if level and not default:
            raise _Impossible(SLICE_REQUIRED, "needs podset-slice-size")
        size = default
    else:
        if not level:
            raise _Impossible(SLICE_SIZE, "needs podset-slice-required-topology")
        size = count_in(given[SLICE_SIZE]) or 0
    if not level:
        return ()
    named = SLICE_SIZE if SLICE_SIZE in given else SLICE_REQUIRED
    if not size:
        raise _Impossible(named, "is no count of 1 or more")
    _check_divides(named, size, pods)
    return (SliceLayer(size, required=level),)


def _layers(annotations: Mapping[str, str], pods: int) -> tuple[SliceLayer, ...]:
    name = SLICE_LAYERS
    if other := next((one for one in (SLICE_REQUIRED, SLICE_SIZE) if one in annotations), ""):
        raise _Impossible(name, f"excludes {other.partition('/')[2]}")
    layers: list[SliceLayer] = []
    for place, given in enumerate(_list(annotations[name]), start=1):
        level, size = (given.get("topology"), given.get("size")) if isinstance(given, dict) else (None, None)
        if not isinstance(level, str) or not level:
            raise _Impossible(name, f"layer {place} has no topology")
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
            raise _Impossible(name, f"the size of layer {place} is no count of 1 or more")
        if level in (layer.required for layer in layers):
            raise _Impossible(name, f"has {level} twice")
        if layers and layers[-1].size % size:
            raise _Impossible(name, f"size {size} of {level} does not divide the {layers[-1].size} of the layer above")
        layers.append(SliceLayer(size, required=level))
    if not 1 <= len(layers) <= _MOST_LAYERS:
        raise _Impossible(name, f"has {len(layers)} layers, and may have 1 to {_MOST_LAYERS}")
    _check_divides(name, layers[0].size, pods)
    return tuple(layers)


def _spreading(given: Mapping[str, str]) -> tuple[tuple[SpreadRule, ...], tuple[Requirement, ...]]:
    """Return the limits to like work of a domain, and the labels of like work; none for groups of the same object.

    Source: Kueue 0.20 (alpha, TASTopologySpreading), `pkg/util/tas`: one or two rules, one selector by `In` at most.
    """
    if SPREADING not in given:
        return (), ()
    if REQUIRED not in given:
        raise _Impossible(SPREADING, "needs podset-required-topology")
    read = _json(given[SPREADING])
    said: dict[str, Any] = read if isinstance(read, dict) else {}
    listed = said.get("rules")
    if not isinstance(listed, list) or not 1 <= len(listed) <= _MOST_RULES:
        raise _Impossible(SPREADING, f"has no list of 1 to {_MOST_RULES} rules")
    rules: list[SpreadRule] = []
    for place, one in enumerate(listed, start=1):
        rule = one if isinstance(one, dict) else {}
        level, mode = rule.get("topologyKey"), rule.get("enforcementMode", "Required")
        if not isinstance(level, str) or not level or level in (other.level for other in rules):
            raise _Impossible(SPREADING, f"rule {place} has no topologyKey of its own")
        if mode not in ("Required", "Preferred"):
            raise _Impossible(SPREADING, f"the enforcementMode of rule {place} is neither Required nor Preferred")
        rules.append(SpreadRule(level, _share_milli(rule.get("maxShareAllowingPlacement"), place), mode == "Preferred"))
    return tuple(rules), _selectors(said.get("workloadLabelSelectors") or [])


def _share_milli(given: object, place: int) -> int:
    try:
        milli = parse_amount(str(given), resource=CPU, subject="", field="")
    except InvalidQuantity:
        milli = 0
    if not 0 < milli < 1000:
        raise _Impossible(SPREADING, f"the maxShareAllowingPlacement of rule {place} is not between 0 and 1")
    return milli


def _selectors(given: object) -> tuple[Requirement, ...]:
    found = []
    for said in given if isinstance(given, list) else [None]:
        one: dict[str, Any] = said if isinstance(said, dict) else {}
        key, values = one.get("key"), one.get("values")
        listed = (
            values if isinstance(values, list) and values and all(isinstance(value, str) for value in values) else ()
        )
        if not isinstance(key, str) or not key or one.get("operator") != "In" or not listed:
            raise _Impossible(SPREADING, "a workloadLabelSelector is not a key In a list of values")
        found.append(Requirement(key, "In", tuple(sorted(listed))))
    return tuple(found)


def _list(text: str) -> list[Any]:
    items = _json(text)
    if not isinstance(items, list):
        raise _Impossible(SLICE_LAYERS, "is no list in JSON")
    return items


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _check_divides(annotation: str, size: int, pods: int) -> None:
    if pods and pods % size:
        raise _Impossible(annotation, f"{pods} pods are not divided by slices of {size}")


def kueue_rank(annotations: Mapping[str, str], source: RankSource | None) -> RankSource | None:
    """Return where pods tell their rank, with the number of the first one as Kueue has it; what is none counts as 0.

    Args:
        source: where they tell it by themselves; None where they do not.
    """
    offset = count_in(annotations.get(INDEX_OFFSET, ""))
    if source is None or not offset:
        return source
    return replace(source, offset=offset)


def pod_group_rank(annotations: Mapping[str, str]) -> RankSource:
    """Return where the pods of a pod group of Kueue tell their rank."""
    label = annotations.get(INDEX_NAMED_BY) or INDEX_LABEL
    return RankSource(label, count_in(annotations.get(INDEX_OFFSET, "")) or 0)
