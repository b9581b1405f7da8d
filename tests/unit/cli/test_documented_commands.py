"""Every command of ours that the documentation shows is one that the command line takes, flag by flag."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from cyclopts import CycloptsError, MissingArgumentError
from kai_cli.main import app, spelled_out

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    # Decisions tell of their time, and the page of commands is the command line's own words.
    *sorted(
        page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions" and page.stem != "commands"
    ),
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
                    if match := _COMMAND.match(part):
                        yield where, re.split(r"\s+#|\s+>", match[1])[0]
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

#: Of those, what needs neither a server nor a file that the reader has to have.
RUNNABLE = sorted({command for _, command in COMMANDS if command.startswith(("simulate examples", "completion", "--"))})

#: Command lines of our other programs in the documentation.
_PROGRAM = re.compile(r"^\s*(?:kai (?=fleet )|)(?:(kai-[a-z]+)|fleet) (--.*)$")
PROGRAMS = sorted(
    (f"{page.relative_to(ROOT)}:{number}", line[1] or "kai-fleet", line[2])
    for page in PAGES
    for number, text in enumerate(page.read_text().splitlines(), start=1)
    if (line := _PROGRAM.match(text))
)


def test_documentation_shows_commands() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize(("where", "command"), COMMANDS, ids=lambda value: value)
def test_documented_command_is_taken(where: str, command: str) -> None:
    for words in variants(command):
        if words == ["up"] or words[0] == "fleet":
            # The fleet takes the flags of kai-fleet.
            continue
        try:
            app.parse_args(spelled_out(words), exit_on_error=False, print_error=False)
        except MissingArgumentError:
            # A mention may leave out what a command needs, but not name what it does not have.
            continue
        except CycloptsError as error:
            raise AssertionError(f"{where}: kai {' '.join(words)}: {error}") from error


@pytest.mark.parametrize("command", RUNNABLE)
def test_documented_command_that_needs_no_server_runs(command: str) -> None:
    for words in variants(command):
        done = subprocess.run(
            [sys.executable, "-m", "kai_cli.main", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout.strip(), words


@pytest.mark.parametrize(("where", "program", "flags"), PROGRAMS)
def test_documented_flags_of_a_program_are_those_that_it_takes(where: str, program: str, flags: str) -> None:
    taken = subprocess.run(
        [Path(sys.executable).with_name(program), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for flag in re.findall(r"--[a-z-]+", flags.partition("#")[0]):
        assert re.search(rf"{flag}[ ,\n]", taken), f"{where}: {program} takes no {flag}"


def test_documentation_shows_programs_and_what_runs_without_a_server() -> None:
    assert {program for _, program, _ in PROGRAMS} >= {"kai-fleet", "kai-apiserver"}
    assert len(RUNNABLE) >= 4
