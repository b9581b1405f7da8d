"""One noun, one meaning: every public class of kaicore has a line in the glossary, and no two share a name."""

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import docs_hooks  # noqa: E402

#: Names that two classes have, and why they may.
SHARED: dict[str, str] = dict.fromkeys(
    ("Facts", "Policy", "Queue", "Waiting", "Work"), "a policy's view, and the engine's own class"
)

_NOUN = re.compile(r"^- \*\*([a-z][a-z ]*)\*\*: ", re.MULTILINE)
NOUNS = _NOUN.findall((ROOT / "docs" / "glossary.md").read_text().partition("\n## Classes")[0])


@cache
def public_classes() -> tuple[tuple[str, str, str], ...]:
    return tuple(docs_hooks.public_classes())


def test_no_two_classes_share_a_name() -> None:
    names = Counter(name for _, name, _ in public_classes())
    upstream = {
        node.name
        for pattern in docs_hooks.UPSTREAM
        for path in docs_hooks.LIBRARY.glob(pattern)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    twice = {name for name, count in names.items() if count > 1} | (set(names) & upstream)
    assert twice - set(SHARED) == set()


def test_each_class_has_a_line_that_says_what_it_is() -> None:
    silent = [f"{module}: {name}" for module, name, meaning in public_classes() if re.match(r"$|See |As ", meaning)]
    assert silent == []


def test_each_noun_is_listed_once_and_is_a_word_of_the_code() -> None:
    assert len(NOUNS) > 80
    assert [noun for noun, count in Counter(NOUNS).items() if count > 1] == []
    code = "\n".join(
        path.read_text()
        for folder in ("libs", "services", "tools")
        for path in (ROOT / folder).rglob("*.py")
        if ".venv" not in path.parts
    ).lower()
    flat = re.sub(r"[\s#_]+", " ", code)
    assert [noun for noun in NOUNS if noun not in flat] == []
