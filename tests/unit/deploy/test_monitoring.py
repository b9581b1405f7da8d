"""Boards and alert rules ask for metrics and labels that services have, in PromQL that can be read."""

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
from cyclopts import MissingArgumentError
from kai_cli.main import app
from kaicore.yaml_text import load_yaml

from tests.given.servers.prometheus_server import promtool
from tests.unit.cli.test_documented_commands import variants

ROOT = Path(__file__).resolve().parents[3]
BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RULES = ROOT / "deploy" / "alerts" / "kai-ledger.yaml"
RULE_TESTS = RULES.with_name("kai-ledger.test.yaml")
#: Labels that Prometheus adds.
_OF_SCRAPES = {"job", "instance"}
#: Grafana puts a duration in its place.
_INTERVAL = "$__rate_interval"


def metrics() -> dict[str, set[str]]:
    """Labels by the names under which Prometheus keeps them; the reference page is what the code says."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    named: dict[str, set[str]] = {"up": set()}  # Prometheus' own, of each process
    for name, labels, kind in re.findall(r"^- `(kai_\w+)(?:\{([\w,]+)\})?`(?: \((\w+)\))?:", text, re.MULTILINE):
        own = {label for label in labels.split(",") if label}
        if kind == "histogram" or (not kind and name.endswith("_seconds")):
            named |= {f"{name}_bucket": own | {"le"}, f"{name}_sum": own, f"{name}_count": own}
        else:
            named[name] = own
    return named


def queries() -> Iterator[tuple[str, str]]:
    for path in BOARDS:
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
    for group in load_yaml(RULES.read_text("utf-8"))["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def runbooks() -> dict[str, str]:
    """The runbook of each alert; `tests/e2e/test_documented_commands.py` runs what is in them."""
    page = (ROOT / "docs" / "how-to" / "runbooks.md").read_text("utf-8")
    return dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))


def grouped(expression: promql_parser.Expr) -> set[str]:
    """The labels that aggregations keep."""
    kept: set[str] = set()

    def enter(one: promql_parser.Expr) -> None:
        if isinstance(one, promql_parser.AggregateExpr) and one.modifier is not None:
            kept.update(one.modifier.labels)

    promql_parser.walk(expression, enter)
    return kept


def selectors(expression: promql_parser.Expr) -> list[promql_parser.VectorSelector]:
    every: list[promql_parser.VectorSelector] = []

    def enter(one: promql_parser.Expr) -> None:
        if isinstance(one, promql_parser.VectorSelector):
            every.append(one)

    promql_parser.walk(expression, enter)
    return every


def test_queries_name_metrics_and_labels_that_there_are() -> None:
    known = metrics()
    for where, query in queries():
        expression = promql_parser.parse(query.replace(_INTERVAL, "5m"))
        named = selectors(expression)
        assert named, where
        for selector in named:
            assert selector.name in known, where
            labels = {matcher.name for matcher in selector.matchers.matchers}
            assert labels <= known[selector.name] | _OF_SCRAPES, where
        assert grouped(expression) <= set.union(*(known[one.name] for one in named)) | _OF_SCRAPES, where


def test_a_rule_says_what_is_wrong_and_what_to_do_with_labels_that_its_query_keeps() -> None:
    groups = load_yaml(RULES.read_text("utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    known = metrics()
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "action", "runbook_url"} == set(rule["annotations"])
        expression = promql_parser.parse(rule["expr"])
        kept = grouped(expression) or set.union(*(known[one.name] for one in selectors(expression)))
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= kept, rule["alert"]


def test_commands_that_an_alert_names_are_taken_and_are_in_its_runbook() -> None:
    sections = runbooks()
    named = [
        (rule["alert"], command)
        for group in load_yaml(RULES.read_text("utf-8"))["groups"]
        for rule in group["rules"]
        for command in re.findall(r"`kai ([^`]*)`", rule["annotations"]["action"])
    ]
    assert len(named) > 10
    for alert, command in named:
        for words in variants(command):
            with suppress(MissingArgumentError):  # a mention may leave out what a command needs
                app.parse_args(words, exit_on_error=False, print_error=False)
        assert f"`kai {command}" in sections[alert], alert


def test_each_alert_has_a_runbook_with_commands_and_each_runbook_an_alert() -> None:
    sections = runbooks()
    groups = load_yaml(RULES.read_text("utf-8"))["groups"]
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]}
    assert alerts == {name: f"docs/how-to/runbooks.md#{name.lower()}" for name in sections}
    for name, text in sections.items():
        assert re.search(r"`kai [a-z]", text), f"{name}: nothing to run"


def test_each_alert_has_a_test_of_its_own_with_series_that_there_are() -> None:
    groups = load_yaml(RULES.read_text("utf-8"))["groups"]
    expressions = {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}
    healthy, *tests = load_yaml(RULE_TESTS.read_text("utf-8"))["tests"]
    assert [test["name"] for test in tests] == list(expressions)
    assert all(sample["exp_samples"] == [] for sample in healthy["promql_expr_test"])
    known = metrics()

    def series(test: dict[str, Any]) -> set[str]:
        parsed = [promql_parser.parse(one["series"]) for one in test["input_series"]]
        assert all({one.name for one in each.matchers.matchers} <= known[each.name] | _OF_SCRAPES for each in parsed)
        return {each.name for each in parsed}

    asked = {name: {one.name for one in selectors(promql_parser.parse(text))} for name, text in expressions.items()}
    assert all(series(test) == asked[test["name"]] for test in tests)
    assert series(healthy) == set.union(*asked.values())


@pytest.mark.skipif(not promtool(), reason="no promtool here (KAI_TEST_PROMTOOL names one); promql-parser reads all")
def test_alerts_fire_on_their_series_and_on_no_others() -> None:
    for what, file in (("check", RULES), ("test", RULE_TESTS)):
        done = subprocess.run([promtool(), what, "rules", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_boards_are_what_the_script_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _script()
    monkeypatch.setattr(script, "BOARDS", tmp_path)
    script.main()
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {
        path.name: path.read_text("utf-8") for path in BOARDS
    }, "run `make reference`"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("boards", ROOT / "scripts" / "boards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["boards"] = module
    spec.loader.exec_module(module)
    return module
