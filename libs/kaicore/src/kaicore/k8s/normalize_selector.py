"""Selectors from the wire into the model."""

from collections.abc import Iterable

from kaicore.errors import InvalidObject
from kaicore.k8s.constraint_objects import LabelSelector, NodeSelectorTerm
from kaicore.model.selector import Requirement

_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")


def label_requirements(selector: LabelSelector | None, *, subject: str, field: str) -> tuple[Requirement, ...] | None:
    """Return a label selector's requirements, sorted; None without a selector, which selects nothing.

    Raises:
        InvalidObject: an operator that label selectors do not have, or one with too few or too many values.
    """
    if selector is None:
        return None
    found = {Requirement(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for index, expression in enumerate(selector.match_expressions or ()):
        operator, values = expression.operator, tuple(sorted(set(expression.values or ())))
        where = f"{field}.matchExpressions[{index}]"
        if operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
            raise InvalidObject(subject, f"{where}.operator", operator, "not a label selector operator")
        if bool(values) != (operator in _WITH_VALUES):
            raise InvalidObject(subject, f"{where}.values", values, f"not values of {operator}")
        found.add(Requirement(expression.key, operator, values))
    return sorted_requirements(found)


def sorted_requirements(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Return requirements in a fixed order, each once."""
    return tuple(sorted(set(requirements), key=lambda item: (item.key, item.operator, item.values)))


def node_term(term: NodeSelectorTerm) -> tuple[Requirement, ...]:
    """Return a node selector term's requirements, on labels first."""
    return tuple(
        Requirement(
            key=expression.key,
            operator=expression.operator,
            values=tuple(sorted(expression.values or ())),
            field=field,
        )
        for expressions, field in ((term.match_expressions, False), (term.match_fields, True))
        for expression in expressions or ()
    )
