"""The preemption delay of a pod that is a group of its own: how long it waits before it may have others evicted."""

from kaicore.errors import InvalidObject
from kaicore.rules.model.duration import parse_duration
from kaicore.rules.model.pod import Pod
from kaicore.rules.reasons.group import Malformed
from kaicore.rules.reasons.reason import Reason

PREEMPTION_DELAY_ANNOTATION = "kai.scheduler/preemption-delay"


def preemption_delay_us(pod: Pod) -> int:
    """Return the delay in microseconds, 0 where none is said.

    Raises:
        InvalidObject: it is no duration.
    """
    text = pod.annotations.get(PREEMPTION_DELAY_ANNOTATION)
    if not text:
        return 0
    return parse_duration(text, subject=pod.subject, field=f"metadata.annotations[{PREEMPTION_DELAY_ANNOTATION}]")


def preemption_delay_problem(pod: Pod) -> Reason | None:
    """Return what is wrong with the delay; None if nothing is."""
    try:
        preemption_delay_us(pod)
    except InvalidObject as error:
        return Malformed(problem=str(error))
    return None
