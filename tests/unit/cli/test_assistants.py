"""`kai mcp`: assistants' questions over recorded logs, with answers that cite the log."""

import asyncio
import json
import shlex
import sys
from pathlib import Path

import pytest
from kai_cli.asking.assistant_tools import TOOLS, Tools, server
from kai_cli.sources.source import AnswerSource
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult

from tests.given.processes.called_kai import caller
from tests.given.processes.kai_commands import put_on_path
from tests.measured.assistants import LOGS, Question, found, log_file, questions


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return log_file(tmp_path_factory.mktemp("log"), LOGS[0])


def text_of(result: CallToolResult) -> str:
    return "".join(getattr(part, "text", "") for part in result.content)


def mistakes(question: Question, result: CallToolResult) -> list[str]:
    text = text_of(result)
    if (refusal := question.expect.get("error")) is not None:
        return [] if result.is_error and refusal in text else [f"{question.ask} {text}"]
    if result.is_error:
        return [f"{question.ask} {text}"]
    answer = json.loads(text)
    said = {path: found(answer, path) for path in question.expect}
    return [f"{question.ask} {path}: {said[path]}" for path, right in question.expect.items() if said[path] != right]


async def answers(log: Path, asked: list[Question]) -> list[CallToolResult]:
    tools = Tools(AnswerSource(file=log))
    async with tools.opened(), Client(server(tools)) as client:
        return [await client.call_tool(one.tool, one.arguments) for one in asked]


@pytest.mark.parametrize("name", LOGS)
def test_every_question_is_answered_rightly_and_again_by_the_command_that_is_cited(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = log_file(tmp_path, name)
    asked = [one for one in questions() if one.log == name]
    assert len(asked) > 40
    results = asyncio.run(answers(log, asked))
    assert [one for question, result in zip(asked, results, strict=True) for one in mistakes(question, result)] == []
    cited: dict[str, str] = {}
    for question, result in zip(asked, results, strict=True):
        if not result.is_error:
            answer = json.loads(text_of(result))
            cited[question.tool] = answer["shownBy"]
            assert answer["restsOn"][0]["cluster"] == question.log
            assert "no instructions" in answer["data"]
    run = caller(monkeypatch, capsys)
    # What a command says of one log, it says of another.
    for tool, command in cited.items() if name == LOGS[0] else ():
        code, output = run(*shlex.split(command)[1:])
        assert (tool, code) == (tool, 0), output


async def test_kai_mcp_speaks_over_standard_input_and_output_and_only_reads(log: Path, tmp_path: Path) -> None:
    put_on_path(tmp_path)
    program = StdioServerParameters(command=str(tmp_path / "kai"), args=["mcp", "--file", str(log)])
    async with Client(stdio_client(program, errlog=sys.__stderr__)) as client:
        tools = (await client.list_tools()).tools
        assert {one.name for one in tools} == set(TOOLS)
        assert all(one.annotations is not None and one.annotations.read_only_hint for one in tools)
        result = await client.call_tool("rows", {"kind": "nodes", "queue": "x"})
        assert (result.is_error, "nodes cannot be filtered by queue" in text_of(result)) == (True, True)
        assert "has none" in text_of(await client.call_tool("health", {}))


def test_arguments_that_cannot_be_served_are_refused(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = caller(monkeypatch, capsys)
    for arguments, problem in (
        ([f"--file={log}", "--http=8090"], "is no HOST:PORT"),
        ([f"--file={log}", "--http=127.0.0.1:0"], "needs an API"),
        ([f"--data-dir={log.parent}/none"], "kai: no log: nothing runs in"),
    ):
        code, output = run("mcp", *arguments)
        assert (code, problem in output) == (2, True), output
