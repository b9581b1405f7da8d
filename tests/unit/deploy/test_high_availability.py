"""Deployments stay available: a second of everything, apart from the first; a database with standbys."""

import re
from typing import Any

import pytest
from kaicore.yaml_text import load_yaml

from tests.unit.deploy.test_commands import DEPLOY, MANIFESTS

DEPLOYMENTS = {item["metadata"]["name"]: item["spec"] for item in MANIFESTS if item["kind"] == "Deployment"}
BUDGETS = {item["metadata"]["name"]: item["spec"] for item in MANIFESTS if item["kind"] == "PodDisruptionBudget"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_each_service_has_a_second_instance_apart_from_the_first(name: str) -> None:
    spec: dict[str, Any] = DEPLOYMENTS[name]
    assert spec["replicas"] >= 2
    # Else an upgrade would end the one that leads before another is ready.
    assert spec.get("strategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
    spreads = spec["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spreads] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    selectors = [spec["selector"], BUDGETS[name]["selector"], *(one["labelSelector"] for one in spreads)]
    # Each shard has schedulers of its own, and budgets of two shards may not count the same pods.
    shard = {"kai.scheduler/shard": "default"} if name == "kai-scheduler" else {}
    assert all(selector == {"matchLabels": {"app.kubernetes.io/name": name, **shard}} for selector in selectors)
    assert BUDGETS[name]["maxUnavailable"] == 1


def test_the_postgres_cluster_has_the_logs_roles_and_acknowledges_nothing_alone() -> None:
    spec = load_yaml((DEPLOY / "postgres" / "cloudnative-pg.yaml").read_text())["spec"]
    roles = {spec["bootstrap"]["initdb"]["owner"], *(role["name"] for role in spec["managed"]["roles"])}
    assert roles == set(re.findall(r"ALTER ROLE (kai_\w+)", (DEPLOY / "postgres" / "roles.sql").read_text()))
    synchronous = spec["postgresql"]["synchronous"]
    assert synchronous["dataDurability"] == "required"
    assert 1 <= synchronous["number"] <= spec["instances"] - 2, "one standby may be away"
