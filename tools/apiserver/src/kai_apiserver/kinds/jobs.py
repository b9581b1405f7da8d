"""Jobs: defaults, the selector and labels the server generates, validation."""

from typing import Any

from kai_apiserver.errors import FieldError
from kai_apiserver.kinds.pod_validation import validate_pod_spec
from kai_apiserver.kinds.pods import default_pod_spec
from kai_apiserver.kinds.rules import Cluster
from kai_apiserver.objects import Object

CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
_LEGACY_CONTROLLER_UID = "controller-uid"
_LEGACY_JOB_NAME = "job-name"

_COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
#: What may change in the template of a suspended Job that has not started.
_SCHEDULING_FIELDS = ("nodeSelector", "affinity", "tolerations", "schedulingGates")


def default_job(job: Object) -> None:
    """Fill in what a Job leaves out."""
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    if "backoffLimitPerIndex" in spec:
        spec.setdefault("backoffLimit", 2**31 - 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    spec.setdefault("podReplacementPolicy", "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed")
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    template = spec.get("template") or {}
    if template.get("spec"):
        default_pod_spec(template["spec"])


def admit_job(job: Object, cluster: Cluster) -> None:
    """Reset the status, and tie the Job to its pods by its uid."""
    del cluster
    job["status"] = {}
    spec, metadata = job["spec"], job["metadata"]
    if spec.get("manualSelector"):
        return
    labels = {
        CONTROLLER_UID: metadata["uid"],
        JOB_NAME: metadata["name"],
        _LEGACY_CONTROLLER_UID: metadata["uid"],
        _LEGACY_JOB_NAME: metadata["name"],
    }
    template = spec.setdefault("template", {})
    template_metadata = template.setdefault("metadata", {})
    template_metadata["labels"] = {**(template_metadata.get("labels") or {}), **labels}
    spec["selector"] = {"matchLabels": {CONTROLLER_UID: metadata["uid"]}}


def validate_job(job: Object) -> list[FieldError]:
    """The problems of a Job."""
    spec = job["spec"]
    errors = [
        FieldError("FieldValueInvalid", f"spec.{name}", detail="must be greater than or equal to 0", value=spec[name])
        for name in _COUNTS
        if isinstance(spec.get(name), int) and spec[name] < 0
    ]
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        errors.append(FieldError("FieldValueRequired", "spec.completions", detail="when completion mode is Indexed"))
    if spec.get("backoffLimitPerIndex") is not None and not indexed:
        errors.append(
            FieldError(
                "FieldValueInvalid",
                "spec.backoffLimitPerIndex",
                detail="requires indexed completion mode",
                value=spec["backoffLimitPerIndex"],
            )
        )
    pod_spec = (spec.get("template") or {}).get("spec") or {}
    errors += validate_pod_spec(pod_spec, "spec.template.spec")
    if pod_spec.get("restartPolicy") == "Always":
        errors.append(
            FieldError(
                "FieldValueRequired", "spec.template.spec.restartPolicy", detail='valid values: "OnFailure", "Never"'
            )
        )
    if spec.get("podFailurePolicy") and pod_spec.get("restartPolicy") != "Never":
        errors.append(
            FieldError(
                "FieldValueInvalid",
                "spec.template.spec.restartPolicy",
                detail='only "Never" is supported when podFailurePolicy is specified',
                value=pod_spec.get("restartPolicy"),
            )
        )
    return errors


def validate_job_update(new: Object, old: Object) -> list[FieldError]:
    """The problems of a change of a Job: its pod template is fixed once pods may exist."""
    before, after = old["spec"], new["spec"]
    errors = [
        _immutable(f"spec.{name}", after.get(name))
        for name in ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex")
        if before.get(name) != after.get(name)
    ]
    elastic = after.get("completionMode") == "Indexed" and after.get("completions") == after.get("parallelism")
    if before.get("completions") != after.get("completions") and not elastic:
        errors.append(_immutable("spec.completions", after.get("completions")))
    started = bool((old.get("status") or {}).get("startTime"))
    may_move = bool(before.get("suspend")) and not started
    if _fixed_part(before["template"], may_move=may_move) != _fixed_part(after["template"], may_move=may_move):
        errors.append(_immutable("spec.template", after["template"]))
    return errors


def _fixed_part(template: Object, *, may_move: bool) -> Object:
    if not may_move:
        return template
    spec = {key: value for key, value in template["spec"].items() if key not in _SCHEDULING_FIELDS}
    metadata = template.get("metadata") or {}
    return {"metadata": {key: metadata[key] for key in metadata if key not in ("labels", "annotations")}, "spec": spec}


def _immutable(field: str, value: Any) -> FieldError:
    return FieldError("FieldValueInvalid", field, detail="field is immutable", value=value)
