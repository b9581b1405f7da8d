"""Each promise of SECURITY.md names a test, and the test is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROMISES = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| `(tests/[^`:]+)::(\w+)` \|$", (ROOT / "SECURITY.md").read_text(), flags=re.MULTILINE
)


def test_every_promise_names_a_test() -> None:
    table = (ROOT / "SECURITY.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(PROMISES) > 10


@pytest.mark.parametrize(("promise", "file", "test"), PROMISES, ids=[promise for promise, _, _ in PROMISES])
def test_the_test_of_a_promise_is_there(promise: str, file: str, test: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert test in there, promise
