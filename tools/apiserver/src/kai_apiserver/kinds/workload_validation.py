"""Validation of Deployments and ReplicaSets."""

import re
from typing import Any

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.constraint_validation import validate_label_selector
from kai_apiserver.kinds.pod_validation import validate_pod_spec
from kai_apiserver.objects import Object
from kai_apiserver.selectors import selector_of

_COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
_STRATEGIES = ("Recreate", "RollingUpdate")
_PERCENTAGE = re.compile(r"[0-9]+%")


def validate_replicated(obj: Object) -> list[FieldError]:
    """What is wrong with a ReplicaSet, and with a Deployment besides its strategy."""
    spec = obj["spec"]
    errors = [
        FieldError("FieldValueInvalid", f"spec.{name}", detail="must be greater than or equal to 0", value=spec[name])
        for name in _COUNTS
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    template = spec.get("template") or {}
    selector = spec.get("selector") or {}
    wrong = validate_label_selector(selector, "spec.selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector.get("matchLabels") and not selector.get("matchExpressions"):
        detail = "empty selector is invalid for deployment"
        wrong.append(FieldError("FieldValueInvalid", "spec.selector", detail=detail, value=selector))
    elif not wrong:
        read = selector_of(selector)
        if read is not None and not read.matches(labels):
            detail = "`selector` does not match template `labels`"
            field = "spec.template.metadata.labels"
            wrong.append(FieldError("FieldValueInvalid", field, detail=detail, value=labels))
    pod_spec = template.get("spec") or {}
    errors += wrong + validate_pod_spec(pod_spec, "spec.template.spec")
    policy = pod_spec.get("restartPolicy", "Always")
    if policy != "Always":
        field = "spec.template.spec.restartPolicy"
        errors.append(FieldError("FieldValueNotSupported", field, value=policy, supported=("Always",)))
    return errors


def validate_deployment(deployment: Object) -> list[FieldError]:
    """What is wrong with a Deployment."""
    errors = validate_replicated(deployment)
    strategy = deployment["spec"]["strategy"]
    kind, rolling = strategy["type"], strategy.get("rollingUpdate")
    if kind not in _STRATEGIES:
        field = "spec.strategy.type"
        return [*errors, FieldError("FieldValueNotSupported", field, value=kind, supported=_STRATEGIES)]
    if kind == "Recreate":
        if rolling is not None:
            detail = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(FieldError("FieldValueForbidden", "spec.strategy.rollingUpdate", detail=detail))
        return errors
    rolling = rolling or {}
    for name in ("maxUnavailable", "maxSurge"):
        if not _is_count(value := rolling.get(name)):
            detail = "must be a non-negative number or a percentage (e.g. '1' or '25%')"
            field = f"spec.strategy.rollingUpdate.{name}"
            errors.append(FieldError("FieldValueInvalid", field, detail=detail, value=value))
    if {rolling.get(name) for name in ("maxUnavailable", "maxSurge")} <= {0, "0%"}:
        detail = "may not be 0 when `maxSurge` is 0"
        field = "spec.strategy.rollingUpdate.maxUnavailable"
        errors.append(FieldError("FieldValueInvalid", field, detail=detail, value=rolling.get("maxUnavailable")))
    return errors


def _is_count(value: Any) -> bool:
    return value >= 0 if isinstance(value, int) else bool(isinstance(value, str) and _PERCENTAGE.fullmatch(value))


def validate_replicated_update(new: Object, old: Object) -> list[FieldError]:
    """What is wrong with a change: which pods are meant stays."""
    if new["spec"].get("selector") == old["spec"].get("selector"):
        return []
    selector = new["spec"].get("selector")
    return [FieldError("FieldValueInvalid", "spec.selector", detail="field is immutable", value=selector)]
