"""Validation of nodes."""

from kai_fleet.quantity import exact_value

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.metadata import validate_labels
from kai_apiserver.kinds.pod_validation import TAINT_EFFECTS
from kai_apiserver.objects import Object, is_qualified_name


def validate_node(node: Object) -> list[FieldError]:
    """What is wrong with a node: its amounts and taints."""
    return validate_node_status(node) + _validate_taints((node.get("spec") or {}).get("taints") or ())


def validate_node_status(node: Object) -> list[FieldError]:
    """What is wrong with what a kubelet says of its node."""
    errors = []
    status = node.get("status") or {}
    for kind in ("capacity", "allocatable"):
        for name, value in (status.get(kind) or {}).items():
            field = f"status.{kind}[{name}]"
            if not is_qualified_name(name):
                detail = "must be a standard resource type or fully qualified"
                errors.append(FieldError("FieldValueInvalid", field, detail=detail, value=name))
            elif exact_value(value) < 0:
                detail = "must be greater than or equal to 0"
                errors.append(FieldError("FieldValueInvalid", field, detail=detail, value=value))
            elif "/" in name and exact_value(value).denominator != 1:
                errors.append(FieldError("FieldValueInvalid", field, detail="must be an integer", value=value))
    return errors


def _validate_taints(taints: list[Object] | tuple[()]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen = set()
    for index, taint in enumerate(taints):
        field = f"spec.taints[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        errors += validate_labels({key: ""}, f"{field}.key")
        errors += validate_labels({"value": taint.get("value", "")}, f"{field}.value")
        if not effect:
            errors.append(FieldError("FieldValueRequired", f"{field}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(
                FieldError("FieldValueNotSupported", f"{field}.effect", value=effect, supported=TAINT_EFFECTS)
            )
        if (key, effect) in seen:
            errors.append(FieldError("FieldValueDuplicate", field, value=taint))
        seen.add((key, effect))
    return errors
