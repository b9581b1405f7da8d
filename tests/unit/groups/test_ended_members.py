"""Members that have ended well, as owners tell of them when their pods are gone."""

from typing import Any

import pytest

from tests.given.work.groups import source_of

JOB = {"spec": {"completions": 4, "parallelism": 2}}


def owner(kind: str, api: str, **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "default", "uid": "u", **fields.pop("metadata", {})},
        **fields,
    }


def job(least: str, **status: Any) -> dict[str, Any]:
    return owner("Job", "batch/v1", metadata={"annotations": {"kai.scheduler/batch-min-member": least}}, status=status)


def jobset(*status: dict[str, Any]) -> dict[str, Any]:
    spec = {"replicatedJobs": [{"name": "w", "replicas": 3, "template": JOB}, {"name": "d", "template": JOB}]}
    return owner("JobSet", "jobset.x-k8s.io/v1alpha2", spec=spec, status={"replicatedJobsStatus": list(status)})


def pytorch(**statuses: Any) -> dict[str, Any]:
    spec = {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}
    return owner("PyTorchJob", "kubeflow.org/v1", spec=spec, status={"replicaStatuses": statuses})


@pytest.mark.parametrize(
    ("document", "ended"),
    [
        pytest.param(job("3", succeeded=2), {"": 2}, id="a Job"),
        pytest.param(job("3"), {}, id="none yet"),
        pytest.param(job("3", succeeded=-1), {}, id="no count"),
        pytest.param(job("3", succeeded=2**40), {"": 2**31 - 1}, id="no count of pods"),
        pytest.param(job("1", succeeded=2), {}, id="a Job with pods that wait for none of the others"),
        pytest.param(jobset({"name": "w", "succeeded": 2}), {"w": 4}, id="two Jobs of two pods"),
        pytest.param(jobset({"name": "w", "succeeded": 9}), {"w": 6}, id="no more than there are"),
        pytest.param(jobset({"name": "other", "succeeded": 1}), {}, id="of a replicated job that is none"),
        pytest.param(pytorch(Worker={"succeeded": 2, "failed": 1}), {"worker": 2}, id="workers"),
        pytest.param(pytorch(Worker={}, Evaluator={"succeeded": 1}), {}, id="of a type that is none"),
    ],
)
def test_group_has_what_its_owner_says(document: dict[str, Any], ended: dict[str, int]) -> None:
    (template,) = source_of(document).templates
    assert {one.name: one.ended for one in template.sets if one.ended} == ended
