"""Label selectors of Kubernetes (`metav1.LabelSelector`), on labels of pods."""

from collections.abc import Iterable, Mapping

from kaicore.model.selector import Requirement

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def matches(labels: Mapping[str, str], match_labels: Mapping[str, str], requirements: Iterable[Requirement]) -> bool:
    """Tell whether labels are selected; nothing asked for selects everything."""
    if any(labels.get(key) != value for key, value in match_labels.items()):
        return False
    return all(_holds(labels, one) for one in requirements)


def _holds(labels: Mapping[str, str], one: Requirement) -> bool:
    value = labels.get(one.key)
    match one.operator:
        case "In":
            return value in one.values
        case "NotIn":
            # As in Kubernetes, a label that is not there is in no set.
            return value not in one.values
        case "Exists":
            return value is not None
        case _:
            return value is None
