"""`kai simulate` tells which groups would ask for nodes; no server is needed, and no nodes come."""

from pathlib import Path
from typing import Any

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.work.provisioning import ProvisioningConfig

from tests.given.logs.simulating import document_of, node, world_of

CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
GANG = """---
apiVersion: batch/v1
kind: Job
metadata: {name: train, annotations: {kai.scheduler/batch-min-member: "3", ANNOTATED}}
spec:
  parallelism: 3
  template:
    spec:
      schedulerName: kai-ledger
      containers: [{name: c, resources: {limits: {nvidia.com/gpu: 4}}}]
"""


def codes(tmp_path: Path, *, chosen: str = "", config: EngineConfig | None = None) -> list[list[Any]]:
    annotated = f"kai.scheduler/provisioning-class: {chosen}" if chosen else "other: x"
    document = document_of(world_of(node() + GANG.replace("ANNOTATED", annotated), tmp_path), config)
    assert {pod["phase"] for pod in document["pods"]} == {"Pending"}
    return [[reason["code"] for reason in pod["reasons"]] for pod in document["pods"]]


def test_a_gang_would_ask_for_nodes_where_the_settings_say_so(tmp_path: Path) -> None:
    config = EngineConfig(provisioning=ProvisioningConfig(CLASS))
    for found in codes(tmp_path, config=config):
        assert found[:2] == ["WaitsForProvisioning", "GangDoesNotFit"]
    assert all(found[0] == "GangDoesNotFit" for found in codes(tmp_path))
    assert all(found[0] == "GangDoesNotFit" for found in codes(tmp_path, chosen="none", config=config))


def test_a_job_that_names_another_class_is_told_which_there_are(tmp_path: Path) -> None:
    config = EngineConfig(provisioning=ProvisioningConfig(CLASS))
    assert all(found[0] == "ProvisioningClassNotAllowed" for found in codes(tmp_path, chosen="c", config=config))
