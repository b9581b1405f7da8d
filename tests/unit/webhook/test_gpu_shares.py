"""Admission of pods that ask for a share of a GPU."""

import json
from typing import Any

import pytest
from kai_webhook.gpu_shares import admitted
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
