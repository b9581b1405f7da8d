"""Pod groups of Kueue: pods that declare their own number, and start together.

Source: Kueue, `pkg/controller/jobs/pod` at v0.20.0-devel.
"""

from kaicore.rules.model.pod import Pod
from kaicore.rules.reasons.group import Malformed

KUEUE_GROUP_LABEL = "kueue.x-k8s.io/pod-group-name"
TOTAL_COUNT = "kueue.x-k8s.io/pod-group-total-count"
FAST_ADMISSION = "kueue.x-k8s.io/pod-group-fast-admission"

#: Python reads no number of thousands of digits.
_MOST_DIGITS = 10


def pod_group_problem(pod: Pod) -> Malformed | None:
    """Return what is wrong with what a pod says of the size of its pod group; None if nothing is."""
    text = pod.annotations.get(TOTAL_COUNT)
    if text is None:
        return Malformed(problem=f"annotation {TOTAL_COUNT} is missing")
    if not text.isdecimal() or len(text) > _MOST_DIGITS or not 1 <= int(text) < 2**31:
        return Malformed(problem=f"annotation {TOTAL_COUNT} is no count of 1 or more: {text[:80]!r}")
    return None


def pod_group_size(pod: Pod) -> int:
    """Return how many pods there are in a group, as one of them says (`pod_group_problem` has no objection)."""
    return int(pod.annotations[TOTAL_COUNT])


def starts_whole(pod: Pod) -> bool:
    """Tell whether all pods of a group start together: fast admission lets each start as it comes."""
    return pod.annotations.get(FAST_ADMISSION) != "true"
