"""Node selectors and required node affinity, as the kubelet's general predicate matches them."""

from collections.abc import Callable, Mapping

from kaicore.errors import InvalidObject
from kaicore.kube.constraint_objects import NodeSelectorTerm, SelectorRequirement

from kai_fleet.wire import PodObject

Labels = Mapping[str, str]

_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def node_matcher(pod: PodObject) -> Callable[[Labels], bool] | None:
    """Return a predicate over a node's labels (the node's name under `metadata.name`), or None when any node will do.

    Raises:
        InvalidObject: an operator is unknown.
    """
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required
    wanted = pod.spec.node_selector
    if not wanted and not required:
        return None
    terms = (required.node_selector_terms or []) if required else []
    for term in terms:
        for requirement in (*(term.match_expressions or ()), *(term.match_fields or ())):
            if requirement.operator not in _OPERATORS:
                raise InvalidObject(str(pod), "spec.affinity.nodeAffinity", requirement.operator, "unknown operator")

    def matches(labels: Labels) -> bool:
        if any(labels.get(key) != value for key, value in (wanted or {}).items()):
            return False
        return not required or any(_term_holds(term, labels) for term in terms)

    return matches


def _term_holds(term: NodeSelectorTerm, labels: Labels) -> bool:
    """A term without any requirement holds for no node."""
    requirements = [*(term.match_expressions or ()), *(term.match_fields or ())]
    return bool(requirements) and all(_holds(requirement, labels) for requirement in requirements)


def _holds(requirement: SelectorRequirement, labels: Labels) -> bool:
    value = labels.get(requirement.key)
    values = requirement.values or []
    match requirement.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case operator:
            try:
                number, bound = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > bound if operator == "Gt" else number < bound
