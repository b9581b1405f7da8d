"""Validation of a pod's placement constraints: affinities and spread constraints."""

from collections.abc import Iterable

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.metadata import validate_labels
from kai_apiserver.objects import Object

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WITH_VALUES = ("In", "NotIn")
_WITHOUT_VALUES = ("Exists", "DoesNotExist")
_COMPARING = ("Gt", "Lt")
_UNSATISFIABLE = ("DoNotSchedule", "ScheduleAnyway")
_NODE_POLICIES = ("Honor", "Ignore")
_NODE_FIELD = "metadata.name"
_MOST_WEIGHT = 100


def validate_constraints(spec: Object, field: str) -> list[FieldError]:
    """What is wrong with the constraints in a pod's spec."""
    affinity = spec.get("affinity") or {}
    errors = _validate_node_affinity(affinity.get("nodeAffinity") or {}, f"{field}.affinity.nodeAffinity")
    for kind in ("podAffinity", "podAntiAffinity"):
        errors += _validate_pod_affinity(affinity.get(kind) or {}, f"{field}.affinity.{kind}")
    for index, constraint in enumerate(spec.get("topologySpreadConstraints") or ()):
        errors += _validate_spread(constraint, f"{field}.topologySpreadConstraints[{index}]")
    return errors


def _validate_node_affinity(affinity: Object, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    required = affinity.get(_REQUIRED)
    if required is not None:
        terms = required.get("nodeSelectorTerms") or ()
        where = f"{field}.{_REQUIRED}.nodeSelectorTerms"
        if not terms:
            errors.append(FieldError("FieldValueRequired", where, detail="must have at least one node selector term"))
        for index, term in enumerate(terms):
            errors += _validate_node_term(term, f"{where}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        where = f"{field}.{_PREFERRED}[{index}]"
        errors += _validate_weight(preferred, where)
        errors += _validate_node_term(preferred.get("preference") or {}, f"{where}.preference")
    return errors


def _validate_node_term(term: Object, field: str) -> list[FieldError]:
    operators = (*_WITH_VALUES, *_WITHOUT_VALUES, *_COMPARING)
    errors = _validate_expressions(term.get("matchExpressions") or (), f"{field}.matchExpressions", operators)
    for index, expression in enumerate(term.get("matchFields") or ()):
        errors += _validate_node_field(expression, f"{field}.matchFields[{index}]")
    return errors


def _validate_node_field(expression: Object, field: str) -> list[FieldError]:
    errors = []
    key, operator = expression.get("key"), expression.get("operator")
    if operator not in _WITH_VALUES:
        detail = "not a valid selector operator"
        errors.append(FieldError("FieldValueInvalid", f"{field}.operator", detail=detail, value=operator))
    elif len(expression.get("values") or ()) != 1:
        detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(FieldError("FieldValueRequired", f"{field}.values", detail=detail))
    if key != _NODE_FIELD:
        detail = "not a valid field selector key"
        errors.append(FieldError("FieldValueInvalid", f"{field}.key", detail=detail, value=key))
    return errors


def _validate_expressions(expressions: Iterable[Object], field: str, operators: tuple[str, ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, expression in enumerate(expressions):
        where = f"{field}[{index}]"
        operator, values = expression.get("operator"), expression.get("values") or ()
        if operator not in operators:
            detail = "not a valid selector operator"
            errors.append(FieldError("FieldValueInvalid", f"{where}.operator", detail=detail, value=operator))
        elif operator in _WITH_VALUES and not values:
            detail = "must be specified when `operator` is 'In' or 'NotIn'"
            errors.append(FieldError("FieldValueRequired", f"{where}.values", detail=detail))
        elif operator in _WITHOUT_VALUES and values:
            detail = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(FieldError("FieldValueForbidden", f"{where}.values", detail=detail))
        elif operator in _COMPARING and len(values) != 1:
            detail = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(FieldError("FieldValueRequired", f"{where}.values", detail=detail))
        errors += validate_labels({expression.get("key", ""): ""}, f"{where}.key")
    return errors


def _validate_pod_affinity(affinity: Object, field: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, term in enumerate(affinity.get(_REQUIRED) or ()):
        errors += _validate_pod_term(term, f"{field}.{_REQUIRED}[{index}]")
    for index, preferred in enumerate(affinity.get(_PREFERRED) or ()):
        where = f"{field}.{_PREFERRED}[{index}]"
        errors += _validate_weight(preferred, where)
        errors += _validate_pod_term(preferred.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm")
    return errors


def _validate_pod_term(term: Object, field: str) -> list[FieldError]:
    errors = _validate_topology_key(term, field)
    for name in ("labelSelector", "namespaceSelector"):
        errors += validate_label_selector(term.get(name) or {}, f"{field}.{name}")
    return errors


def validate_label_selector(selector: Object, field: str) -> list[FieldError]:
    """What is wrong with a label selector."""
    errors = validate_labels(selector.get("matchLabels"), f"{field}.matchLabels")
    operators = (*_WITH_VALUES, *_WITHOUT_VALUES)
    return errors + _validate_expressions(
        selector.get("matchExpressions") or (), f"{field}.matchExpressions", operators
    )


def _validate_topology_key(constraint: Object, field: str) -> list[FieldError]:
    key = constraint.get("topologyKey")
    if not key:
        return [FieldError("FieldValueRequired", f"{field}.topologyKey", detail="can not be empty")]
    return validate_labels({key: ""}, f"{field}.topologyKey")


def _validate_weight(preferred: Object, field: str) -> list[FieldError]:
    weight = preferred.get("weight", 0)
    if 1 <= weight <= _MOST_WEIGHT:
        return []
    return [FieldError("FieldValueInvalid", f"{field}.weight", detail="must be in the range 1-100", value=weight)]


def _validate_spread(constraint: Object, field: str) -> list[FieldError]:
    errors = []
    for name in ("maxSkew", "minDomains"):
        value = constraint.get(name, 0 if name == "maxSkew" else None)
        if value is not None and value <= 0:
            detail = "must be greater than zero"
            errors.append(FieldError("FieldValueInvalid", f"{field}.{name}", detail=detail, value=value))
    errors += _validate_topology_key(constraint, field)
    action = constraint.get("whenUnsatisfiable", "")
    if action not in _UNSATISFIABLE:
        where = f"{field}.whenUnsatisfiable"
        errors.append(FieldError("FieldValueNotSupported", where, value=action, supported=_UNSATISFIABLE))
    elif constraint.get("minDomains") is not None and action != "DoNotSchedule":
        detail = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
        value = constraint["minDomains"]
        errors.append(FieldError("FieldValueInvalid", f"{field}.minDomains", detail=detail, value=value))
    for name in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        policy = constraint.get(name)
        if policy is not None and policy not in _NODE_POLICIES:
            where = f"{field}.{name}"
            errors.append(FieldError("FieldValueNotSupported", where, value=policy, supported=_NODE_POLICIES))
    return errors + validate_label_selector(constraint.get("labelSelector") or {}, f"{field}.labelSelector")
