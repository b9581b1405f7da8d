"""Gangs in Koordinator's terms, and their network topology: annotations on a PodGroup, or on pods alone.

Source: Koordinator 1.8, `apis/extension/coscheduling.go`, `pkg/scheduler/plugins/coscheduling` and its `core`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kaicore.rules.events.reasons.group import Malformed
from kaicore.rules.events.reasons.reason import Reason
from kaicore.rules.groups.labels import refused
from kaicore.rules.model.group import MatchPolicy, RankSource, SliceLayer, TopologyConstraint
from kaicore.rules.model.node import CLUSTER_LAYER, CLUSTER_NETWORK_TOPOLOGY
from kaicore.rules.model.pod import Pod
from kaicore.rules.objects.wire import count_in

GANG = "gang.scheduling.koordinator.sh"
NAME_ANNOTATION = f"{GANG}/name"
GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io/name"
MATCH_POLICY_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy"

MIN_AVAILABLE_LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"


def gang_problem(pod: Pod) -> Reason | None:
    """Return what is wrong with the annotations by which a pod describes its gang; None if nothing is."""
    text = gang_min_available(pod)
    if not text:
        return _malformed("is missing")
    if count_in(text) is None:
        return _malformed(f"is no count: {text[:80]!r}")
    return None


def _malformed(problem: str) -> Reason:
    return Malformed(problem=f"annotation {GANG}/min-available {problem}")


def gang_min_available(pod: Pod) -> str:
    """Return the text that says how many pods of the gang must run at once."""
    return pod.labels.get(MIN_AVAILABLE_LABEL) or pod.annotations.get(f"{GANG}/min-available", "")


def gang_group(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the gangs that start together, `<namespace>/<name>` each; none where the annotation is no list of them.

    As in Koordinator, an annotation that cannot be read counts as none.
    """
    try:
        names = json.loads(annotations.get(f"{GANG}/groups") or "[]")
    except (ValueError, RecursionError):
        return ()
    if not isinstance(names, list) or not all(map(_is_name, names)):
        return ()
    return tuple(sorted(set(names)))


def _is_name(name: object) -> bool:
    # Half a surrogate pair, which JSON can have, could not be recorded.
    return isinstance(name, str) and name.count("/") == 1 and name.isprintable()


def match_policy(annotations: dict[str, str]) -> MatchPolicy:
    """Return which pods count; as in Koordinator, once satisfied by default."""
    text = annotations.get(f"{GANG}/match-policy") or annotations.get(MATCH_POLICY_ALIAS)
    return MatchPolicy(text) if text in set(MatchPolicy) else MatchPolicy.ONCE_SATISFIED


NETWORK_TOPOLOGY_ANNOTATION = f"{GANG}/network-topology-spec"
INDEX_ANNOTATION = f"{GANG}/network-topology-index"

_MUST_GATHER, _PREFER_GATHER = "MustGather", "PreferGather"
_FIELD = f"metadata.annotations[{NETWORK_TOPOLOGY_ANNOTATION}]"

_MOST_PODS = 2**31 - 1
_LONGEST_NAME = 253


class _Impossible(Exception):
    """The annotation makes no sense."""


def gather_strategy(annotations: Mapping[str, str], *, pods: int) -> TopologyConstraint | None:
    """Return at which layers of the network a gang must, and should, be within one domain; None for no constraint.

    The layers may come in any order: the topology says which of them is the narrowest. They are about the pods of
    all gangs that start together, as in Koordinator. A layer's `podCountMultiple` holds whatever its strategy is. What
    cannot be read is a problem: no pod is placed as if nothing had been said (Koordinator ignores it).

    Args:
        annotations: of the PodGroup, or of a pod.
    """
    text = annotations.get(NETWORK_TOPOLOGY_ANNOTATION)
    if not text:
        return None
    try:
        constraint = _constraint(_rules(text))
        if len(gang_group(annotations)) > 1:
            _check_alone(constraint.slices, pods)
    except _Impossible as error:
        return refused(CLUSTER_NETWORK_TOPOLOGY, _FIELD, str(error), text)
    return constraint if constraint.required or constraint.preferred or constraint.slices else None


def topology_index(topology: TopologyConstraint | None) -> RankSource | None:
    """Return where the pods of a gang tell their rank: of the numbers only the order counts.

    Args:
        topology: where the gang is to be; without any, ranks mean nothing.
    """
    return RankSource(INDEX_ANNOTATION, order_only=True) if topology is not None else None


def _check_alone(slices: Sequence[SliceLayer], pods: int) -> None:
    """Check that each gang of several has its multiples by itself: slices are not of the pods of two gangs."""
    for layer in slices:
        if pods % layer.size:
            problem = f"podCountMultiple {layer.size} of {layer.required} does not divide the {pods} pods of the gang"
            raise _Impossible(f"{problem}, which is one of several")


def _rules(text: str) -> Sequence[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise _Impossible("is no object in JSON")
    rules = document.get("gatherStrategy") or []
    if not isinstance(rules, list):
        raise _Impossible("gatherStrategy is no list")
    return rules


def _constraint(rules: Sequence[Any]) -> TopologyConstraint:
    layers: dict[str, list[str]] = {_MUST_GATHER: [], _PREFER_GATHER: []}
    slices: list[SliceLayer] = []
    for index, rule in enumerate(rules):
        where = f"gatherStrategy[{index}]"
        if not isinstance(rule, dict):
            raise _Impossible(f"{where} is no object")
        layer, strategy, multiple = rule.get("layer"), rule.get("strategy"), rule.get("podCountMultiple") or 0
        if not isinstance(layer, str) or not layer.isprintable() or not 1 <= len(layer) <= _LONGEST_NAME:
            raise _Impossible(f"{where} has no layer, or one that is no name")
        if not isinstance(strategy, str) or strategy not in layers:
            raise _Impossible(f"{where}.strategy is neither {_MUST_GATHER} nor {_PREFER_GATHER}")
        if isinstance(multiple, bool) or not isinstance(multiple, int) or not 0 <= multiple <= _MOST_PODS:
            raise _Impossible(f"{where}.podCountMultiple is no count")
        if layer == CLUSTER_LAYER:
            # All nodes are in it.
            if multiple > 1:
                raise _Impossible(f"{where}.podCountMultiple is of a layer that is not divided")
            continue
        layers[strategy].append(layer)
        if multiple > 1:
            slices.append(SliceLayer(multiple, required=layer))
    must, prefer = layers[_MUST_GATHER], layers[_PREFER_GATHER]
    return TopologyConstraint(
        required=next(iter(must), ""),
        preferred=next(iter(prefer), ""),
        field=_FIELD,
        kind=CLUSTER_NETWORK_TOPOLOGY,
        slices=tuple(slices),
        required_also=tuple(must[1:]),
        preferred_also=tuple(prefer[1:]),
        together=True,
    )
