"""Before submitting: what `kai what-if submit` says is what the scheduler then decides; the API says the same."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kai_cli.sources.source import AnswerSource
from kai_cli.trials.before_submitting import calibration_command, start_command, submit_command
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.trial.submission.start_forecasts import kept_calibration
from kaicore.errors import unheard
from kaicore.kube.kinds.table import group_kind
from kaicore.kube.normalize.pod import normalize_pod
from kaicore.kube.wire.resources import PODS
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.groups.dialects.table import expand
from kaicore.runtime.service import Health
from kaicore.yaml_text import load_yaml

from tests.conftest import module_database_url as superuser_url
from tests.given.processes.kai_commands import Forks
from tests.given.servers.http_app import served_app
from tests.given.work.past_runs import busy_cluster
from tests.integration.scheduling import Facts, placed, scheduling

__all__ = ["superuser_url"]

_GANG = """
apiVersion: batch/v1
kind: Job
metadata:
  name: gang
  namespace: default
  uid: uid-gang
  annotations: {kai.scheduler/batch-min-member: "3"}
spec:
  parallelism: 3
  completions: 3
  template:
    spec:
      restartPolicy: Never
      schedulerName: kai-ledger
      containers:
      - {name: main, image: x, resources: {limits: {cpu: 4, memory: 8Gi, nvidia.com/gpu: 4}}}
"""


async def ask_cli(capsys: pytest.CaptureFixture[str], file: Path, source: AnswerSource, **more: str) -> tuple[int, Any]:
    """Exit code and answer of `kai what-if submit -o json`."""
    code = await submit_command(file, source=source, output="json", **more)
    # The scheduler of the test writes its log beside it.
    (answer,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith('{"cluster"'))
    return code, json.loads(answer)


@asynccontextmanager
async def served(log: EventLog, database_url: str) -> AsyncIterator[str]:
    """The address of an API of the log."""
    health = Health("log")
    health.met("log")
    with Forks() as forks:
        app = make_app(Inquiry(log), health, LongAnswers(database_url, at_once=1, most_s=300, forks=forks))
        async with served_app(app) as url:
            yield url


async def create(facts: Facts, manifest: dict[str, Any]) -> None:
    """The watcher sees a Job, and the pods that its controller makes."""
    kind = group_kind(manifest["apiVersion"], manifest["kind"])
    assert kind is not None
    source: Any = kind.normalize(kind.decode(msgspec.json.encode(manifest)), unheard)
    items: list[tuple[str, payloads.Payload]] = [(f"group/{source.key}", payloads.GroupSourceObserved(source))]
    for made in expand(manifest, nodes_for=lambda _: []):
        one = normalize_pod(PODS.decode(msgspec.json.encode(made.object)))
        items.append((f"pod/{one.uid}", payloads.PodObserved(one)))
    await facts.append(*items)


async def test_what_is_said_before_submitting_is_what_the_scheduler_decides(
    postgres_log: EventLog, database_url: str, cluster_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Facts(postgres_log, cluster_name)
    await facts.add_nodes(3)
    file = tmp_path / "gang.yaml"
    file.write_text(_GANG)
    source = AnswerSource(database_url=database_url, cluster=cluster_name)
    async with scheduling(postgres_log, cluster_name):
        await facts.add_pods("before", cpu=4, memory=8, gpu=4)
        await placed(postgres_log, cluster_name, 1)
        head = await postgres_log.head(cluster_name)
        code, answer = await ask_cli(capsys, file, source)
        (group,) = answer["groups"]
        assert (code, group["verdict"], group["minimum"]) == (0, "StartsNow", 3)
        assert await postgres_log.head(cluster_name) == head
        await create(facts, load_yaml(_GANG))
        nodes = await placed(postgres_log, cluster_name, 4)
    assert {pod["name"]: pod["node"] for pod in group["pods"]} == {
        name: node for name, node in nodes.items() if name != "before"
    }


async def test_api_and_command_line_say_the_same_of_a_moment(
    postgres_log: EventLog, database_url: str, cluster_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = Facts(postgres_log, cluster_name)
    await facts.add_nodes(1)
    await facts.add_pods("waits", cpu=1, gpu=5)
    good, bad = tmp_path / "gang.yaml", tmp_path / "bad.yaml"
    good.write_text(_GANG)
    bad.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: m, image: 1}]}\n")
    at = str((await postgres_log.head(cluster_name)).position)
    async with served(postgres_log, database_url) as address:
        url = f"{address}/v1/clusters/{cluster_name}/submit"
        by_log = await ask_cli(capsys, tmp_path, AnswerSource(database_url=database_url, cluster=cluster_name), at=at)
        by_api = await ask_cli(capsys, tmp_path, AnswerSource(api_url=address, cluster=cluster_name), at=at)
        assert by_api == by_log
        for asked in (
            AnswerSource(database_url=database_url, cluster=cluster_name),
            AnswerSource(api_url=address, cluster=cluster_name),
        ):
            await start_command("waits", at=at, source=asked, output="json")
        first, second = capsys.readouterr().out.splitlines()
        assert first == second
        code, answer = by_api
        assert code == 1
        assert len(answer["problems"]) == 1
        assert str(bad) in answer["problems"][0]
        assert answer["groups"][0]["verdict"] == "Waits"
        async with aiohttp.ClientSession() as session:
            for text in (_GANG, json.dumps(load_yaml(_GANG))):
                async with session.post(url, params={"at": at}, data=text.encode()) as response:
                    assert response.status == 200
                    assert (await response.json())["groups"] == answer["groups"]
            for body, query, status, problem in (
                ("", {}, 400, "must be from 1"),
                ("a: [", {}, 400, "expected"),
                ("[]", {}, 400, "not a Kubernetes object"),
                (_GANG, {"at": "999999"}, 400, "beyond the log's end"),
            ):
                async with session.post(url, params=query, data=body.encode()) as response:
                    assert (response.status, problem in await response.text()) == (status, True), problem
            starts = f"{address}/v1/clusters/{cluster_name}/start/Pod"
            async with session.get(f"{starts}/nobody") as response:
                assert response.status == 404
            async with session.get(f"{starts}/waits") as response:
                assert "too little history" in (await response.json())["groups"][0]["noStart"]
            async with session.post(url.replace(cluster_name, "nowhere"), data=_GANG.encode()) as response:
                assert response.status == 404


async def test_how_often_forecasts_came_true_is_measured_on_the_log_and_kept(
    postgres_log: EventLog, database_url: str, cluster_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = busy_cluster(nodes=2, jobs=30, mean_s=1800, load=0.95, seed=3)
    for start in range(0, len(made.events), 500):
        units = [
            Unit((NewEvent(one.id, one.stream, decode_payload(one), one.actor, one.occurred_at, one.subject),))
            for one in made.events[start : start + 500]
        ]
        await postgres_log.append(cluster_name, units)
    source = AnswerSource(database_url=database_url, cluster=cluster_name)
    assert await kept_calibration(postgres_log, cluster_name) is None
    await calibration_command(source=source, output="json")
    measured = json.loads(capsys.readouterr().out)
    kept = await kept_calibration(postgres_log, cluster_name)
    assert kept is not None
    assert msgspec.to_builtins(kept) == measured
    assert measured["position"] == (await postgres_log.head(cluster_name)).position
    async with served(postgres_log, database_url) as address:
        by_api = AnswerSource(api_url=address, cluster=cluster_name)
        for renew in (False, True):
            await calibration_command(renew=renew, source=by_api, output="json")
            assert json.loads(capsys.readouterr().out) == measured
