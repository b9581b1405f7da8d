"""`kai submit` and `kai withdraw` from another machine: the hub's routes, who may, and what the same again does."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from kai_cli.running import dispatches as dispatch_commands
from kai_cli.upkeep.keys import new
from kai_hub.main import make_app
from kaicore.analysis.trial.dispatching import HubLog
from kaicore.errors import ConfigurationError, UnknownSubject
from kaicore.ledger.log.memory import MemoryLog
from kaicore.rules.events.payloads import ClusterRegistered
from kaicore.rules.hub.hub_state import HUB, DispatchStage, cluster_stream
from kaicore.runtime.access.access_file import AccessFile
from kaicore.runtime.access.callers import HttpAccess
from kaicore.runtime.service import Health

from tests.given.servers.http_app import served_app


def manifest(name: str, namespace: str | None = None) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    containers = [{"name": "main", "image": "x", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


class Caller:
    """Somebody on another machine."""

    def __init__(self, url: str, folder: Path, key: str) -> None:
        self.to: dict[str, Any] = {"hub_url": url, "token": key}
        self._folder = folder

    async def submit(self, *objects: dict[str, Any], **flags: Any) -> None:
        file = self._folder / "work.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        await asyncio.to_thread(dispatch_commands.submit, file, **self.to, **flags)

    async def withdraw(self, name: str) -> None:
        await asyncio.to_thread(dispatch_commands.withdraw, name, **self.to)


class HubOverHttp:
    """The routes of a hub of two clusters, with three keys."""

    def __init__(self, log: MemoryLog, url: str, keys: dict[str, str], folder: Path) -> None:
        self.hub, self.url = HubLog(log), url
        self._keys, self._folder = keys, folder

    def caller(self, name: str) -> Caller:
        return Caller(self.url, self._folder, self._keys.get(name, name))


@pytest.fixture
async def served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> AsyncIterator[HubOverHttp]:
    log, file, keys = MemoryLog(clock=lambda: 0), tmp_path / "access.yaml", {}
    for name, scopes in (("all", ["*"]), ("team", ["*/team"]), ("east-team", ["east/team"])):
        new(name, file=file, scope=scopes)
        keys[name] = capsys.readouterr().out.strip()
    hub = HubLog(log)
    for name in ("east", "west"):
        await hub.append(cluster_stream(name), ClusterRegistered(cluster=name), subject=name)
    app = make_app(HubLog(log), HttpAccess(anonymous="no", file=AccessFile(file)), Health())
    async with served_app(app) as url:
        yield HubOverHttp(log, url, keys, tmp_path)


async def test_same_again_changes_nothing_and_another_of_the_name_is_refused(
    served: HubOverHttp, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = served.caller("all")
    await everything.submit(manifest("train"), data=["images"], cluster=["west,east"])
    await everything.submit(manifest("train"), data=["images"], cluster=["east", "west"])
    entry = (await served.hub.refresh()).dispatches["train"]
    assert (entry.submitted.clusters, entry.submitted.data) == (("east", "west"), ("images",))
    assert (entry.version, entry.stage) == (1, DispatchStage.WAITING)
    (event,) = [event for event in await served.hub.log.read(HUB) if event.stream == "dispatch/train"]
    assert event.actor == "caller/all"
    with pytest.raises(ConfigurationError, match=r"dispatch train: is there already, another one \(Waiting\)"):
        await everything.submit(manifest("train"))
    assert "dispatch train: submitted" in capsys.readouterr().out

    for _ in range(2):
        await everything.withdraw("train")
    assert (await served.hub.refresh()).dispatches["train"].version == 2


async def test_caller_may_submit_and_withdraw_what_he_may_see(served: HubOverHttp) -> None:
    team, east = served.caller("team"), served.caller("east-team")
    await team.submit(manifest("ours", "team"))
    await east.submit(manifest("near", "team"), cluster=["east"])
    for caller, work, clusters, why in (
        (team, manifest("x", "other"), [], "team may not submit this: Pod x: namespace 'other' is not yours"),
        (team, manifest("x"), [], "Pod x: name its namespace"),
        (east, manifest("x", "team"), [], "name the clusters that you may see"),
        (east, manifest("x", "team"), ["east", "west"], "cluster 'west' is not yours"),
        (east, manifest("ours", "team"), ["east"], "dispatch ours: the name is taken"),
        (served.caller("kai_nobody"), manifest("x"), [], "this key is not known"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            await caller.submit(work, cluster=clusters)
    with pytest.raises(UnknownSubject, match="knows of no dispatch ours"):
        await east.withdraw("ours")
    await team.withdraw("ours")
    assert set((await served.hub.refresh()).dispatches) == {"ours", "near"}


@pytest.mark.parametrize(
    ("query", "body", "why"),
    [
        ("", "{", "request"),
        ("", "[]", "request"),
        ("name=Not_A_Label", json.dumps(manifest("x")), "name 'Not_A_Label': must be 1 to 63"),
        ("clusters=eas", json.dumps(manifest("x")), "cluster eas: is not registered; did you mean 'east'"),
        ("cluster=east", json.dumps(manifest("x")), "unknown query parameter 'cluster'; did you mean 'clusters'"),
        ("", json.dumps({**manifest("x"), "metadata": {"generateName": "x-"}}), "name ''"),
        ("", json.dumps({**manifest("x"), "spec": {"containers": []}}), "x"),
    ],
)
async def test_request_that_makes_no_sense_is_answered_with_what_is_wrong(
    served: HubOverHttp, query: str, body: str, why: str
) -> None:
    headers = {"Authorization": f"Bearer {served.caller('all').to['token']}"}
    async with aiohttp.ClientSession() as session:
        address = f"{served.url}/v1/dispatches?{query}"
        async with session.post(address, data=body, headers=headers) as response:
            answer = await response.json()
    assert response.status == 400, answer
    assert why in answer["error"]
    assert (await served.hub.refresh()).dispatches == {}
