"""The checker refuses bad histories, by its own tests; a recorded log of a real run it finds nothing in."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.chaos.checker import SOURCE, NoChecker, verdict_of
from tests.chaos.recording import event_line
from tests.given.recorded import read_log, recorded_logs

pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="there is no Go on this machine")


def test_bad_histories_are_refused() -> None:
    done = subprocess.run(["go", "test", "./..."], cwd=SOURCE, capture_output=True, text=True, check=False)
    if "dial tcp" in done.stderr:
        pytest.skip(f"no module proxy answers: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_recorded_log_has_no_finding_until_one_decision_is_there_twice(tmp_path: Path) -> None:
    (log, *_) = [path for path in recorded_logs() if path.name == "demo.jsonl.xz"]
    lines = [event_line(event) for event in read_log(log)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    try:
        verdict = verdict_of(tmp_path)
    except NoChecker as error:
        pytest.skip(str(error))
    assert verdict.findings == []
    assert verdict.checked["decisions"] > 50
    placed = next(line for line in lines if json.loads(line)["type"] == "PodPlaced")
    (tmp_path / "events.jsonl").write_text("\n".join([*lines, placed]) + "\n")
    assert any(finding.startswith("gap: cluster demo") for finding in verdict_of(tmp_path).findings)
