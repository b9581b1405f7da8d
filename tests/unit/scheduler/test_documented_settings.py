"""Operators find every setting in the documentation."""

from pathlib import Path

from kaicore.rules.engine.config import EngineConfig

TABLE = (Path(__file__).parents[3] / "docs/reference/scheduler-settings.md").read_text()


def test_settings_are_documented_once() -> None:
    rows = [line.split("|")[1] for line in TABLE.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    named = [name.strip().strip("`").split(".")[0] for row in rows for name in row.split(",")]
    counts = {field: named.count(field) for field in EngineConfig.__struct_fields__}
    assert {field: count for field, count in counts.items() if count != 1}.keys() <= {"numa_scoring", "provisioning"}
    assert 0 not in counts.values()
