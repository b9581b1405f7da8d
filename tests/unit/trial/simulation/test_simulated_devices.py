"""Devices in a simulation of manifests: claims are made of templates, and extended resources are served by devices."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from kai_fleet.offline import OfflineKubelets

from tests.given.cluster.devices import DRIVER, exactly, gpu, slice_document
from tests.given.logs.simulating import document_of, world_of

RESOURCE = {"apiVersion": "resource.k8s.io/v1"}


def manifests(*more: dict[str, Any], gpus: int = 2) -> str:
    """A node with devices, their class and a template of a claim for one, as YAML."""
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "a"},
        "status": {"allocatable": {"cpu": 8, "memory": "8Gi", "pods": 20}},
    }
    device_class = {
        **RESOURCE,
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
            "extendedResourceName": "example.com/gpu",
        },
    }
    devices = slice_document("a", *(gpu(f"gpu-{number}") for number in range(gpus)))
    template = {
        **RESOURCE,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-gpu"},
        "spec": {"spec": {"devices": {"requests": [exactly()]}}},
    }
    every = [node, device_class, {**RESOURCE, "kind": "ResourceSlice", **devices}, template, *more]
    return yaml.safe_dump_all(every)


def job(name: str, pods: int, *, claims: bool) -> dict[str, Any]:
    amounts = {"cpu": 1, "memory": "1Gi"}
    container: dict[str, Any] = {"name": "c", "image": "i", "resources": {"requests": dict(amounts)}}
    spec: dict[str, Any] = {"containers": [container], "restartPolicy": "Never"}
    if claims:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
        container["resources"]["claims"] = [{"name": "gpu"}]
    else:
        container["resources"]["limits"] = {**amounts, "example.com/gpu": 1}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"parallelism": pods, "completions": pods, "template": {"spec": spec}},
    }


@pytest.mark.parametrize("claims", [True, False])
def test_as_many_pods_are_placed_as_there_are_devices(claims: bool, tmp_path: Path) -> None:
    world = world_of(manifests(job("train", 3, claims=claims)), tmp_path)
    document = document_of(world, kubelets=OfflineKubelets())
    assert [pod["node"] for pod in document["pods"]].count("a") == 2
    (waiting,) = (pod for pod in document["pods"] if not pod["node"])
    codes = {reason["code"] for reason in waiting["reasons"]}
    assert codes & {"DevicesTaken", "InsufficientResource"}
    assert not world.warnings


def test_pod_of_a_template_that_is_not_there_waits_for_its_claim_and_a_warning_says_what_to_give(
    tmp_path: Path,
) -> None:
    one = job("train", 2, claims=True)
    one["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = "missing"
    world = world_of(manifests(one), tmp_path)
    pod, _ = document_of(world)["pods"]
    assert "is not made yet from template missing" in str(pod["reasons"])
    assert world.warnings == [
        "2 pods are to get a claim of ResourceClaimTemplate default/missing, which is not given: "
        "give the output of `kubectl get resourceclaimtemplate missing -n default -o yaml` too"
    ]


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
def test_pod_that_has_its_claim_or_needs_none_any_more_asks_for_no_template(phase: str, tmp_path: Path) -> None:
    spec = {**job("train", 1, claims=True)["spec"]["template"]["spec"]}
    spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "missing"}]
    named = [{"name": "gpu", "resourceClaimName": "p-gpu-x7k2p"}] if phase == "Pending" else []
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "p"},
        "spec": spec,
        "status": {"phase": phase, "resourceClaimStatuses": named},
    }
    assert not world_of(manifests(pod), tmp_path).warnings


@pytest.mark.parametrize("status", [{}, "malformed", {"resourceClaimStatuses": ["malformed", {"name": "other"}]}])
def test_pods_of_a_pod_group_share_the_claim_that_its_template_makes(status: object, tmp_path: Path) -> None:
    use = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
    train = job("train", 3, claims=True)
    train["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "train"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 3}}, "resourceClaims": [use, "malformed"]},
        "status": status,
    }
    world = world_of(manifests(train, group, gpus=1), tmp_path)
    assert [pod["node"] for pod in document_of(world)["pods"]] == ["a", "a", "a"]
    assert not world.warnings
