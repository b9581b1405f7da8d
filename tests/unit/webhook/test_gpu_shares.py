"""Admission of pods that ask for a share of a GPU."""

import json
from typing import Any

import pytest
from kai_apiserver.rest.patching import apply_json_patch
from kai_webhook.app import admitted
from kaicore.errors import InvalidObject

Json = dict[str, Any]


def question(annotations: dict[str, str], *, scheduler: str = "kai-ledger", gpus: str = "") -> bytes:
    resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
    spec = {"schedulerName": scheduler, "containers": [{"name": "main", "image": "x", "resources": resources}]}
    return json.dumps({"metadata": {"name": "a", "annotations": annotations}, "spec": spec}).encode()


def answer(body: bytes, uid: str = "request") -> list[Json]:
    return admitted(body, namespace="ns", request_uid=uid, scheduler_name="kai-ledger")


@pytest.mark.parametrize("annotations", [{"gpu-fraction": "0.5"}, {"gpu-memory": "2000"}])
def test_pod_with_a_share_is_completed_the_same_way_for_the_same_question(annotations: dict[str, str]) -> None:
    patch = answer(question(annotations))
    assert {one["path"] for one in patch} == {
        "/metadata/annotations",
        "/spec/containers/0/env",
        "/spec/containers/0/envFrom",
        "/spec/volumes",
    }
    assert patch == answer(question(annotations))
    assert patch != answer(question(annotations), "another")


def test_virtual_gpus_of_another_project_become_a_share_with_all_that_it_needs() -> None:
    limits = {"cpu": "1", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    containers = [{"name": "main", "image": "x", "resources": {"limits": limits}}]
    spec = {"schedulerName": "kai-ledger", "containers": containers}
    given = {"metadata": {"name": "a"}, "spec": spec}
    pod = apply_json_patch(given, answer(json.dumps(given).encode()))
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {"limits": {"cpu": "1"}}
    assert [one["name"] for one in container["env"]][:2] == ["CUDA_DEVICE_MEMORY_LIMIT", "NVIDIA_VISIBLE_DEVICES"]
    assert pod["metadata"]["annotations"].keys() == {"gpu-memory", "runai/shared-gpu-configmap"}
    # Admitted twice, it stays as it is.
    assert answer(json.dumps(pod).encode()) == []


def test_virtual_gpus_that_are_whole_need_no_more_than_whole_gpus() -> None:
    containers = [{"name": "main", "resources": {"limits": {"volcano.sh/vgpu-number": "2"}}}]
    body = json.dumps({"metadata": {"name": "a"}, "spec": {"schedulerName": "kai-ledger", "containers": containers}})
    whole = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    assert answer(body.encode()) == [{"op": "replace", "path": "/spec/containers/0", "value": whole}]


@pytest.mark.parametrize(
    "body", [question({}), question({"gpu-fraction": "0.5"}, scheduler="kai-scheduler"), question({}, gpus="1")]
)
def test_pod_without_a_share_or_of_another_scheduler_stays_as_it_is(body: bytes) -> None:
    assert answer(body) == []


@pytest.mark.parametrize(
    ("annotations", "gpus", "words"),
    [
        (
            {"gpu-fraction": "1.5"},
            "",
            "Pod ns/a: metadata.annotations[gpu-fraction]: is no number between 0 and 1: '1.5'",
        ),
        ({"gpu-fraction": "0.5"}, "1", "nvidia.com/gpu: 1"),
        ({"gpu-memory": "2Gi"}, "", "metadata.annotations[gpu-memory]"),
        ({"gpu-fraction-num-devices": "2"}, "", "metadata.annotations[gpu-fraction-num-devices]"),
        ({"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"}, "", "gpu-fraction-container-name"),
    ],
)
def test_pod_that_contradicts_itself_is_refused_with_field_and_value(
    annotations: dict[str, str], gpus: str, words: str
) -> None:
    with pytest.raises(InvalidObject) as refused:
        answer(question(annotations, gpus=gpus))
    assert words in str(refused.value)


def test_what_is_no_pod_is_refused() -> None:
    with pytest.raises(InvalidObject, match="Pod"):
        answer(b'{"metadata": 1}')
