"""The command line as a whole: what each command says of itself, versions, completion, and what is imported for it."""

import functools
import inspect
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from cyclopts import App
from kai_cli.main import app

from tests.given.examples import FEW
from tests.given.processes.kai_commands import forked, kai

#: What most commands can do without, and what takes its time to import.
HEAVY = ("alembic", "fastapi", "kubernetes_asyncio", "nats", "numpy", "psycopg", "pydantic", "sqlalchemy")


def commands(parent: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in parent:
        if not name.startswith("-"):
            child = parent[name]
            yield (*path, name), child
            yield from commands(child, (*path, name))


ALL = list(commands(app))
EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_list_of_commands_says_of_each_what_the_command_says_of_itself() -> None:
    assert [path for path, command in ALL if not command.help] == []
    said = [
        (path, command.help, inspect.getdoc(command.default_command))
        for path, command in ALL
        if command.default_command
    ]
    assert [path for path, listed, own in said if not own or listed != own.splitlines()[0]] == []


def test_help_lists_every_command() -> None:
    output = kai("--help").stdout
    for path, _ in ALL:
        if len(path) == 1:
            assert f" {path[0]} " in output


def test_kai_says_the_version() -> None:
    assert kai("--version").stdout == f"kai {version('kai-ledger')}\n"


@pytest.mark.parametrize(
    ("arguments", "value", "name"),
    [
        (("get", "pods", "--limit"), "-3", "--limit"),
        (("logs", "api", "--tail"), "-2", "--tail"),
        (("up", "--log-level"), "loud", "--log-level"),
        (("diff",), "", "BEFORE"),
        (("diff", "1"), "", "AFTER"),
        (("who",), "", "QUEUE"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_flag_or_argument(
    arguments: tuple[str, ...], value: str, name: str
) -> None:
    done = kai(*arguments, value)
    output = done.stdout + done.stderr
    assert (done.returncode, f'Invalid value "{value}" for {name}' in output) == (2, True), output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("drain x", "drain: --by is missing; --help says more"),
        ("get", "get: KIND is missing; --help says more"),
        ("get pods --limit", "get: --limit needs a value; --help says more"),
        ("get pods a b c", "too much is named: b c"),
        ("get pods --lmit 3", "Unknown option: --lmit. Did you mean --limit?"),
        ("report show --by shape", "report: by: owners are distinguished by team, user, "),
        ("history --state gone", "history: state: is none of waiting, running, "),
    ],
)
def test_a_malformed_command_is_refused_in_one_line(words: str, said: str) -> None:
    done = kai(*words.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"kai: {said}")


@pytest.mark.parametrize(
    ("reader", "code", "said"),
    [
        ("a pipe that nobody reads any more", 141, ""),
        ("/dev/full", 1, "kai: [Errno 28] No space left on device\n"),
    ],
)
@pytest.mark.parametrize(
    "command", ["import sources", f"simulate {EXAMPLES} -o json", "--help"], ids=["short", "long", "help"]
)
def test_an_answer_that_cannot_be_written_ends_with_a_code_and_no_traceback(
    command: str, reader: str, code: int, said: str, tmp_path: Path
) -> None:
    reading, out = os.pipe()
    os.close(reading)
    if reader == "/dev/full":
        os.dup2(os.open(reader, os.O_WRONLY), out)
    with (tmp_path / "said").open("w") as errors, Path(os.devnull).open() as empty, os.fdopen(out, "w") as answer:
        streams = (empty.fileno(), answer.fileno(), errors.fileno())
        ended = forked("kai_cli.main", *command.split(), streams=streams).wait(30)
    assert (ended, (tmp_path / "said").read_text()) == (code, said)


def test_a_letter_that_the_terminal_does_not_have_becomes_a_mark() -> None:
    code = "import sys; from kai_cli import main; main.app = lambda *_: print('\\u251c\\u2500 block-0'); main.main()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"?? block-0\n", b"")


def test_a_command_with_closed_streams_runs() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m kai_cli.main import sources <&- >&-"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_api_that_does_not_answer_is_named_without_the_path_of_the_question() -> None:
    done = kai("get", "pods", "--api-url", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        "kai: the API at http://127.0.0.1:1 does not answer: Connection refused\n",
    )


def test_an_interrupt_ends_a_command_that_waits_for_an_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, (tmp_path / "said").open("w+") as said:
        streams = (said.fileno(),) * 3
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = forked("kai_cli.main", "get", "pods", "--api-url", url, streams=streams)
        with silent.accept()[0]:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
        assert (tmp_path / "said").read_text() == ""


@pytest.mark.parametrize(
    "within", ["await compute()", "async with asyncio.TaskGroup() as tasks: tasks.create_task(compute())"]
)
def test_an_interrupt_ends_a_command_that_computes(within: str) -> None:
    code = f"""
import asyncio, signal
from kai_cli import main
async def compute():
    print("computing", flush=True)
    while True: pass
async def command():
    {within}
signal.signal(signal.SIGINT, signal.default_int_handler)
main.app = lambda *_, **__: asyncio.run(command())
main.main()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.wait(20), process.stdout.read()) == (130, b"")


def test_what_asks_or_hands_over_imports_nothing_heavy() -> None:
    modules = "main", "asking.questions", "asking.status", "asking.service_logs", "running.preflight"
    code = f"import sys, kai_cli.{', kai_cli.'.join(modules)}; print(*(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "imports", ["kai_cli.running.up as up; up._import_before_forking()", "kaicore.ledger.log.migrate"]
)
def test_what_supervises_or_migrates_imports_no_engine_and_no_second_client(imports: str) -> None:
    dispensable = {"aiohttp", "nats", "numpy", "pydantic", "kaicore.rules"}
    code = f"import sys, {imports}; print(*({dispensable} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@functools.cache
def completion(shell: str) -> str:
    return kai("completion", shell).stdout


# A script takes a second, and what makes those of other shells is not ours.
@pytest.mark.parametrize("shell", ["bash"] if FEW else ["bash", "zsh", "fish"])
def test_completion_knows_commands_and_flags(shell: str) -> None:
    script = completion(shell)
    for word in ("simulate", "completion", "pending", "kubeconfig"):
        assert word in script
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_commands_and_kinds() -> None:
    script = completion("bash")
    ask = 'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kai; echo "${COMPREPLY[@]}"'
    for words, expected in (
        (("kai", "sim"), "simulate"),
        (("kai", "get", "no"), "nodes"),
        (("kai", "audit", ""), "verify"),
    ):
        # As an argument it would be too long: Linux takes 128 KiB in one.
        done = subprocess.run(
            ["bash", "-s", "--", *words], input=f"{script}\n{ask}\n", capture_output=True, text=True, check=True
        )
        assert expected in done.stdout.split(), (words, done.stdout)


def test_every_flag_is_spelled_one_way_in_every_command() -> None:
    """Flags have one name for one meaning in all commands, such as `--kubeconfig`; short forms are the same."""
    short: dict[str, str] = {}
    for _, command in ALL:
        if command.default_command is None:
            continue
        for argument in command.assemble_argument_collection(parse_docstring=False):
            names = [name for name in argument.names if name.startswith("-")]
            for name in names:
                assert "_" not in name
                if not name.startswith("--"):
                    long = next(other for other in names if other.startswith("--"))
                    assert short.setdefault(name, long) == long
            assert not {"--kubeconfig-file", "--kubeconf", "--config-file", "--out-format"} & set(names)
