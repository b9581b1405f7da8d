"""`kai why`, `kai replay` and `kai audit verify` on a log in Postgres: what they say, and with which code they end."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
import pytest
from kaicore.ledger.log.postgres import PostgresLog

from tests.conftest import as_role
from tests.given.processes.called_kai import Run, caller
from tests.integration.scheduling import deciding


@pytest.fixture(scope="module")
def written(module_database_url: str) -> str:
    """Two nodes, and a pod that was placed on the first."""

    async def write() -> None:
        url = as_role(module_database_url, "kai_append")
        async with await PostgresLog.open(url) as log, deciding(log, "asked", nodes=2):
            pass

    asyncio.run(write())
    return module_database_url


@pytest.fixture
def superuser_url(written: str, copy_of: Callable[[str], AbstractContextManager[str]]) -> Iterator[str]:
    with copy_of(written) as copied:
        yield copied


@pytest.fixture
def url(database_url: str) -> str:
    return database_url


@pytest.fixture
def ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    monkeypatch.chdir(tmp_path_factory.mktemp("nothing-runs-here"))
    for name in ("KAI_DATABASE_URL", "KAI_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    return caller(monkeypatch, capsys)


def tamper(url: str, statement: str) -> None:
    """Change the log as only the database's superuser can."""
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        assert connection.execute(statement.encode()).rowcount > 0


def test_unchanged_log_passes_replay_and_audit(url: str, ask: Run) -> None:
    code, output = ask("replay", "--database-url", url)
    assert (code, output.endswith("0 differences\n")) == (0, True)
    code, output = ask("audit", "verify", "--database-url", url)
    verified, head, promises = output.splitlines()
    assert promises == "1 decisions: nothing promised twice"
    assert code == 0
    assert verified.endswith("events verified")
    assert head.startswith("head ")
    code, output = ask("why", "a", "--database-url", url)
    assert code == 0
    assert "placed it on n0" in output


def test_a_replay_of_one_cluster_is_said_as_the_api_says_it(url: str, ask: Run) -> None:
    code, output = ask("replay", "--database-url", url, "-o", "json")
    assert code == 0
    answer = json.loads(output)
    assert (answer["decisions"], answer["differences"]) == (1, [])


def test_what_reads_the_log_itself_takes_no_address_of_an_api(ask: Run) -> None:
    """It was taken and not used: the log in the data directory was verified instead of the one that was meant."""
    for question in (("replay",), ("audit", "verify"), ("audit", "seal", "seals")):
        code, output = ask(*question, "--api-url", "http://127.0.0.1:1")
        assert (code, "Unknown option: --api-url" in output.replace('"', "")) == (2, True), output


def test_the_database_may_be_named_by_the_environment(url: str, ask: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = ask("replay")
    assert code == 2
    assert "$KAI_DATABASE_URL" in output
    monkeypatch.setenv("KAI_DATABASE_URL", url)
    assert [ask(*question)[0] for question in (("replay",), ("audit", "verify"), ("why", "a"))] == [0, 0, 0]


def test_what_is_named_on_the_command_line_goes_before_the_environment(
    url: str, ask: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KAI_DATABASE_URL", "postgresql://127.0.0.1:1/nothing")
    assert ask("replay", "--database-url", url)[0] == 0
    monkeypatch.setenv("KAI_DATABASE_URL", url)
    code, output = ask("replay", "--data-dir", str(tmp_path / "empty"))
    assert (code, "no log" in output) == (2, True)


def test_a_changed_log_fails_verification(url: str, ask: Run, superuser_url: str) -> None:
    tamper(superuser_url, "UPDATE event SET actor = 'mallory' WHERE position = 3")
    code, output = ask("audit", "verify", "--database-url", url)
    assert code == 1
    assert "BROKEN\nevent 3: " in output


def test_a_decision_that_does_not_come_out_again_is_no_success(url: str, ask: Run, superuser_url: str) -> None:
    tamper(
        superuser_url, "UPDATE event SET body = replace(body::text, '\"n0\"', '\"n1\"')::json WHERE type = 'PodPlaced'"
    )
    code, output = ask("replay", "--database-url", url)
    assert code == 1
    assert re.search(r"default/a\b.*\n(.*\n)*?.*\bn1 +n0\b", output), output


def test_a_pod_that_the_log_has_never_heard_of_is_no_success(url: str, ask: Run) -> None:
    code, output = ask("why", "ml/nobody", "--database-url", url)
    assert (code, output) == (1, "kai: the log has never heard of a pod ml/nobody\n")
    for subject, close in (
        ("default/aa", "default/a"),
        ("default2/a", "default/a"),
        ("node/n3", ""),
        ("node/n00", "n0"),
    ):
        code, output = ask("why", subject, "--database-url", url)
        assert (code, f"did you mean {close!r}?" in output) == (1, bool(close)), output


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (("po", "aa"), "pod 'aa' not found; did you mean 'a'?"),
        (("pods", "other/a"), "pod 'a' not found in namespace 'other'"),
        (("pods", "--node", "n11"), "node 'n11' not found; did you mean 'n1'?"),
        (("pods", "--queue", "defautl", "--pending"), "queue 'defautl' not found; did you mean 'default'?"),
        (("q", "nosuch"), "queue 'nosuch' not found"),
        (("nodes", "n00", "--watch"), "node 'n00' not found; did you mean 'n0'?"),
        (("clusters", "nosuch"), "no cluster 'nosuch' in the log"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_name_that_nothing_has_is_told_and_is_no_success(
    url: str, ask: Run, question: tuple[str, ...], expected: str
) -> None:
    """It was an empty list and success, as if there were such a queue, with nothing in it."""
    assert ask("get", *question, "--database-url", url) == (1, f"kai: {expected}\n")


def test_a_name_that_something_has_may_leave_nothing_to_list(url: str, ask: Run) -> None:
    for question in (
        ("pods", "a", "--pending"),
        ("pods", "default/a", "--rejected"),
        ("pods", "--queue", "default", "--pending"),
        ("pods", "--node", "n1"),
    ):
        assert ask("get", *question, "--database-url", url) == (0, "no pods\n")


def test_the_queue_of_all_work_is_listed_and_explained_where_there_are_no_queues(url: str, ask: Run) -> None:
    """Pods had queue `default` in lists, and the list of queues was empty."""
    code, output = ask("get", "queues", "-o", "json", "--database-url", url)
    (row,) = json.loads(output)["items"]
    assert (code, row["name"], row["kind"], row["running"], row["waiting"]) == (0, "default", "", 1, 0)
    code, output = ask("why", "queue/default", "--database-url", url)
    assert code == 0
    assert "default/a" in output or " a " in output


def test_what_cannot_be_listed_is_answered_with_what_can(ask: Run) -> None:
    for word, expected in (("jobs", "there are: pods, groups"), ("podz", "did you mean 'pod'?")):
        code, output = ask("get", word)
        assert (code, expected in " ".join(output.replace("│", " ").split())) == (2, True), output
