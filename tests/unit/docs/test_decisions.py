"""Every decision that the code or a page names by its number has a page, and docs/decisions/README.md lists it."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts/docs"))

import docs_hooks  # noqa: E402

_NAMED = re.compile(r"[Dd]ecisions? \d{4}(?:(?:, | and )\d{4})*")


def test_list_of_decisions_has_each_page_once() -> None:
    pages = sorted(page.name for page in (ROOT / "docs/decisions").glob("[0-9]*.md"))
    assert sorted(set(docs_hooks.decisions().values())) == pages
    assert all(docs_hooks.decisions()[page[:4]] == page for page in pages)
    listed = re.findall(r"\b\d{4}\b", re.sub(r"\]\(.*?\)|`.*?`", "", (ROOT / "docs/decisions/README.md").read_text()))
    assert len(listed) == len(set(listed)) == len(docs_hooks.decisions())


def test_decision_that_a_file_names_has_a_page() -> None:
    named = subprocess.run(
        ["git", "grep", "-nIoE", _NAMED.pattern.replace("(?:", "(").replace(r"\d", "[0-9]")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(named) > 80
    missing = [
        line
        for line in named
        if not set(re.findall(r"\d{4}", line.rpartition("ecision")[2])) <= set(docs_hooks.decisions())
    ]
    assert missing == []
