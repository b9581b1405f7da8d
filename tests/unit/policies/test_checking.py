"""`kai policy check`: good policies pass, and each kind of bad one is found by the property that it breaks."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from kai_cli.trials.policy_trials import check as check_policy
from kaicore.rules.engine.policies.builtin import BUILT_IN

from tests.given.processes.kai_commands import kai

Checked = tuple[int, dict[str, Any]]
EXAMPLES = sorted((Path(__file__).parents[3] / "examples/policies").glob("*.py"))

_BAD = """
import numpy as np
from kaicore.policy import NoArguments, Policy

CALLS = []

class Bad(Policy):
    name, version = "bad", "1"
    node_labels = ("rack",)

    def score(self, nodes, work, facts):
        {body}
"""
_NO_ARGUMENTS = _BAD.format(body="return np.zeros(len(nodes), np.int64)")
#: What a policy's score does, and the property that finds it.
BODIES = {
    "return np.zeros(3, np.int64)": "it answers",
    "return np.zeros(len(nodes))": "it answers",
    "return np.full(len(nodes), 1001)": "it answers",
    "return np.full(len(nodes), 1 // len(nodes))": "it answers",
    "return nodes.labels('zone') == ''": "it answers",
    "return np.full(len(nodes), len(work.labels.get('team', '')))": "it answers",
    "return np.full(len(nodes), 'team' in work.annotations, np.int64)": "it answers",
    "return np.full(len(nodes), facts.input('price') % 1000)": "it answers",
    "nodes.used('cpu')[:] = 0; return np.zeros(len(nodes), np.int64)": "it answers",
    "work.labels.update(a='b') if isinstance(work.labels, dict) else 0; return np.zeros(len(nodes), np.int64)": (
        "input unchanged"
    ),
    "CALLS.append(1); return np.full(len(nodes), len(CALLS) % 1000)": "twice",
    "return np.arange(len(nodes)) % 1000": "another order",
    "self.seen = getattr(self, 'seen', nodes.used('cpu').sum()); return np.full(len(nodes), self.seen % 1000)": "anew",
    "return np.full(len(nodes), nodes.used('cpu').sum() % 900)\n    live, within = True, ''": "near",
}


def checked(policy: object, capsys: pytest.CaptureFixture[str], *, budget_ms: int = 100) -> Checked:
    """What the command ends with and reports, in the tests' own process."""
    code = check_policy(str(policy), clusters=6, budget_ms=budget_ms, output="json")
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_of_less_than_40_lines_holds_every_property(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.read_text().splitlines()) < 40
    code, report = checked(example, capsys, budget_ms=2000)
    assert (code, report["passed"], report["notes"]) == (0, True, []), report
    assert all(one["cases"] for one in report["results"])
    assert f"file: {example.name}" in (example.parent / "README.md").read_text()


@pytest.mark.parametrize("rule", BUILT_IN)
def test_built_in_rule_of_the_score_table_holds_every_property(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = checked(rule, capsys, budget_ms=2000)
    assert (code, report["passed"], report["points"]) == (0, True, ["score"])
    assert {"near", "anew", "another order"} <= {one["check"] for one in report["results"] if one["cases"]}


@pytest.mark.parametrize(("body", "check"), BODIES.items(), ids=range(len(BODIES)))
def test_bad_policy_fails_the_property_that_it_breaks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, check: str
) -> None:
    (tmp_path / "bad.py").write_text(_BAD.format(body=body))
    code, report = checked(tmp_path / "bad.py", capsys)
    assert (code, report["passed"]) == (1, False)
    failed = {one["check"]: one["problem"] for one in report["results"] if not one["passed"]}
    assert failed.get(check), failed


def test_endless_policy_ends_and_the_table_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(_BAD.format(body="while True: pass"))
    done = kai("policy", "check", "bad.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "TooSlow" in done.stdout
    assert "properties fail" in done.stdout


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("return np.clip(nodes.free('cpu') // 1000, 0, 1000)", "not live"),
        (
            "return np.zeros(len(nodes), np.int64)\n    live = True",
            "of 10,000 nodes, [1-9][0-9,]* charges use up its 1 s",
        ),
    ],
    ids=["follows charges without being live", "live about all nodes"],
)
def test_policy_that_holds_every_property_is_noted_for_its_cost_or_its_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, note: str
) -> None:
    (tmp_path / "bad.py").write_text(_BAD.format(body=body))
    code, report = checked(tmp_path / "bad.py", capsys)
    assert (code, report["passed"]) == (0, True)
    assert re.search(note, "".join(report["notes"]))


@pytest.mark.parametrize(
    ("source", "arguments", "told"),
    [
        pytest.param("import socket\n", "", "bad.py:1", id="socket"),
        pytest.param("def broken(:\n", "", "bad.py", id="syntax"),
        pytest.param("x = open('/etc/passwd')\n", "", "bad.py:1", id="open"),
        pytest.param("from kaicore.policy import Policy\n", "", "derives from", id="no policy"),
        pytest.param(_NO_ARGUMENTS, '{"weight": 1}', "weight", id="argument"),
        pytest.param(_NO_ARGUMENTS, "[1]", "--arguments", id="no object"),
    ],
)
def test_file_that_is_no_policy_is_a_bad_question(tmp_path: Path, source: str, arguments: str, told: str) -> None:
    (tmp_path / "bad.py").write_text(source)
    done = kai("policy", "check", "bad.py", *(["--arguments", arguments] if arguments else []), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
