"""The Compose file against the Compose specification; where an engine answers, it is run."""

import copy
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.e2e.cluster import answers
from tests.given.servers.servers import container_engine_answers
from tests.unit.deploy.test_commands import COMPOSE, DEPLOY

SCHEMA = json.loads((Path(__file__).parents[2] / "given/recorded/compose/compose-spec.json").read_text())
COMMAND = ["docker", "compose", "-f", str(DEPLOY / "compose/compose.yaml"), "--profile", "simulated"]

Json = dict[str, Any]


def problems(document: Json) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]


def test_compose_file_is_of_the_specification() -> None:
    assert problems(COMPOSE) == []


def test_misspelled_field_is_found_by_name() -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"]["api"]["helthcheck"] = {}
    wrong["services"]["relay"]["restart"] = ["always"]
    found = "\n".join(problems(wrong))
    assert re.search(r"\$\.services\.api: .*helthcheck", found)
    assert "$.services.relay.restart" in found


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="builds an image and starts fifteen containers")
def test_compose_runs_on_a_simulated_cluster() -> None:
    if not container_engine_answers():
        pytest.skip("no container engine answers here")
    try:
        subprocess.run([*COMMAND, "up", "--build", "--detach", "--wait"], check=True, timeout=1500)
        assert answers("http://127.0.0.1:8080/readyz")
    finally:
        subprocess.run([*COMMAND, "down", "--volumes"], check=False, timeout=300)
