"""`deploy/overlays/shadow`: what is left of the manifests without the binder can write nothing to a cluster."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from kaicore.yaml_text import load_yaml, load_yaml_all

DEPLOY = Path(__file__).parents[3] / "deploy"
OVERLAY = DEPLOY / "overlays/shadow"
READS = {"get", "list", "watch"}


def without_the_binder() -> list[dict[str, Any]]:
    """The objects of `deploy/k8s` that the overlay's label selector leaves, by our own reading of it."""
    overlay = load_yaml((OVERLAY / "kustomization.yaml").read_text())
    label, _, value = overlay["patches"][0]["target"]["labelSelector"].partition("=")
    names = load_yaml((DEPLOY / "k8s/kustomization.yaml").read_text())["resources"]
    objects = [item for name in names for item in load_yaml_all((DEPLOY / "k8s" / name).read_text()) if item]
    return [item for item in objects if item["metadata"].get("labels", {}).get(label) != value]


def check(objects: list[dict[str, Any]]) -> None:
    roles = [item for item in objects if item["kind"] in ("ClusterRole", "Role")]
    writing = {
        resource
        for role in roles
        for rule in role["rules"]
        if not set(rule["verbs"]) <= READS
        for resource in rule.get("resources", ())
    }
    assert writing == {"tokenreviews"}
    assert not [item for item in objects if "binder" in item["metadata"]["name"] and item["kind"] != "NetworkPolicy"]
    assert [item for item in objects if item["kind"] == "Deployment" and item["metadata"]["name"] == "kai-scheduler"]


def test_no_account_of_a_shadow_may_write() -> None:
    check(without_the_binder())


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed here")
def test_kustomize_renders_a_shadow() -> None:
    done = subprocess.run(["kubectl", "kustomize", OVERLAY], capture_output=True, text=True, check=True)
    objects = [item for item in load_yaml_all(done.stdout) if item]
    check(objects)
    (scheduler,) = [
        item for item in objects if (item["kind"], item["metadata"]["name"]) == ("Deployment", "kai-scheduler")
    ]
    environment = scheduler["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "KAI_SHADOW", "value": "default-scheduler"} in environment
