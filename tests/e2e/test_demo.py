"""The demonstration, as `make run ONCE=1` runs it, on its own manifests; its runs and its Jobs' back-offs are shorter.

Scheduled blind, a Job has a dozen failures in a row, and then waits for sixty times its first back-off: a minute."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.live_stack import PATIENCE_S
from tests.given.examples import BEYOND_THE_GATE
from tests.given.processes.kai_commands import kai
from tests.given.servers.servers import scratch_directory

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def root() -> Iterator[Path]:
    with scratch_directory() as root:
        (root / "examples").mkdir()
        for file in EXAMPLES.glob("*.yaml"):
            # Fewer of those that only fill nodes: kubelets reject others of a blind scheduler.
            fewer = re.sub(r"(parallelism|completions): \d\d", r"\1: 6", file.read_text())
            shorter = re.sub(r'run-seconds: "\d+"', 'run-seconds: "4"', fewer)
            (root / "examples" / file.name).write_text(shorter)
        yield root


def demonstration(root: Path) -> tuple[str, ...]:
    return ("demo", "--once", "--examples", str(root / "examples"), "--data-dir", str(root / "data"))


def environment() -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("KAI_")}
    return own | {"KAI_JOB_BACKOFF_S": "0.1"}


def row(report: str, name: str) -> list[str]:
    """The two figures of a row of the report."""
    (line,) = [line for line in report.splitlines() if line.strip().startswith(name)]
    return line.strip().removeprefix(name).split("  ")


def test_everything_that_can_run_does_and_the_report_says_so(root: Path) -> None:
    done = kai(*demonstration(root), environment=environment(), timeout=2 * PATIENCE_S)
    output = done.stdout
    assert done.returncode == 0, output + done.stderr
    _, _, report = output.partition("24 nodes, the same workload twice")
    figures = {
        name: [figure for figure in map(str.strip, row(report, name)) if figure]
        for name in ("Jobs and pods that can run, and did", "pending, with a reason", "rejected by kubelets")
    }
    assert figures["Jobs and pods that can run, and did"][0] == "12 of 12"
    sighted, blind = map(int, figures["rejected by kubelets"])
    assert sighted == 0
    assert blind > 0, "without NUMA in mind kubelets reject"
    assert figures["pending, with a reason"][0] == "1"
    assert "replay: differences                                    0           0" in report
    assert "hash chain                                        intact      intact" in report
    assert re.search(r"  gang-kai: topology-block / topology-rack\* / node +1 / 1 / \d +1 / 1 / \d\n", report)
    assert re.search(r"  gang-koordinator: BlockLayer / RackLayer\* / node +1 / 1 / \d +1 / 1 / \d\n", report)
    assert re.search(r"  gang-kueue: topology-block / topology-rack / node +1 / \d / \d ", report)
    assert re.search(r"  gang-volcano: tier 2\* / tier 1 / node +1 / \d / \d +1 / \d / \d\n", report)
    assert "pending: default/never-fits\n" in report
    assert "nvidia.com/gpu: 5 needed, 4 in the largest zone (node-0)" in report
    assert re.search(r"placements of [1-9]\d* pods, as observed:\n +[1-9]\d* as predicted, to the amount\n", report)
    assert "    on other zones\n" not in report
    assert report.rstrip().endswith("all checks passed")
    asked = kai("why", "default/never-fits", "--cluster=demo", "--data-dir", str(root / "data"), timeout=PATIENCE_S)
    assert (asked.returncode, asked.stdout.startswith("default/never-fits: pending")) == (0, True), asked


@BEYOND_THE_GATE
def test_a_run_that_is_interrupted_is_no_success(root: Path) -> None:
    """As a user starts it: all other demonstrations and stacks of the tests are forks (`tests.given.processes`)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kai_cli.main", *demonstration(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )
    with process, process.stdout as said:
        for line in said:
            if line.startswith("Postgres and NATS are up"):
                break
        process.send_signal(signal.SIGTERM)
        output = said.read()
        assert process.wait(PATIENCE_S) == 130
    assert "there is no report" in output
    assert "checks" not in output
