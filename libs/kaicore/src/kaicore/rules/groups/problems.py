"""Why it cannot be told which pods a pod starts with: codes, with the object and what is not there as data.

A problem is a `kaicore.rules.reasons.reason.Reason`: `group` names the object, `detail` what was looked for in it.
"""

from enum import StrEnum

from kaicore.rules.reasons.reason import Reason


class GroupProblem(StrEnum):
    """Reasons of groups."""

    NOT_FOUND = "GroupNotFound"
    NO_TEMPLATE = "PodGroupNotInWorkload"
    NO_SUB_GROUP = "SubGroupNotFound"
    SUB_GROUP_UNNAMED = "SubGroupNotNamed"
    OWNER_NOT_FOUND = "OwnerNotFound"
    #: As the engine calls what makes no sense.
    MALFORMED = "Malformed"


def render_problem(reason: Reason) -> str | None:
    """Say a problem in words; None when the reason is none of a group's."""
    match reason.code:
        case GroupProblem.NOT_FOUND:
            return f"{reason.group} does not exist"
        case GroupProblem.NO_TEMPLATE:
            return f"{reason.group} has no pod group {reason.detail}"
        case GroupProblem.NO_SUB_GROUP:
            return f"{reason.group} has no sub-group {reason.detail}"
        case GroupProblem.SUB_GROUP_UNNAMED:
            return f"it names none of the sub-groups of {reason.group}: {reason.detail}"
        case GroupProblem.OWNER_NOT_FOUND:
            return f"its owner {reason.group} is not known"
        case _:
            return None
