"""Each promise of SECURITY.md names a test, and the test is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROMISES = re.findall(
    r"^\| ([^|]+) \| [^|]+ \| `(tests/[^`:]+)::(\w+)` \|$", (ROOT / "SECURITY.md").read_text(), flags=re.MULTILINE
)


def test_every_promise_names_a_test() -> None:
    table = (ROOT / "SECURITY.md").read_text().partition("## What is promised")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len(PROMISES) > 10


def test_the_tests_of_promises_are_there() -> None:
    there = {
        file: set(re.findall(r"^ *(?:async )?def (\w+)\(", (ROOT / file).read_text(), re.MULTILINE))
        for _, file, _ in PROMISES
    }
    assert [promise for promise, file, test in PROMISES if test not in there[file]] == []
