"""docs/where-is.md: each question is found by its grep and answered in two places at most, all of which are there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts/docs"))

import docs_hooks  # noqa: E402

PAGE = ROOT / "docs" / "where-is.md"
QUESTIONS = {
    title.strip(): body for title, _, body in (part.partition("\n") for part in PAGE.read_text().split("\n## ")[1:])
}
_LINK = re.compile(r"\]\((\.\./[^)#]+)#([\w.]+)\)")


def test_page_answers_the_questions_of_a_newcomer() -> None:
    words = (
        *("victim", "stale", "quotas", "negative", "bind", "memory groups", "410"),
        *("score", "dialect", "index", "order", "append", "schema", "DRA", "hub", "column", "annotation"),
    )
    assert [any(word in title for title in QUESTIONS) for word in words] == [True] * len(QUESTIONS)


@pytest.mark.parametrize("title", QUESTIONS)
def test_answer_is_found_by_its_grep_and_two_links_that_lead_to_a_definition(title: str) -> None:
    body = QUESTIONS[title]
    links = [((PAGE.parent / target).resolve(), symbol) for target, symbol in _LINK.findall(body)]
    assert links
    missing = [(path.name, symbol) for path, symbol in links if symbol not in docs_hooks.symbols(path)]
    assert missing == []
    numbered = re.findall(r"^\d\. ", body, re.MULTILINE)
    assert len(numbered) <= 2
    (command,) = re.findall(r"```\n(grep [^\n]+)\n```", body)
    printed = subprocess.run(shlex.split(command), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first = links[0][0]
    # The last question is answered by a table: its grep finds the annotations' names.
    assert str(first.relative_to(ROOT)) in printed or not numbered
    assert all(symbol in printed for path, symbol in links if symbol.endswith("_ANNOTATION"))
    assert 0 < printed.count("\n") <= 34, "what a grep prints is read at a glance"
