"""Fields that objects of several kinds share, selectors among them, converted into the model."""

import re
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import TypedDict

from kaicore.errors import InvalidObject, InvalidQuantity, Lost
from kaicore.kube.wire.objects import NodeSelector, NodeSelectorTerm, Quantities
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import read_amount
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import LabelSelector, ObjectMeta, SelectorRequirement


def amount(text: str | float, *, resource: str, subject: str, field: str, lost: Lost) -> int:
    """Parse a quantity into canonical units; of one that is too large to be believed the most that is.

    Raises InvalidQuantity: it is no quantity, or is negative.
    """
    sound = _sound_amount(text, resource)
    if sound is not None:
        return sound
    units, problem = read_amount(str(text), resource=resource, subject=subject, field=field)
    if problem is not None:
        lost(problem)
    return units


def amounts(quantities: Quantities | None, *, subject: str, field: str, lost: Lost) -> Amounts:
    """Parse quantities by resource name into canonical units, without those that are none."""
    amounts_by_name: Amounts = {}
    for name, text in (quantities or {}).items():
        try:
            amounts_by_name[name] = amount(text, resource=name, subject=subject, field=f"{field}[{name}]", lost=lost)
        except InvalidQuantity as error:
            lost(error)
    return amounts_by_name


@lru_cache(maxsize=4096)
def _sound_amount(text: str | float, resource: str) -> int | None:
    """Return a quantity in canonical units; None where there is something to say of it."""
    try:
        units, problem = read_amount(str(text), resource=resource, subject="", field="")
    except InvalidQuantity:
        return None
    return units if problem is None else None


class _Identity(TypedDict):
    """The fields by which every object of the model is known."""

    uid: str
    name: str
    resource_version: str


class _NamespacedIdentity(_Identity):
    """The same of one in a namespace."""

    namespace: str


def identity(metadata: ObjectMeta) -> _Identity:
    """Return by which fields an object is known."""
    return {"uid": metadata.uid, "name": metadata.name, "resource_version": metadata.resource_version}


def namespaced_identity(metadata: ObjectMeta) -> _NamespacedIdentity:
    """Return by which fields an object in a namespace is known."""
    return {**identity(metadata), "namespace": metadata.namespace}


def changed_at(metadata: ObjectMeta) -> int:
    """Return when the object was last written by the API server's clock, microseconds since the epoch; 0 if unknown.

    Source: `metadata.managedFields[].time`, which every write of a manager stamps, to the second.
    """
    latest = max((entry.time for entry in metadata.managed_fields or () if entry.time), default="")
    try:
        written = datetime.fromisoformat(latest) if latest else metadata.creation_timestamp
    except ValueError:
        written = metadata.creation_timestamp
    if written is None or written.tzinfo is None:
        return 0
    return int(written.timestamp()) * 1_000_000


_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_WITH_A_NUMBER = ("Gt", "Lt")
_INTEGER = re.compile(r"[+-]?[0-9]+")


def selector(fields: Fields, name: str) -> tuple[Requirement, ...] | None:
    """Return the requirements of a field that is a label selector; see `label_requirements`."""
    given = fields.read(name, LabelSelector)
    return label_requirements(given, subject=fields.subject, field=fields.where(name))


def label_requirements(selector: LabelSelector | None, *, subject: str, field: str) -> tuple[Requirement, ...] | None:
    """Return a label selector's requirements, sorted; None without a selector, which selects nothing.

    Raises InvalidObject: an operator that label selectors do not have, or one with too few or too many values.
    """
    if selector is None:
        return None
    requirements = {Requirement(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for index, expression in enumerate(selector.match_expressions or ()):
        operator, values = expression.operator, tuple(sorted(set(expression.values or ())))
        where = f"{field}.matchExpressions[{index}]"
        if operator not in (*_WITH_VALUES, *_WITHOUT_VALUES):
            raise InvalidObject(subject, f"{where}.operator", operator, "not a label selector operator")
        if bool(values) != (operator in _WITH_VALUES):
            raise InvalidObject(subject, f"{where}.values", values, f"not values of {operator}")
        requirements.add(Requirement(expression.key, operator, values))
    return sorted_requirements(requirements)


def sorted_requirements(requirements: Iterable[Requirement]) -> tuple[Requirement, ...]:
    """Return requirements in a fixed order, each once."""
    return tuple(sorted(set(requirements), key=lambda item: (item.key, item.operator, item.values)))


def required_nodes(fields: Fields, name: str) -> tuple[tuple[Requirement, ...], ...] | None:
    """Return the terms of a field that is a node selector, of which a node has to meet any; None without one.

    Raises InvalidObject: see `node_term`.
    """
    given = fields.read(name, NodeSelector)
    if given is None:
        return None
    subject, where = fields.subject, f"{fields.where(name)}.nodeSelectorTerms"
    terms = enumerate(given.node_selector_terms or ())
    # A selector without terms selects nothing, which is what an empty term says.
    return tuple(node_term(term, subject=subject, field=f"{where}[{index}]") for index, term in terms) or ((),)


def node_term(term: NodeSelectorTerm, *, subject: str, field: str) -> tuple[Requirement, ...]:
    """Return a node selector term's requirements, on labels first.

    Raises InvalidObject: an operator that node selectors do not have, or one with values that it cannot have.
    """
    return tuple(
        _node_requirement(expression, is_field=is_field, subject=subject, field=f"{field}.{name}[{index}]")
        for name, expressions, is_field in (
            ("matchExpressions", term.match_expressions, False),
            ("matchFields", term.match_fields, True),
        )
        for index, expression in enumerate(expressions or ())
    )


def _node_requirement(expression: SelectorRequirement, *, is_field: bool, subject: str, field: str) -> Requirement:
    operator, values = expression.operator, tuple(sorted(expression.values or ()))
    operators = _WITH_VALUES if is_field else (*_WITH_VALUES, *_WITHOUT_VALUES, *_WITH_A_NUMBER)
    if operator not in operators:
        raise InvalidObject(subject, f"{field}.operator", operator, f"is none of {', '.join(operators)}")
    fitting = bool(values) == (operator not in _WITHOUT_VALUES)
    if operator in _WITH_A_NUMBER:
        fitting = len(values) == 1 and _INTEGER.fullmatch(values[0]) is not None
    elif is_field:
        fitting = len(values) == 1
    if not fitting:
        raise InvalidObject(subject, f"{field}.values", values, f"not values of {operator}")
    return Requirement(key=expression.key, operator=operator, values=values, field=is_field)
