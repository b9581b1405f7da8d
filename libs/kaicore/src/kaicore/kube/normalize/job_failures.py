"""Status of owners about pods that have ended: how many succeeded, and how many more failures a Job allows, evictions
counted.

The eviction API sets the condition `DisruptionTarget` on a pod. A pod failure policy may define the effect on the Job
of a failure with that condition. Without such a policy it counts towards `backoffLimit`, as does a pod that is deleted
while it runs. Source: Kubernetes 1.36, `pkg/controller/job` (`job_controller.go`, `pod_failure_policy.go`,
`backoff_utils.go`).
"""

from kaicore.kube.wire.groups import JobObject, JobSpec, PodFailureRule
from kaicore.rules.model.group_source import JobFailures

#: `spec.backoffLimit` where nothing is said.
_DEFAULT_LIMIT = 6
#: Pods that have failed are never more than this many, as in the schema.
_MOST = 2**31 - 1
_DISRUPTION_TARGET = "DisruptionTarget"


def job_failures(wire: JobObject) -> JobFailures | None:
    """Return how many failures a Job bears; None where those by evictions are ignored."""
    action = _action(wire.spec)
    if action == "Ignore":
        return None
    failed = _count(wire.status.failed)
    if action == "FailJob":
        return JobFailures(limit=failed, failed=failed)
    if wire.spec.backoff_limit_per_index is not None:
        per_index = 0 if action == "FailIndex" else _count(wire.spec.backoff_limit_per_index)
        return JobFailures(limit=per_index, per_index=True)
    limit = _DEFAULT_LIMIT if wire.spec.backoff_limit is None else _count(wire.spec.backoff_limit)
    return JobFailures(limit=limit, failed=failed)


def ended_well(succeeded: int | None) -> int:
    """Return how many pods a status says have succeeded; what is no count says nothing."""
    return _count(succeeded)


def _action(spec: JobSpec) -> str:
    """Return what the first rule about the condition says; `Count` where none does."""
    rules = spec.pod_failure_policy.rules if spec.pod_failure_policy is not None else None
    return next((rule.action for rule in rules or () if _is_about_evictions(rule)), "Count")


def _is_about_evictions(rule: PodFailureRule) -> bool:
    return any(
        one.type == _DISRUPTION_TARGET and (one.status or "True") == "True" for one in rule.on_pod_conditions or ()
    )


def _count(value: int | None) -> int:
    return min(max(value or 0, 0), _MOST)
