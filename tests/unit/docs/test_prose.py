"""Documents have few words, short sentences and commands first in how-to pages; code and documents use plain words."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def _files(*patterns: str) -> list[Path]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return sorted(ROOT / name for name in names if (ROOT / name).exists())


PAGES = _files("*.md")
#: Source with prose: docstrings, comments and printed texts.
SOURCES = _files("libs/*.py", "services/*.py", "tools/*.py", "tools/*.go", "deploy/*.yaml", "deploy/*.tpl")
#: Words of all pages in the repository, as `wc -w` counts them.
MOST_WORDS = 97_500
MOST_WORDS_OF_DOCS = 90_000
MOST_WORDS_OF_DECISIONS = 19_000
MOST_WORDS_OF_A_SENTENCE = 25

#: Code, tables, and what stands in backticks or is the address of a link.
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
#: Where a paragraph ends, or an item of a list begins.
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.) )|\n(?=#)")
#: Words of sentences that have to be read twice.
_TWISTED = re.compile(r"\b(?:foretold|whose|told|said to be|what there is of)\b", re.IGNORECASE)
#: A docstring names its thing first; one that begins with such a word is a riddle.
_RIDDLE = re.compile(r'^\s*r?"""(?:What|Which|How|Where|Whether|Whence|Whose|Who|When|Why)\b(?!-)', re.MULTILINE)
_END = re.compile(r"(?<=[.!?])[\"*)]*\s+(?=[A-Z(*\"]|code)|(?<=[;:])\s")


def sentences(page: str) -> Iterator[str]:
    """The sentences of a page outside code and tables; a part before a semicolon or a colon is one."""
    prose = _ROW.sub("\n", _FENCED.sub("\n\n", page))
    prose = _LINK.sub(r"\1", _CODE.sub("code", prose))
    for block in _BLOCK.split(prose):
        yield from _END.split(" ".join(block.split()))


def words(text: str) -> int:
    return len(text.split())


def test_documents_have_few_words() -> None:
    # A skill is for assistants, not for people.
    for_people = [page for page in PAGES if page.name != "SKILL.md"]
    assert sum(words(page.read_text()) for page in for_people) <= MOST_WORDS
    docs = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sum(words(page.read_text()) for page in docs) <= MOST_WORDS_OF_DOCS
    decisions = [page for page in PAGES if page.parent == ROOT / "docs/decisions"]
    assert sum(words(page.read_text()) for page in decisions) <= MOST_WORDS_OF_DECISIONS


def test_sentences_of_pages_are_short() -> None:
    long = [
        f"{page.relative_to(ROOT)}: {sentence}"
        for page in PAGES
        for sentence in sentences(page.read_text())
        if sum(bool(re.search(r"\w", word)) for word in sentence.split()) > MOST_WORDS_OF_A_SENTENCE
    ]
    assert long == []


def test_how_to_pages_begin_with_a_command() -> None:
    pages = sorted((ROOT / "docs/how-to").glob("*.md"))
    assert pages
    assert [page.stem for page in pages if not re.match(r"# [^\n]+\n\n```\n", page.read_text())] == []


def test_sources_and_pages_have_no_twisted_words() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in (*SOURCES, *PAGES)
        for match in _TWISTED.finditer(_without_code(file))
    ]
    assert found == []


def test_docstrings_begin_with_the_name_of_a_thing() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {match[0].strip()}"
        for file in SOURCES
        if file.suffix == ".py"
        for match in _RIDDLE.finditer(file.read_text())
    ]
    assert found == []


def _without_code(file: Path) -> str:
    """The text of a file; of a page without code, tables of tests' names and quoted words."""
    text = file.read_text()
    return _CODE.sub("", _FENCED.sub("", text)) if file.suffix == ".md" else text
