"""The API answers from the log, and says clearly what it cannot."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import aiohttp
import msgspec
import pytest
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kai_cli.history.report import show
from kai_cli.sources.source import AnswerSource
from kai_cli.trials.shadow_report import report
from kai_ledger.client import Ledger
from kaicore.analysis.ask.queries import Inquiry
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.model.node import HOSTNAME, KAI_TOPOLOGY, TopologyDefinition, TopologyLevel
from kaicore.rules.model.placement import ContainerPlacement, Placement, Provenance, ZoneAmount
from kaicore.runtime.service import Health

from tests.conftest import as_role
from tests.given.cluster.factory import amounts, node, pod
from tests.given.processes.kai_commands import Forks, kai
from tests.given.servers.http_app import served_app
from tests.integration.scheduling import Facts, deciding, placed
from tests.integration.test_shadowing import recorded, seen, shadowing


class Api:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def get(self, path: str, *, status: int = 200) -> Any:
        return await self._ask("GET", path, status)

    async def post(self, path: str, question: object, *, status: int = 200) -> Any:
        return await self._ask("POST", path, status, json=question)

    async def _ask(self, method: str, path: str, status: int, **more: Any) -> Any:
        async with self._session.request(method, self.url + path, **more) as response:
            assert response.status == status, await response.text()
            return await (response.json() if "json" in response.content_type else response.text())


@pytest.fixture(scope="module")
def cluster_name() -> str:
    """All tests ask about one cluster, each in a log of its own."""
    return "asked"


@pytest.fixture(scope="module")
def decided(module_database_url: str, cluster_name: str) -> str:
    """A database in which a node has two pods, and one waits."""
    asyncio.run(_decide(as_role(module_database_url, "kai_append"), cluster_name))
    return module_database_url


async def _decide(url: str, cluster: str) -> None:
    async with await PostgresLog.open(url) as log, deciding(log, cluster, nodes=1) as facts:
        await facts.add_pods("never", cpu=1, gpu=5)
        await facts.add_pods("b", cpu=2, gpu=1)
        await placed(log, cluster, 2)


@pytest.fixture
def superuser_url(decided: str, copy_of: Callable[[str], AbstractContextManager[str]]) -> Iterator[str]:
    with copy_of(decided) as copied:
        yield copied


@pytest.fixture
async def api(postgres_log: EventLog, database_url: str) -> AsyncIterator[Api]:
    health = Health("log")
    health.met("log")
    with Forks() as forks:
        app = make_app(Inquiry(postgres_log), health, LongAnswers(database_url, at_once=1, most_s=300, forks=forks))
        async with served_app(app) as url, aiohttp.ClientSession() as session:
            yield Api(url, session)


async def test_question_is_answered_with_the_expected_fields(api: Api, cluster_name: str) -> None:
    (cluster,) = await api.get("/v1/clusters")
    assert cluster["name"] == cluster_name
    summary = await api.get(f"/v1/clusters/{cluster_name}")
    assert summary["pods"] == {"waiting": 1, "placed": 2, "bound": 0, "finished": 0}
    why = await api.get(f"/v1/clusters/{cluster_name}/pods/default/never/why")
    assert why["verdict"] == "pending"
    assert "5 needed, 4 in the largest zone" in why["reasons"][0]["message"]
    assert [(remedy["code"], remedy["resource"], remedy["message"]) for remedy in why["schedulableIf"]] == [
        ("FitsIf", "nvidia.com/gpu", "would become schedulable if nvidia.com/gpu ≤ 4 (such as n0)")
    ]
    replayed = await api.get(f"/v1/clusters/{cluster_name}/replay")
    assert (replayed["differences"], replayed["cycles"] > 0) == ([], True)
    counted = f'kai_api_replayed_cycles_total{{cluster="{cluster_name}"}} {replayed["cycles"]:.1f}'
    assert counted in await api.get("/metrics")
    one = await api.get(f"/v1/clusters/{cluster_name}/replay?cycle=1")
    assert (one["cycles"], one["differences"]) == (1, [])
    assert (
        "the range is empty" in (await api.get(f"/v1/clusters/{cluster_name}/replay?from=3&to=2", status=400))["error"]
    )
    assert (await api.get(f"/v1/clusters/{cluster_name}/audit"))["ok"]
    page = await api.get(f"/v1/clusters/{cluster_name}/events?after=1&limit=2")
    assert [event["position"] for event in page["items"]] == [2, 3]
    placed_events = await api.get(f"/v1/clusters/{cluster_name}/events?type=PodPlaced&subject=default/a")
    assert [event["body"]["node"] for event in placed_events["items"]] == ["n0"]
    assert "ready" in await api.get("/readyz")
    assert 'kai_api_request_seconds_count{route="/v1/clusters"}' in await api.get("/metrics")


async def test_a_replay_of_what_there_is_not_is_refused_before_a_process_is_started_for_it(
    postgres_log: EventLog, cluster_name: str
) -> None:
    no_process = LongAnswers("", at_once=0, most_s=1)
    app = make_app(Inquiry(postgres_log), Health(), no_process)
    async with served_app(app) as url, aiohttp.ClientSession() as session:
        api = Api(url, session)
        for asked, status, problem in (
            ("cycle=../../x", 400, "cycle '../../x': no number, and no SHARD/NUMBER such as default/17"),
            ("cycle=../../1", 404, "there is no cycle ../../1"),
            (f"cycle={'9' * 5000}", 400, "no SHARD/NUMBER"),
            ("cycle=1&from=1", 400, "cycle means one cycle"),
            ("from=yesterday", 400, "yesterday"),
        ):
            assert problem in (await api.get(f"/v1/clusters/{cluster_name}/replay?{asked}", status=status))["error"]
        await api.get(f"/v1/clusters/{cluster_name}/replay?from=1", status=429)


async def test_lists_and_explanations_are_answered_by_the_api(api: Api, cluster_name: str) -> None:
    here = f"/v1/clusters/{cluster_name}"
    waiting = await api.get(f"{here}/pods?pending=true")
    assert (waiting["cluster"], waiting["total"]) == (cluster_name, 1)
    assert [row["name"] for row in waiting["items"]] == ["never"]
    assert [row["name"] for row in (await api.get(f"{here}/nodes"))["items"]] == ["n0"]
    cycles = await api.get(f"{here}/cycles?limit=1")
    assert len(cycles["items"]) == 1
    assert cycles["items"][0]["inputPosition"] < cycles["items"][0]["position"]
    for kind in ("Node", "no"):
        assert (await api.get(f"{here}/why/{kind}/n0"))["verdict"] == "Ready, holds 2 pods"
    assert "knows of no Job" in (await api.get(f"{here}/why/Job/none?namespace=x", status=404))["error"]
    assert "there are: pods" in (await api.get(f"{here}/nosuch", status=404))["error"]
    position = (await api.get(f"{here}/position"))["position"]
    assert (await api.get(f"{here}/position?beyond={position - 1}&wait=30"))["position"] == position


async def test_topologies_are_answered_by_api_and_command_line(
    api: Api, cluster_name: str, postgres_log: EventLog
) -> None:
    levels = (TopologyLevel("rack", ("rack",)), TopologyLevel(HOSTNAME))
    definition = TopologyDefinition(KAI_TOPOLOGY, "racks", "uid-racks", "1", levels)
    labelled = node("n0", cpu=32, memory=128, gpu=8, labels={"rack": "r1"}, resource_version="2")
    facts = [
        ("topology/Topology.kai.scheduler/racks", payloads.TopologyDefinitionObserved(definition)),
        ("node/n0", payloads.NodeObserved(labelled)),
    ]
    ids = [derived_id(cluster_name, "rack", stream) for stream, _ in facts]
    units = [
        Unit((NewEvent(one, stream, fact, "watcher", 0, ""),)) for one, (stream, fact) in zip(ids, facts, strict=True)
    ]
    await postgres_log.append(cluster_name, units)
    here = f"/v1/clusters/{cluster_name}/topologies"
    answer = await api.get(f"{here}?slots=gpu%3D2,cpu%3D4&segments=1")
    (rack,) = answer["topologies"][0]["domains"]
    assert (answer["cluster"], rack["name"], rack["slots"], rack["idle"]) == (cluster_name, "r1", 3, 0)
    assert {"resource": "gpu", "allocatable": "8", "used": "2", "free": "6"} in rack["resources"]
    assert answer["topologies"][0]["levels"][0]["mostSlotsIn"] == ["r1"]
    assert "is a resource that no node has" in (await api.get(f"{here}?slots=gpus%3D2", status=400))["error"]
    assert "no topology 'x'" in (await api.get(f"{here}?topology=x", status=404))["error"]
    assignment = f"/v1/clusters/{cluster_name}/groups/PodGroup/default/none/topology-assignment"
    assert "knows of no group PodGroup default/none" in (await api.get(assignment, status=404))["error"]
    assert "is none of v1beta2, v1beta1" in (await api.get(f"{assignment}?version=v1", status=400))["error"]
    code, out, _ = await _ended("topology", "--slots", "gpu=2,cpu=4", "--api-url", api.url)
    assert (code, "└─ r1 " in out.decode()) == (0, True)
    code, _, output = await _ended("topology", "show", "--slots", "gpus=2", "--api-url", api.url)
    assert (code, "did you mean 'gpu'" in output.decode()) == (2, True)
    code, _, output = await _ended("topology", "--domain", "r2", "--api-url", api.url)
    assert (code, output.decode()) == (1, "kai: no domain 'r2'\n")


async def test_a_question_that_makes_no_sense_is_refused_by_api_and_command_line(api: Api, cluster_name: str) -> None:
    wrong = (await api.get(f"/v1/clusters/{cluster_name}/nodes?pending=true", status=400))["error"]
    assert wrong == "nodes cannot be filtered by pending"
    for question, problem in (
        (("why", "a\tb"), "kai: path and query: only UTF-8 without control characters\n"),
        (("get", "pods", "--limit", "100001"), "kai: limit: Input should be less than or equal to 100000\n"),
        (("get", "nodes", "--pending"), "kai: nodes cannot be filtered by --pending\n"),
    ):
        code, _, output = await _ended(*question, "--api-url", api.url)
        assert (code, output.decode()) == (2, problem)


async def test_events_are_spelled_like_everything_else(api: Api, cluster_name: str) -> None:
    page = await api.get(f"/v1/clusters/{cluster_name}/events?type=PodPlaced&subject=default/a")
    (event,) = page["items"]
    assert {"recordedAt", "occurredAt", "hash"} <= event.keys()
    assert len(bytes.fromhex(event["hash"])) == 32
    assert event["body"]["podClass"]


async def test_the_command_line_says_the_same_whether_it_asks_the_api_or_the_log(
    api: Api, cluster_name: str, database_url: str
) -> None:
    for question in (
        ("get", "pods"),
        ("get", "nodes", "--limit", "1"),
        ("get", "cycles"),
        ("get", "clusters"),
        ("why", "default/never"),
        ("why", "node/n0"),
    ):
        output = [
            await _kai(*question, "-o", "json", "--cluster", cluster_name, *source)
            for source in (("--api-url", api.url), ("--database-url", database_url))
        ]
        assert output[0] == output[1]
        assert msgspec.json.decode(output[0])
    sent = await api.get(f"/v1/clusters/{cluster_name}/why/Pod/never?namespace=default")
    asked = ("why", "never", "-o", "json", "--api-url", api.url, "--cluster", cluster_name)
    assert sent == msgspec.json.decode(await _kai(*asked))
    yaml_said = await _kai(*asked[:2], "-o", "yaml", *asked[4:])
    assert "verdict: pending" in yaml_said.decode()


async def _kai(*arguments: str) -> bytes:
    code, out, err = await _ended(*arguments)
    assert code == 0, err.decode()
    return out


async def _ended(*arguments: str) -> tuple[int, bytes, bytes]:
    done = await asyncio.to_thread(kai, *arguments)
    return done.returncode, done.stdout.encode(), done.stderr.encode()


async def test_unknown_subject_is_answered_as_not_found(api: Api, cluster_name: str) -> None:
    assert "no cluster 'other'" in (await api.get("/v1/clusters/other", status=404))["error"]
    gone = await api.get(f"/v1/clusters/{cluster_name}/pods/default/none/why", status=404)
    assert "never heard of" in gone["error"]
    await api.get(f"/v1/clusters/{cluster_name}/events?limit=0", status=422)
    await api.get(f"/v1/clusters/{cluster_name}/events?after={10**30}", status=422)


async def test_a_parameter_that_a_question_does_not_have_is_named_and_refused(api: Api, cluster_name: str) -> None:
    """A filter that was misspelled was left out, and all pods were answered."""
    refused = await api.get(f"/v1/clusters/{cluster_name}/pods?quue=a&limit=1&colour=red", status=400)
    assert refused == {
        "error": "unknown query parameter 'colour'; 'quue'; did you mean 'queue'? "
        "(there are: after, at, limit, name, namespace, node, pending, queue, rejected)"
    }
    for path in ("/v1/clusters", f"/v1/clusters/{cluster_name}/audit", f"/v1/clusters/{cluster_name}/events"):
        assert "'chain'" in (await api.get(f"{path}?chain=1", status=400))["error"]


async def test_every_error_has_one_shape(api: Api, cluster_name: str) -> None:
    here = f"/v1/clusters/{cluster_name}"
    for path, status, expected in (
        ("/nowhere", 404, "Not Found"),
        ("/v1/clusters/other/pods", 404, "no cluster 'other' in the log"),
        (f"{here}/events?limit=0&after=x", 422, "after: Input should be a valid integer"),
        (f"{here}/pods?name=%00", 400, "path and query: only UTF-8 without control characters"),
        (f"{here}/nodes?pending=true", 400, "nodes cannot be filtered by pending"),
    ):
        refused = await api.get(path, status=status)
        assert refused.keys() == {"error"}
        assert refused["error"].startswith(expected)


async def test_the_audit_holds_decisions_to_the_account_as_the_command_line_does(
    api: Api, postgres_log: EventLog, cluster_name: str, database_url: str
) -> None:
    """The API verified the chain only, and said `ok` of a log in which a zone is promised twice."""
    verify = ("audit", "verify", "-o", "json", "--database-url", database_url, "--cluster", cluster_name)
    for name, ok, code in (("first", True, 0), ("second", False, 1)):
        await promise(postgres_log, cluster_name, name, gpu=2 if ok else 4)
        answer = await api.get(f"/v1/clusters/{cluster_name}/audit")
        ended, output, _ = await _ended(*verify)
        assert (answer["ok"], ended) == (ok, code)
        assert msgspec.json.decode(output) == answer
    assert [(item["pod"], item["zone"], item["resource"]) for item in answer["promises"]["twice"]] == [
        ("default/second", "node-1", "nvidia.com/gpu")
    ]


async def promise(log: EventLog, cluster: str, name: str, *, gpu: int) -> None:
    """Record that a pod was placed on zone node-1 of n0, which no cycle decided."""
    held = (ZoneAmount("node-1", amounts(gpu=gpu)),)
    placement = Placement(Provenance.PREDICTED, (ContainerPlacement("main", ("node-1",), held),))
    placed_event = payloads.PodPlaced(f"uid-{name}", "default", name, "n0", "x/1", "class", placement)
    facts = (payloads.PodObserved(pod(name, cpu=1, gpu=gpu)), placed_event)
    for number, payload in enumerate(facts):
        event = NewEvent(derived_id(name, str(number)), f"pod/uid-{name}", payload, "x", 0, f"default/{name}")
        await log.append(cluster, [Unit((event,))])


async def test_questions_about_the_past_are_answered_as_of_a_moment(api: Api, cluster_name: str) -> None:
    root = f"/v1/clusters/{cluster_name}"
    end = (await api.get(root))["position"]
    before = await api.get(f"{root}/pods?at={end - 1}")
    assert (before["position"], before["recordedAt"][:2]) == (end - 1, "20")
    assert (await api.get(f"{root}?at=2"))["pods"]["waiting"] == 0
    assert [row["name"] for row in (await api.get(f"{root}/pods?at=3"))["items"]] == ["a"]
    assert (await api.get(f"{root}/pods/default/a/why?at=3"))["position"] == 3
    assert (await api.get(f"{root}/topologies?at=3"))["position"] == 3
    assert "beyond the log's end" in (await api.get(f"{root}/pods?at={end + 1}", status=400))["error"]
    assert "no moment of a log" in (await api.get(f"{root}/topologies?at=yesterday", status=400))["error"]
    await api.get(f"{root}/pods/default/b/why?at=3", status=404)


async def test_diff_of_two_moments_is_answered_by_kind(api: Api, cluster_name: str) -> None:
    root = f"/v1/clusters/{cluster_name}"
    answer = await api.get(f"{root}/diff?from=2&kind=pods")
    assert (answer["before"]["position"], answer["counts"]["pods"]["added"]) == (2, 3)
    assert {change["name"] for change in answer["changes"]} == {"default/a", "default/b", "default/never"}
    assert [row["name"] for row in (await api.get(f"{root}/zones?node=n0"))["items"]] == ["n0/node-0", "n0/node-1"]
    assert "is none of" in (await api.get(f"{root}/diff?from=2&kind=podz", status=400))["error"]
    assert "beyond the log's end" in (await api.get(f"{root}/diff?from=2&to=9999", status=400))["error"]
    assert "from" in (await api.get(f"{root}/diff", status=422))["error"]


async def test_history_is_simulated_again_as_it_was_asked(api: Api, cluster_name: str) -> None:
    path = f"/v1/clusters/{cluster_name}/what-if"
    question = {"settings": ["numa=false"]}
    answer = await api.post(path, question)
    assert answer["recorded"]["pods"] == answer["baseline"]["pods"] == 3
    assert [one["name"] for one in answer["alternatives"]] == ["numa=false"]
    assert "<svg" in await api.post(f"{path}?format=html", question)
    wrong = {"patches": [{"name": "mine", "text": "nodes: {remove: [n7]}"}]}
    assert "mine: there is no node 'n7'" in (await api.post(path, wrong, status=400))["error"]
    assert "did you mean 'numa'" in (await api.post(path, {"settings": ["nuna=false"]}, status=400))["error"]
    assert "unknown field `form`" in (await api.post(path, {"form": "1"}, status=400))["error"]
    await api.post(path, {"from": "1" * 200_000}, status=413)
    page = await api.get(f"/clusters/{cluster_name}/policies?window=1d")
    assert all(part in page for part in (">reserve-and-move</th>", "Waits by queue", "GPU-hours by queue", ">3</td>"))
    assert "is none of" in await api.get(f"/clusters/{cluster_name}/policies?window=1y", status=400)


async def test_a_shadows_report_is_answered_with_and_without_the_simulated_window(
    api: Api, cluster_name: str, postgres_log: EventLog, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/v1/clusters/{cluster_name}/shadow-report"
    assert "no shadow has recorded anything" in (await api.get(path, status=404))["error"]
    facts = Facts(postgres_log, cluster_name, "later")
    async with shadowing(postgres_log, "default-scheduler", cluster=cluster_name):
        await facts.append(seen("theirs", cpu=1, gpu=1), seen("theirs", cpu=1, gpu=1, node="n0"))
        await recorded(postgres_log, cluster=cluster_name)
    source = AnswerSource(cluster=cluster_name, api_url=api.url)
    await asyncio.to_thread(report, simulate=False, source=source)
    assert "default-scheduler bound 1 pods; the shadow: 1 same node" in capsys.readouterr().out
    assert "<svg" in await api.get(f"{path}?format=html")
    page = await api.get(f"/clusters/{cluster_name}/shadow?compare=default-scheduler")
    assert all(part in page for part in ("its shadow by day", "its shadow by queue", ">Avoided</th>"))
    assert "shows the simulated window" in (await api.get(f"{path}?format=html&simulate=no", status=400))["error"]


async def test_a_report_of_hours_is_answered_and_command_and_client_say_the_same(
    api: Api, cluster_name: str, database_url: str, postgres_log: EventLog, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/v1/clusters/{cluster_name}/report"
    facts = Facts(postgres_log, cluster_name, "hours")
    await facts.append(seen("holder", cpu=2, gpu=1, node="n0"))
    await asyncio.sleep(0.01)
    await facts.append(seen("later", cpu=1))
    answer = await api.get(f"{path}?by=namespace&price=*=3.6e6")
    assert answer["owners"][0]["gpu"]["held"] > 0
    assert answer["owners"][0]["cost"] >= 10, "a thousandth of a second costs one"
    source = AnswerSource(cluster=cluster_name, api_url=api.url)
    await asyncio.to_thread(show, by="namespace", source=source)
    assert f"cluster {cluster_name}: " in capsys.readouterr().out
    assert "distinguished by" in (await api.get(f"{path}?by=colour", status=400))["error"]
    assert "nothing of that time" in (await api.get(f"{path}?month=2020-01", status=400))["error"]

    def asked(where: str) -> list[object]:
        with Ledger(where, cluster=cluster_name) as ledger:
            tables, why = (ledger.pods(at="5"), ledger.pods(), ledger.report("namespace")), ledger.why("never")
            if where == api.url:
                with pytest.raises(ConfigurationError, match="replay: reads the log itself"):
                    ledger.replay()
            else:
                assert ledger.replay().data.differences == []
            return [why.data, str(why), *map(str, tables), *(one.to_dicts() for one in tables)]

    assert await asyncio.to_thread(asked, api.url) == await asyncio.to_thread(asked, database_url)
