"""Label selectors of Kubernetes (`metav1.LabelSelector`), on labels of pods."""

from collections.abc import Iterable, Mapping

from kaicore.rules.model.selector import Requirement, meets

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def matches(labels: Mapping[str, str], match_labels: Mapping[str, str], requirements: Iterable[Requirement]) -> bool:
    """Tell whether labels are selected; nothing asked for selects everything."""
    return all(labels.get(key) == value for key, value in match_labels.items()) and meets(labels, requirements)
