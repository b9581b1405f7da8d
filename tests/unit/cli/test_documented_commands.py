"""Every command of ours that a document, a manifest or a program shows is one that the command line takes."""

import ast
import functools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cyclopts import CycloptsError, MissingArgumentError
from kai_cli.main import app, spelled_out
from kai_cli.running.hints import how_to_ask
from kai_cli.sources.paths import data_directory

from tests.given.processes.kai_commands import kai, talking

ROOT = Path(__file__).parents[3]
#: Seconds that a program may take to print its help.
PATIENCE_S = 60
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    # Decisions tell of their time, and the page of commands is the command line's own words.
    *sorted(
        page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions" and page.stem != "commands"
    ),
]
#: Files with commands in comments, in annotations of alerts, in elements, or on lines of their own.
OTHERS = sorted(
    file
    for folder in ("deploy", "examples", "services", "migrations")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".yaml", ".txt", ".html", ".ini", ".conf") and "node_modules" not in file.parts
)
PROGRAMS_TEXT = sorted(
    file for folder in ("services", "libs", "tools") for file in (ROOT / folder).rglob("src/**/*.py")
)

#: What a program puts into a command that it prints, and what stands for it here.
FILLED_IN = {
    "{condition.position}": "MOMENT",
    "{pod.namespace}/{pod.name}": "NAMESPACE/NAME",
    "{pod.subject}": "NAMESPACE/NAME",
    "dispatch/{submitted.dispatch}{where}": "dispatch/train",
    "{why.dispatch.cluster}": "demo",
    "{out / 'profile.yaml'}": "trace/profile.yaml",
    "{out / 'pods.json'}": "trace/pods.json",
    "{file.name}": "FILE",
    "{cycle.cycle}": "N",
    "{first.position}": "POSITION",
    "{flag}": " --cluster demo",
}

#: What stands for something in the documentation, and one such thing. Longer ones first.
PLACEHOLDERS = {
    "NAMESPACE/NAME": "default/a",
    "KIND/NAME": "job/a",
    "NAMESPACE": "default",
    "SCHEDULER": "kai-scheduler",
    "MOMENT": "200",
    "POSITION": "200",
    "REASON": "forged",
    "SERVICE": "relay",
    "PROFILE": "demo24",
    "FILES…": "a.yaml",
    "FILE": "a.yaml",
    "DIR": "d",
    "N": "2",
    "URL": "postgresql://localhost/kai",
    "…": "",
}
#: Actors of the log.
NO_COMMAND = ("kai erase", "kai audit")

_COMMAND = re.compile(r"^\s*(?:\$ )?(?:\.venv/bin/)?kai (.*)$")
_INLINE = re.compile(r"`(?:\$ )?kai ([^`]*)`")
_ELSEWHERE = re.compile(r"(?:`|<code>|\(|^\s*(?:# )?)(?:[A-Z_]+=\S+ )?kai (?!says\b)([a-z-]+\b[^`<)]*)", re.MULTILINE)
_NAMES = "|".join(name for name in app if not name.startswith("-"))
_PRINTED = re.compile(r"`(?:[^`]*<\()?kai ([a-z-]+[^`)]*)\)?[^`]*`", re.DOTALL)
_BARE = re.compile(rf"\bkai (?:{_NAMES})\b")


def fenced_lines(page: Path) -> Iterator[tuple[str, str]]:
    """The lines of a page's code blocks, each with where it stands."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield f"{page.relative_to(ROOT)}:{number}", line


def inline(page: Path, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """The matches between the backticks of a page's sentences, over the ends of lines, each with its place."""
    text = re.sub(
        r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    for match in pattern.finditer(text):
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        yield where, " ".join(match[1].split())


def documented() -> Iterator[tuple[str, str]]:
    """The place of each command, and the words after `kai` in it."""
    for page in PAGES:
        for where, line in fenced_lines(page):
            for part in line.split(" | "):
                if match := _COMMAND.match(part):
                    yield where, re.split(r"\s+#|\s+>", match[1])[0]
        yield from inline(page, _INLINE)


def shown_elsewhere() -> Iterator[tuple[str, str]]:
    """The same of manifests, of the chart's notes, of alerts and of pages of the dashboard."""
    for file in OTHERS:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            for command in _ELSEWHERE.findall(line):
                if _BARE.match(f"kai {command}"):
                    yield f"{file.relative_to(ROOT)}:{number}", re.split(r"\s+#|\s+[|>]", command)[0].strip()


#: Where a source has neither, it prints no command: parsing all 500 files took seconds in each worker.
_MAY_PRINT = re.compile(r"\bkai [a-z{-]|\bkai\(|\bhow_to_ask\b")


@dataclass(frozen=True)
class Source:
    """The parts of a program's file that may show a command.

    Attributes:
        where: the file's path in the repository.
        texts: literals, and docstrings of the command line's functions, which are its help; each with its line.
        hints: calls of `kai` and `how_to_ask`.
    """

    where: str
    texts: tuple[tuple[int, str], ...]
    hints: tuple[ast.Call, ...]


@functools.cache
def sources() -> tuple[Source, ...]:
    """Each file of our programs that may show a command, read and parsed once."""
    return tuple(_source(file, text) for file in PROGRAMS_TEXT if _MAY_PRINT.search(text := file.read_text()))


def _source(file: Path, text: str) -> Source:
    nodes = list(ast.walk(ast.parse(text)))
    parts: set[ast.AST] = set()
    for node in nodes:
        # Docstrings stand alone; of the command line those of functions and of flags are printed.
        if isinstance(node, ast.Module) or (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and "kai_cli" not in file.parts
        ):
            parts.update(one.value for one in node.body[:1] if isinstance(one, ast.Expr))
        if isinstance(node, ast.JoinedStr):
            parts.update(node.values)
    hints = tuple(
        node
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("kai", "how_to_ask")
    )
    return Source(str(file.relative_to(ROOT)), tuple(_texts(nodes, parts)), hints)


def _texts(nodes: list[ast.AST], parts: set[ast.AST]) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            texts = (
                str(one.value) if isinstance(one, ast.Constant) else f"{{{ast.unparse(getattr(one, 'value', one))}}}"
                for one in node.values
            )
            yield node.lineno, "".join(texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            yield node.lineno, node.value


def printed() -> Iterator[tuple[str, str]]:
    for source in sources():
        for number, text in source.texts:
            for command in _PRINTED.findall(text):
                filled = command
                for name, thing in FILLED_IN.items():
                    filled = filled.replace(name, thing)
                yield f"{source.where}:{number}", " ".join(re.split(r"\s+[|>]", filled)[0].split())


def hinted() -> Iterator[tuple[str, str]]:
    """The same of what programs print with `kai_cli.running.hints`: with this program's path and data directory."""
    yield from (
        ("kai_cli.running.hints", line.strip().partition("kai ")[2])
        for line in how_to_ask(data_directory(None))
        if "kai " in line
    )
    for source in sources():
        for call in source.hints:
            words = [
                str(one.value) if isinstance(one, ast.Constant) else "demo"
                for one in call.args[1:]
                if isinstance(one, ast.Constant | ast.Name)
            ]
            one_command = isinstance(call.func, ast.Name) and call.func.id == "kai"
            said = [" ".join(words)] if one_command else words
            yield from ((f"{source.where}:{call.lineno}", word) for word in said if word)


def variants(command: str) -> Iterator[list[str]]:
    """A command without what is optional, and with all of it; each of `one|other` once."""
    for word, thing in PLACEHOLDERS.items():
        command = re.sub(rf"(?<![A-Z]){word}(?![A-Z])", thing, command)
    pieces = re.split(r"(\[[^\]]*\])", command)
    for given in (False, True)[: len(pieces)]:
        chosen = (piece if piece[:1] != "[" else piece.strip("[]") * given for piece in pieces)
        words = [word.split("|") for word in shlex.split(" ".join(chosen))]
        for number in range(max(map(len, words), default=1)):
            yield [word[number % len(word)] for word in words]


#: Command lines of our other programs in the documentation.
_PROGRAM = re.compile(r"^\s*(?:kai (?=fleet )|)(?:(kai-[a-z]+)|fleet) (--.*)$")


@functools.cache
def commands() -> tuple[tuple[str, str], ...]:
    """Each command, wherever it is shown."""
    return tuple(sorted({*documented(), *shown_elsewhere(), *printed(), *hinted()}))


def test_commands_are_found_wherever_they_are_shown() -> None:
    assert len({command for _, command in documented()}) > 100
    shown = {command for found in (shown_elsewhere(), printed(), hinted()) for _, command in found}
    assert shown >= {
        "status --api-url http://127.0.0.1:8080",  # NOTES.txt of the chart
        "replay --from -2h",  # an alert
        "up --shadow SCHEDULER",  # a page of the dashboard, and a report
        "cluster use",  # the help of flags
        "why NAMESPACE/NAME",  # an event of a pod
        "logs scheduler --follow",  # what `make run` says
        "submit FILE",
    }


def test_a_program_prints_a_command_between_backticks_so_that_it_is_found() -> None:
    bare = [
        f"{source.where}:{number}: {text}"
        for source in sources()
        for number, text in source.texts
        if _BARE.search(re.sub(r"`[^`]*`", "", text)) and text not in NO_COMMAND
    ]
    assert not bare, bare


def test_what_a_program_fills_into_a_command_is_known_here() -> None:
    assert not [found for found in printed() if "{" in found[1]]


def test_documented_command_is_taken() -> None:
    # The fleet takes the flags of kai-fleet.
    shown = {tuple(words): where for where, command in commands() for words in variants(command)}
    wrong = [
        f"{where}: kai {' '.join(words)}: {why}"
        for words, where in shown.items()
        if words != ("up",) and words[0] != "fleet" and (why := _why_not_taken([*words]))
    ]
    assert not wrong


def _why_not_taken(words: list[str]) -> CycloptsError | None:
    try:
        app.parse_args(spelled_out(words), exit_on_error=False, print_error=False)
    except MissingArgumentError as error:
        # A mention may leave out what a command is about, and end with a flag without its value.
        lacking = error.argument.names if error.argument is not None else ()
        return error if any(name.startswith("-") for name in lacking) and words[-1] not in lacking else None
    except CycloptsError as error:
        return error
    return None


def test_documented_command_that_needs_no_server_runs() -> None:
    """Commands that need neither a server nor a file of the reader's."""
    # `test_commands.py` has the completion of each shell.
    runnable = {command for _, command in commands() if command.startswith(("simulate examples", "--"))}
    assert len(runnable) >= 3
    for words in {tuple(words) for command in runnable for words in variants(command)}:
        done = kai(*words, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout.strip(), words


def test_documented_flags_of_a_program_are_those_that_it_takes() -> None:
    taken: dict[str, str] = {}
    for page in PAGES:
        for number, text in enumerate(page.read_text().splitlines(), start=1):
            if line := _PROGRAM.match(text):
                program = line[1] or "kai-fleet"
                if program not in taken:
                    taken[program] = _help_of(program)
                for flag in re.findall(r"--[a-z-]+", line[2].partition("#")[0]):
                    where = f"{page.relative_to(ROOT)}:{number}"
                    assert re.search(rf"{flag}[ ,\n]", taken[program]), f"{where}: {program} takes no {flag}"
    assert taken.keys() >= {"kai-fleet", "kai-apiserver"}


def _help_of(program: str) -> str:
    process, said = talking(f"{program.replace('-', '_')}.main", "--help")
    with said:
        text = said.read()
    assert process.wait(PATIENCE_S) == 0, text
    return text
