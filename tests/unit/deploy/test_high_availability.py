"""What is deployed stays available: databases that wait for a standby."""

import re

import yaml

from tests.unit.deploy.test_commands import DEPLOY


def test_the_postgres_cluster_has_the_logs_roles_and_acknowledges_nothing_alone() -> None:
    spec = yaml.safe_load((DEPLOY / "postgres" / "cloudnative-pg.yaml").read_text())["spec"]
    roles = {spec["bootstrap"]["initdb"]["owner"], *(role["name"] for role in spec["managed"]["roles"])}
    assert roles == set(re.findall(r"ALTER ROLE (kai_\w+)", (DEPLOY / "postgres" / "roles.sql").read_text()))
    synchronous = spec["postgresql"]["synchronous"]
    assert synchronous["dataDurability"] == "required"
    assert 1 <= synchronous["number"] <= spec["instances"] - 2, "one standby may be away"
