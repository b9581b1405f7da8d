"""`kai get` and `kai why` without an API: from a snapshot, which the first question leaves; and lists that go on."""

import asyncio
import os
import pty
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from kai_cli.sources.log_access import open_log_answers
from kai_cli.sources.source import AnswerSource
from kaicore.analysis.ask.answers import RowSelection
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA

from tests.given.processes.kai_commands import kai as ended
from tests.given.processes.kai_commands import put_on_path, spawned
from tests.integration.scheduling import Facts, placed, scheduling

PATIENCE_S = 60.0


@pytest.fixture
async def facts(postgres_log: EventLog, cluster_name: str) -> Facts:
    log_facts = Facts(postgres_log, cluster_name)
    await log_facts.add_nodes(1)
    return log_facts


async def test_the_first_question_leaves_a_snapshot_and_the_second_folds_only_what_came_since(
    facts: Facts, database_url: str, cluster_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await facts.add_pods(*(f"p{number}" for number in range(3100)), cpu=1)
    source = AnswerSource(database_url=database_url)
    async with open_log_answers(source) as answers:
        assert (await answers.listing(cluster_name, "pods", RowSelection(limit=1))).total == 3100
        assert answers.state(cluster_name).folded > 3100
    await facts.add_pods("one-more", cpu=1)
    async with open_log_answers(source) as answers:
        assert (await answers.listing(cluster_name, "pods", RowSelection(limit=1))).total == 3101
        assert answers.state(cluster_name).folded == 1
    assert capsys.readouterr().err == ""


async def test_a_spoilt_snapshot_is_a_warning_and_the_answer_is_sound(
    facts: Facts,
    postgres_log: EventLog,
    database_url: str,
    cluster_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await postgres_log.save_snapshot(cluster_name, Snapshot("state", 1, SNAPSHOT_SCHEMA, b"nonsense"))
    async with open_log_answers(AnswerSource(database_url=database_url)) as answers:
        assert (await answers.listing(cluster_name, "nodes", RowSelection())).total == 1
    assert "snapshot thrown away" in caplog.text


@asynccontextmanager
async def kai(*arguments: str) -> AsyncIterator[asyncio.StreamReader]:
    """A `kai` command that goes on; its output."""
    process = await spawned("kai_cli.main", *arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_watched_list_goes_on_with_what_is_new_and_what_has_changed(
    facts: Facts, postgres_log: EventLog, database_url: str, cluster_name: str
) -> None:
    await facts.add_pods("a", cpu=1)
    watch = ("get", "pods", "--watch", "-o", "json", "--database-url", database_url, "--cluster", cluster_name)
    async with kai(*watch) as output, asyncio.timeout(PATIENCE_S):

        async def row() -> tuple[str, str]:
            shown = msgspec.json.decode(await output.readline())
            return shown["name"], shown["stage"]

        assert await row() == ("a", "waiting")
        await facts.add_pods("b", cpu=1)
        assert await row() == ("b", "waiting")
        async with scheduling(postgres_log, cluster_name):
            await placed(postgres_log, cluster_name, 2)
        assert {await row(), await row()} == {("a", "placed"), ("b", "placed")}


async def test_colours_are_for_terminals_and_can_be_refused(
    facts: Facts, database_url: str, cluster_name: str, tmp_path: Path
) -> None:
    put_on_path(tmp_path)
    await facts.add_pods("a", cpu=1)
    ask = ("get", "pods", "--database-url", database_url, "--cluster", cluster_name)
    assert "\x1b[33mPending" in await asyncio.to_thread(on_a_terminal, tmp_path / "kai", *ask)
    for refused in ((*ask, "--no-color"), ("--no-color", *ask)):
        assert "\x1b[3" not in await asyncio.to_thread(on_a_terminal, tmp_path / "kai", *refused)
    assert "\x1b" not in (await asyncio.to_thread(ended, *ask)).stdout


def on_a_terminal(program: Path, *arguments: str) -> str:
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    try:
        subprocess.run([program, *arguments], stdout=theirs, env=environment, check=True)
        return os.read(ours, 1 << 16).decode()
    finally:
        os.close(theirs)
        os.close(ours)
