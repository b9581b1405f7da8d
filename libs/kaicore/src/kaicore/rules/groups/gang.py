"""Gangs in Koordinator's terms: annotations on a PodGroup, or on pods alone.

Source: Koordinator 1.8, `apis/extension/coscheduling.go`, `pkg/scheduler/plugins/coscheduling`.
"""

import json
from collections.abc import Mapping

from kaicore.rules.model.group import MatchPolicy
from kaicore.rules.model.pod import Pod
from kaicore.rules.reasons.group import Malformed
from kaicore.rules.reasons.reason import Reason

GANG = "gang.scheduling.koordinator.sh"
NAME_ANNOTATION = f"{GANG}/name"
GROUP_LABEL = "pod-group.scheduling.sigs.k8s.io/name"
MATCH_POLICY_ALIAS = "pod-group.scheduling.sigs.k8s.io/match-policy"
#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10

MIN_AVAILABLE_LABEL = "pod-group.scheduling.sigs.k8s.io/min-available"


def gang_problem(pod: Pod) -> Reason | None:
    """Return what is wrong with the annotations by which a pod describes its gang; None if nothing is."""
    text = gang_min_available(pod)
    if not text:
        return _malformed("is missing")
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) >= 2**31:
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
    """Return which pods count; as in Koordinator, once satisfied where nothing valid is said."""
    text = annotations.get(f"{GANG}/match-policy") or annotations.get(MATCH_POLICY_ALIAS)
    return MatchPolicy(text) if text in set(MatchPolicy) else MatchPolicy.ONCE_SATISFIED
