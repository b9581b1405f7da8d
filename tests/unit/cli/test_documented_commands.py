"""Every command of ours that the documentation shows is one that the command line takes, flag by flag."""

import re
import shlex
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from cyclopts import CycloptsError, MissingArgumentError
from kai_cli.main import app

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

#: What stands for something in the documentation, and one such thing. Longer ones first.
PLACEHOLDERS = {
    "NAMESPACE/NAME": "default/a",
    "KIND/NAME": "job/a",
    "NAMESPACE": "default",
    "SERVICE": "relay",
    "PROFILE": "demo24",
    "FILES…": "a.yaml",
    "FILE": "a.yaml",
    "DIR": "d",
    "N": "2",
    "URL": "postgresql://localhost/kai",
    "…": "",
}
_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?kai (.*)$")
_INLINE = re.compile(r"`(?:\$ )?kai ([^`]*)`")


def documented() -> Iterator[tuple[str, str]]:
    """Where each command stands, and what follows `kai` in it."""
    for page in PAGES:
        fenced = False
        for number, line in enumerate(page.read_text().splitlines(), start=1):
            where = f"{page.relative_to(ROOT)}:{number}"
            if line.startswith("```"):
                fenced = not fenced
            elif fenced:
                for part in line.split(" | "):
                    if found := _COMMAND.match(part):
                        yield where, re.split(r"\s+#|\s+>", found[1])[0]
            else:
                for inline in _INLINE.findall(line):
                    yield where, inline


def variants(command: str) -> Iterator[list[str]]:
    """A command with each choice of what it offers: `[--optional]`, `one|other`."""
    for word, thing in PLACEHOLDERS.items():
        command = re.sub(rf"(?<![A-Z]){word}(?![A-Z])", thing, command)
    pieces = re.split(r"(\[[^\]]*\])", command)
    choices = [["", piece[1:-1]] if piece.startswith("[") else [piece] for piece in pieces]
    for chosen in product(*choices):
        words = [word.split("|") for word in shlex.split(" ".join(chosen))]
        for several in product(*words):
            yield list(several)


COMMANDS = sorted(set(documented()))


def test_documentation_shows_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=lambda value: value)
def test_documented_command_is_taken(where: str, command: str) -> None:
    for words in variants(command):
        if words == ["up"] or words[0] == "fleet":
            # The fleet takes the flags of kai-fleet.
            continue
        try:
            app.parse_args(words, exit_on_error=False, print_error=False)
        except MissingArgumentError:
            # A mention may leave out what a command needs, but not name what it does not have.
            continue
        except CycloptsError as error:
            raise AssertionError(f"{where}: kai {' '.join(words)}: {error}") from error
