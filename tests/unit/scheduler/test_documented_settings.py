"""Operators find every setting in the documentation."""

from pathlib import Path

import pytest
from kaicore.rules.engine.config import EngineConfig

TABLE = (Path(__file__).parents[3] / "docs/reference/scheduler-settings.md").read_text()


@pytest.mark.parametrize("field", EngineConfig.__struct_fields__)
def test_a_setting_is_documented_once(field: str) -> None:
    rows = [line.split("|")[1] for line in TABLE.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = [name.strip().strip("`").split(".")[0] for row in rows for name in row.split(",")]
    assert field in named
    assert named.count(field) == 1 or field in ("numa_scoring", "provisioning")
