"""Questions about the past: `--at` of the command line and `?at=` of the API, on a log in Postgres."""

import asyncio
from collections.abc import Callable
from itertools import islice

import msgspec
import pytest
from kaicore.analysis.ask.answers import RowSelection
from kaicore.analysis.ask.queries import Inquiry
from kaicore.ledger.log import snapshots
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.state.cluster_state import ClusterState

from tests.conftest import as_role
from tests.given.processes.called_kai import Run
from tests.integration.scheduling import Facts, placed, scheduling
from tests.integration.test_questions import ask
from tests.measured.bench.cluster_life import ClusterLife
from tests.measured.bench.history import make_log

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


@pytest.fixture(scope="module")
def cluster_name() -> str:
    return "past"


@pytest.fixture(scope="module")
def database_url(module_database_url: str) -> str:
    return as_role(module_database_url, "kai_append")


@pytest.fixture(scope="module")
def places(database_url: str, cluster_name: str) -> dict[str, int]:
    """Positions of the log that all tests ask: no question changes it."""
    return asyncio.run(write(database_url, cluster_name))


@pytest.fixture
def ask_log(ask: Run, database_url: str, cluster_name: str) -> Callable[..., tuple[int, str]]:
    return lambda *question: ask(*question, "--database-url", database_url, "--cluster", cluster_name)


def test_list_is_as_of_the_moment_and_says_which(places: dict[str, int], ask_log: Run) -> None:
    for at, pods in (("node", []), ("waits", [("a", "waiting")]), ("placed", [("a", "placed")])):
        code, output = ask_log("get", "pods", "--at", str(places[at]), "-o", "json")
        listing = msgspec.json.decode(output)
        assert (code, [(row["name"], row["stage"]) for row in listing["items"]]) == (0, pods)
        assert listing["position"] == places[at]
    code, output = ask_log("get", "pods", "--at", "0")
    assert (code, output.splitlines()) == (0, ["as of position 0, before the first event", "no pods"])
    code, output = ask_log("get", "pods", "--at", "-0s")
    assert code == 0
    assert output.splitlines()[0].startswith(f"as of position {places['placed'] + 1}, recorded at 20")
    assert len(output.splitlines()) == 4


def test_why_looks_at_nothing_that_was_recorded_later(places: dict[str, int], ask_log: Run) -> None:
    code, output = ask_log("why", "a", "--at", str(places["waits"]))
    assert (code, "placed" in output) == (0, False)
    code, output = ask_log("why", "b", "--at", str(places["placed"]))
    assert (code, f"never heard of a pod default/b up to position {places['placed']}" in output) == (1, True)
    assert "placed it on n0" in ask_log("why", "a")[1]


def test_moment_that_there_is_not_is_a_wrong_question(places: dict[str, int], ask_log: Run) -> None:
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


def test_state_shows_a_moment_by_kind_and_in_figures(places: dict[str, int], ask_log: Run) -> None:
    code, output = ask_log("state", "--at", str(places["waits"]))
    assert (code, "pods: 1 waiting, 0 placed, 0 bound, 0 finished" in output) == (0, True)
    code, output = ask_log("state", "zones", "--at", str(places["placed"]))
    gpu = [line.split() for line in output.splitlines() if "nvidia.com/gpu" in line]
    assert code == 0
    assert gpu == [
        ["n0", "node-0", "nvidia.com/gpu", "4", "1", "0", "3", "default/a", "1", "(predicted)"],
        ["n0", "node-1", "nvidia.com/gpu", "4", "0", "0", "4"],
    ]
    code, output = ask_log("state", "zone", "n0/node-1", "-o", "json")
    (zone,) = msgspec.json.decode(output)["items"]
    assert (code, zone["node"], zone["zone"], zone["pods"]) == (0, "n0", "node-1", [])
    assert ask_log("state", "cycles")[0] == 2
    assert "no topology in cluster" in ask_log("state", "topology", "--at", "1")[1]


def test_diff_tells_what_is_new_gone_or_changed_field_by_field(places: dict[str, int], ask_log: Run) -> None:
    waits, placed_at = str(places["waits"]), str(places["placed"])
    code, output = ask_log("diff", waits, placed_at, "--kind", "pods")
    assert code == 0
    first, *lines = output.splitlines()
    assert f"from position {waits} (20" in first
    assert lines == [
        "pods: 1 changed",
        "  ~ default/a",
        "      status: Pending → Placed",
        "      stage: waiting → placed",
        "      node: - → n0",
        "      zones: - → node-0",
    ]
    code, output = ask_log("diff", placed_at, "-o", "json")
    assert msgspec.json.decode(output)["counts"]["pods"] == {"added": 1, "removed": 0, "changed": 0}
    # The same the other way round.
    back = msgspec.json.decode(ask_log("diff", "end", placed_at, "-o", "json")[1])
    assert back["counts"]["pods"] == {"added": 0, "removed": 1, "changed": 0}
    assert ask_log("diff", placed_at, placed_at)[1].endswith("nothing is different\n")


def test_diff_looks_at_what_was_there_before_or_after(places: dict[str, int], ask_log: Run) -> None:
    waits, placed_at = str(places["waits"]), str(places["placed"])
    for filters, kinds in (
        (("--node", "n0"), ["nodes", "pods", "zones"]),
        (("-n", "default"), ["pods"]),
        (("-n", "other"), []),
        (("--queue", "default"), ["queues", "pods"]),
        (("--node", "n0", "--kind", "zone"), ["zones"]),
    ):
        code, output = ask_log("diff", waits, placed_at, *filters, "-o", "json")
        assert (code, list(msgspec.json.decode(output)["counts"])) == (0, kinds), filters
    for filters, exit_code, why in (
        (("--node", "nn0"), 1, "node 'nn0' not found; did you mean 'n0'?"),
        (("--kind", "podz"), 2, "is none of nodes, topology, queues, groups, pods, zones; did you mean 'pods'?"),
        (("--kind", "nodes", "--queue", "default"), 2, "nodes cannot be filtered by it"),
    ):
        code, output = ask_log("diff", waits, placed_at, *filters)
        assert (code, why in output) == (exit_code, True), output


def test_long_log_that_is_made_for_the_bench_answers_as_one_that_was_appended(
    empty_database_url: str, ask: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SPACING", 500)
    life = ClusterLife("long", nodes=4, gangs=1, step_us=3_600_000_000)
    end = make_log(empty_database_url, life, 1500)
    state = ClusterState("long").fold_all(life.events(range(life.waves_for(1500))))
    assert (state.position, sorted(state.pods)) == (end, ["uid-never"])
    where = ("--database-url", empty_database_url)
    assert ask("why", "never", *where)[1].startswith("default/never: pending")
    middle = life.end(4) + life.wave_size // 3
    listing = msgspec.json.decode(ask("get", "pods", "--at", str(middle), "-o", "json", *where)[1])
    placed_at = ClusterState("long").fold_all(islice(life.events(range(6)), middle))
    assert {row["uid"]: row["node"] for row in listing["items"]} == {
        entry.pod.uid: entry.node for entry in placed_at.pods.values()
    }
