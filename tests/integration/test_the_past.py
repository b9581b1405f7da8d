"""Questions about the past: `--at` of the command line and `?at=` of the API, on a log in Postgres."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from kaicore.analysis.inquiry.answers import RowSelection
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.ledger.log.postgres import PostgresLog

from tests.integration.scheduling import Facts, placed, scheduling
from tests.integration.test_questions import Ask, ask

__all__ = ["ask"]


async def write(url: str, cluster: str) -> dict[str, int]:
    """A node; then pod `a`, that waits and is placed; then `b`. Returns positions by what had happened then."""
    async with await PostgresLog.open(url) as log:
        facts = Facts(log, cluster)
        await facts.add_nodes(1)
        places = {"node": (await log.head(cluster)).position}
        await facts.add_pods("a", cpu=2, gpu=1)
        places["waits"] = (await log.head(cluster)).position
        async with scheduling(log, cluster):
            await placed(log, cluster, 1)
        places["placed"] = (await log.head(cluster)).position
        await facts.add_pods("b", cpu=2, gpu=1)
        return places


@pytest.fixture
def places(database_url: str, cluster_name: str) -> dict[str, int]:
    return asyncio.run(write(database_url, cluster_name))


@pytest.fixture
def ask_log(ask: Ask, database_url: str, cluster_name: str) -> Callable[..., tuple[int, str]]:
    return lambda *question: ask(*question, "--database-url", database_url, "--cluster", cluster_name)


def test_list_is_as_of_the_moment_and_says_which(places: dict[str, int], ask_log: Ask) -> None:
    for at, pods in (("node", []), ("waits", [("a", "waiting")]), ("placed", [("a", "placed")])):
        code, output = ask_log("get", "pods", "--at", str(places[at]), "-o", "json")
        listing = msgspec.json.decode(output)
        assert (code, [(row["name"], row["stage"]) for row in listing["items"]]) == (0, pods)
        assert listing["position"] == places[at]
    code, output = ask_log("get", "pods", "--at", "-0s")
    assert code == 0
    assert output.splitlines()[0].startswith(f"as of position {places['placed'] + 1}, recorded at 20")
    assert len(output.splitlines()) == 4


def test_why_looks_at_nothing_that_was_recorded_later(places: dict[str, int], ask_log: Ask) -> None:
    code, output = ask_log("why", "a", "--at", str(places["waits"]))
    assert (code, "placed" in output) == (0, False)
    code, output = ask_log("why", "b", "--at", str(places["placed"]))
    assert (code, "never heard of a pod default/b" in output) == (1, True)
    assert "placed it on n0" in ask_log("why", "a")[1]


def test_moment_that_there_is_not_is_a_wrong_question(places: dict[str, int], ask_log: Ask) -> None:
    for at, why in (
        ("999999", "is beyond the log's end, position"),
        ("1999-01-01T00:00:00Z", "is before its log begins"),
        ("-99h", "is before its log begins"),
        ("yesterday", "is no moment of a log: a moment is a position (12345)"),
    ):
        code, output = ask_log("get", "pods", "--at", at)
        assert (code, why in output, output.count("\n")) == (2, True, 1), output
    for question in (("why", "a"), ("get", "cycles"), ("topology",)):
        assert ask_log(*question, "--at", "999999")[0] == 2


async def test_going_to_and_fro_gives_what_folding_anew_gives(
    places: dict[str, int], database_url: str, cluster_name: str
) -> None:
    async with await PostgresLog.open(database_url) as log:
        inquiry = Inquiry(log)
        for position in (places["waits"], places["placed"], places["node"], places["waits"], places["placed"]):
            listing = await inquiry.listing(cluster_name, "pods", RowSelection(), at=str(position))
            anew = await Inquiry(log).listing(cluster_name, "pods", RowSelection(), at=str(position))
            assert listing == anew
            assert listing.position == position
