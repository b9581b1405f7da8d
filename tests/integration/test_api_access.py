"""Callers of the API, and their answers: keys, scopes, sessions of browsers, limits."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
import psycopg
import pytest
from kai_api.answering import HIDDEN, redacted
from kai_api.long_answers import LongAnswers
from kai_api.main import make_app
from kai_cli.upkeep.keys import new
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.analysis.ask.queries import Inquiry
from kaicore.errors import ConfigurationError
from kaicore.ledger.connections import Connections
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit
from kaicore.rules.hub.cluster_side import DISPATCH_MARK
from kaicore.rules.hub.hub_state import HUB, dispatch_stream
from kaicore.runtime.access.access_file import AccessFile, read_access_file
from kaicore.runtime.access.callers import Anonymous, HttpAccess
from kaicore.runtime.access.scopes import View, key_hash, new_key
from kaicore.runtime.access.sessions import COOKIE, Sessions, SharedEndedTokens
from kaicore.runtime.service import Health
from kaicore.yaml_text import load_yaml

from tests.conftest import as_role
from tests.given.cluster.factory import pod
from tests.given.cluster.sharing_cluster import SharingCluster, of_two_namespaces
from tests.given.logs.stored import stored
from tests.given.servers.http_app import served_app
from tests.integration.scheduling import Facts, scheduling

#: A pod that may have others evicted.
_URGENT = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "urgent", "namespace": "red"},
    "spec": {
        "schedulerName": "kai-ledger",
        "priority": 1000,
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "4"}}}],
    },
}


class Client:
    """Asks one API, by default with no proof of who asks."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def get(
        self, path: str, *, key: str = "", status: int = 200, method: str = "GET", body: str = "", **headers: str
    ) -> Any:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        async with self._session.request(
            method, self.url + path, data=body or None, headers=headers, allow_redirects=False
        ) as response:
            assert response.status == status, await response.text()
            return await (response.json() if "json" in response.content_type else response.text())


@asynccontextmanager
async def serving(
    log: EventLog,
    *,
    file: Path | None = None,
    anonymous: Anonymous = "no",
    per_s: float = 50,
    burst: int = 500,
    views: ViewStore | None = None,
    sessions: Sessions | None = None,
    trusted_proxies: Sequence[str] = (),
    clock: Callable[[], float] | None = None,
    recording: EventLog | None = None,
) -> AsyncIterator[Client]:
    rules = AccessFile(file) if file else None
    access = HttpAccess(anonymous=anonymous, file=rules, sessions=sessions, per_s=per_s, burst=burst, clock=clock)
    answers = LongAnswers("", at_once=1, most_s=10)
    app = make_app(Inquiry(log), Health(), answers, access, views=views, recording=recording)
    jar = aiohttp.CookieJar(unsafe=True)
    async with (
        served_app(app, trusted_proxies=trusted_proxies) as url,
        aiohttp.ClientSession(cookie_jar=jar) as session,
    ):
        yield Client(url, session)


@pytest.fixture
async def two_namespaces(postgres_log: EventLog, cluster_name: str) -> None:
    """A node that is full, two namespaces of which each has a pod that runs and one that waits."""
    facts = Facts(postgres_log, cluster_name)
    await facts.add_nodes(1)
    async with scheduling(postgres_log, cluster_name):
        for namespace in ("red", "blue"):
            one = pod("train", namespace=namespace, uid=f"uid-{namespace}-train", cpu=2, gpu=4)
            await facts.append((f"pod/{one.uid}", payloads.PodObserved(one)))
        await placed_of(postgres_log, cluster_name, 2)
        for namespace in ("red", "blue"):
            one = pod("waits", namespace=namespace, uid=f"uid-{namespace}-waits", cpu=2, gpu=4)
            await facts.append((f"pod/{one.uid}", payloads.PodObserved(one)))
        head = 0
        while len(await postgres_log.read(cluster_name, where=_type("PodsLeftWaiting"))) < 1:
            head = await postgres_log.wait_beyond(cluster_name, head, timeout_s=5)


async def placed_of(log: EventLog, cluster: str, count: int) -> None:
    head = 0
    async with asyncio.timeout(60):
        while len(await log.read(cluster, where=_type("PodPlaced"))) < count:
            head = await log.wait_beyond(cluster, head, timeout_s=5)


def _type(name: str) -> Any:
    from kaicore.ledger.log.port import Filter

    return Filter(types=(name,))


def make_key(file: Path, name: str, *scopes: str, capsys: pytest.CaptureFixture[str]) -> str:
    new(name, file=file, scope=list(scopes))
    return capsys.readouterr().out.strip()


async def test_caller_of_a_namespace_sees_his_part_of_a_gpu_and_not_who_has_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    red, all_of_it = (make_key(file, name, scope, capsys=capsys) for name, scope in (("red", "c/red"), ("ops", "c")))
    async with serving(await stored(of_two_namespaces()), file=file) as client:
        (row,) = (await client.get("/v1/clusters/c/pods", key=red))["items"]
        assert [(one["gpu"], one["part"]) for one in row["gpus"]] == [("2", "0.3")]
        why = await client.get("/v1/clusters/c/pods/red/notebook/why", key=red)
        (gpu,) = why["placement"]["gpus"]
        assert (gpu["part"], gpu["free"], gpu["heldBy"]) == ("0.3", "0.2", [{"pod": HIDDEN, "part": "0.5"}])
        assert "blue" not in str(why)
        (node,) = (await client.get("/v1/clusters/c/nodes", key=all_of_it))["items"]
        assert {one["pod"] for one in node["gpus"][0]["heldBy"]} == {"red/notebook", "blue/notebook"}
        audit = "/v1/clusters/c/audit/nodes/n0?gpu=2"
        assert len((await client.get(audit, key=all_of_it))["holdings"]) == 3
        for path in (audit, "/v1/clusters/c/nodes", "/clusters/c/nodes/n0"):
            await client.get(path, key=red, status=403)


async def test_a_dispatch_that_is_named_on_a_pod_tells_only_those_who_see_the_hub(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = SharingCluster("c")
    made.add_pod(pod("spy", namespace="red", uid="uid-spy", cpu=1, annotations={DISPATCH_MARK: "secret/1"}))
    log = await stored(made)
    of_hub = (
        ("cluster/c", payloads.ClusterRegistered("c")),
        (dispatch_stream("secret"), payloads.DispatchSubmitted("secret", "[]", queue="blue")),
        (dispatch_stream("secret"), payloads.DispatchGiven("secret", 1, "c", (payloads.Offer("c"),))),
    )
    for stream, payload in of_hub:
        event = NewEvent(id=uuid4(), stream=stream, payload=payload, actor="hub", occurred_at=0)
        await log.append(HUB, [Unit((event,))])
    file = tmp_path / "access.yaml"
    scopes = {"red": "c/red", "ops": "c", "all": "*"}
    keys = {name: make_key(file, name, scope, capsys=capsys) for name, scope in scopes.items()}
    async with serving(log, file=file) as client:
        for name, sees in (("red", False), ("ops", False), ("all", True)):
            for path in ("/v1/clusters/c/pods/red/spy/why", "/clusters/c/stories/Pod/red/spy"):
                assert ("secret" in str(await client.get(path, key=keys[name]))) is sees
            (row,) = await client.get("/v1/clusters", key=keys[name])
            assert row["waiting"] == (name != "red")


@pytest.mark.usefixtures("two_namespaces")
async def test_a_caller_sees_his_clusters_and_namespaces_and_nothing_tells_of_others(
    postgres_log: EventLog, cluster_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    red = make_key(file, "red", f"{cluster_name}/red", capsys=capsys)
    everything = make_key(file, "ops", "*", capsys=capsys)
    stranger = make_key(file, "stranger", "elsewhere", capsys=capsys)
    here = f"/v1/clusters/{cluster_name}"
    async with serving(postgres_log, file=file) as client:
        assert (await client.get(f"{here}/pods", key=everything))["total"] == 4
        rows = await client.get(f"{here}/pods", key=red)
        assert ({row["namespace"] for row in rows["items"]}, rows["total"]) == ({"red"}, 2)
        assert (await client.get(f"{here}/pods?queue=default&pending=true", key=red))["total"] <= 1
        why = await client.get(f"{here}/pods/red/waits/why", key=red)
        assert why["verdict"]
        assert "blue" not in str(rows) + str(why)
        for path in (f"{here}/pods?namespace=blue", f"{here}/pods/blue/train/why", f"{here}/pods/blue/none/why"):
            refused = await client.get(path, key=red, status=403)
            assert refused["error"] == f"red may not see namespace 'blue' of cluster {cluster_name}"
        # A misspelled name is answered without the names that are like it elsewhere.
        gone = await client.get(f"{here}/pods/red/trani/why", key=red, status=404)
        assert "did you mean" not in gone["error"]
        who = await client.get(f"{here}/who?queue=red/waits&set=fair_share.k_milli=0", key=red)
        assert who["other"] == who["claim"]
        assert "blue" not in str(who)
        await client.get(f"{here}/who?queue=blue/train", key=red, status=404)
        for path in (here, f"{here}/nodes", f"{here}/queues", f"{here}/cycles", f"{here}/topologies", f"{here}/audit"):
            await client.get(path, key=red, status=403)
        for kind in ("Node", "no"):
            await client.get(f"{here}/why/{kind}/n0?namespace=red", key=red, status=403)
        await client.get(f"{here}/start/Pod/waits?namespace=red", key=red)
        for path in ("start/Pod/waits?namespace=blue", "start/Pod/waits"):
            await client.get(f"{here}/{path}", key=red, status=403)
        asked = msgspec.json.encode(_URGENT).decode()
        answer = await client.get(f"{here}/submit", key=red, method="POST", body=asked)
        assert [group["verdict"] for group in answer["groups"]] == ["StartsAfterEvictions"]
        assert len(answer["groups"][0]["evictions"]) == 1
        assert "blue" not in str(answer)
        elsewhere = asked.replace('"red"', '"blue"')
        await client.get(f"{here}/submit", key=red, method="POST", body=elsewhere, status=403)
        # Of a cluster that he may not see he learns no more than of one that is none.
        assert await client.get("/v1/clusters", key=stranger) == []
        unseen = await client.get(f"{here}/pods", key=stranger, status=404)
        assert unseen["error"] == f"no cluster {cluster_name!r} in the log"
        assert (await client.get("/v1/whoami", key=red)) == {"name": "red", "scopes": [f"{cluster_name}/red"]}


async def test_keys_are_checked_and_the_file_is_read_again_when_it_changes(
    postgres_log: EventLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    one = make_key(file, "one", "*", capsys=capsys)
    assert one not in file.read_text()
    async with serving(postgres_log, file=file) as client:
        assert await client.get("/v1/clusters", key=one) == []
        assert await client.get("/v1/clusters", **{"X-Kai-Key": one, "Authorization": "Bearer the-proxys"}) == []
        assert "not known" in (await client.get("/v1/clusters", status=401, **{"X-Kai-Key": "kai_wrong"}))["error"]
        assert "Authorization" in (await client.get("/v1/clusters", status=401))["error"]
        assert "not known" in (await client.get("/v1/clusters", key="kai_wrong", status=401))["error"]
        assert "worth nothing" in (await client.get("/v1/clusters", key="a.b.c", status=401))["error"]
        await client.get("/v1/clusters", status=401, Authorization="Basic eDp5")
        other = make_key(file, "other", "*", capsys=capsys)
        assert await client.get("/v1/clusters", key=other) == []
        file.write_text("keys: [{name: other}]")
        assert await client.get("/v1/clusters", key=other) == [], "a file that makes no sense changes nothing"
        file.write_text("keys: []")
        await client.get("/v1/clusters", key=other, status=401)
        assert "ok" in await client.get("/healthz")
        assert (await client.get("/openapi.json"))["info"]["title"] == "kai-ledger"


async def test_a_browser_logs_in_once_by_the_printed_address_and_its_session_ends_with_the_key(
    postgres_log: EventLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    key = make_key(file, "one", "*", capsys=capsys)
    async with serving(postgres_log, file=file) as client, aiohttp.ClientSession() as other:
        page = {"Accept": "text/html"}
        async with other.get(f"{client.url}/clusters/x?at=7", headers=page, allow_redirects=False) as response:
            assert response.headers["Location"] == "/login?next=%2Fclusters%2Fx%3Fat%3D7"
        path = (await client.get("/v1/login-tokens", key=key, method="POST"))["path"]
        token = path.removeprefix("/login#")
        form = {"token": token, "next": "/v1/whoami"}
        async with client._session.post(f"{client.url}/login", data=form) as response:
            assert (await response.json())["name"] == "one"
            (cookie,) = response.history[0].headers.getall("Set-Cookie")
            assert {"HttpOnly", "SameSite=lax"} <= set(cookie.split("; "))
        async with other.post(f"{client.url}/login", data=form) as response:
            assert (response.status, "used before" in await response.text()) == (401, True)
        async with other.post(
            f"{client.url}/login", data={"token": key, "next": "//evil"}, allow_redirects=False
        ) as it:
            assert (it.status, it.headers["Location"]) == (303, "/")
        policy = (await client._session.get(f"{client.url}/login")).headers["Content-Security-Policy"]
        assert "script-src 'self';" in policy
        foreign = {"Sec-Fetch-Site": "cross-site"}
        async with client._session.post(f"{client.url}/v1/login-tokens", headers=foreign) as response:
            assert response.status == 403
        file.write_text("keys: []")
        await client.get("/v1/whoami", status=401)


async def test_without_a_key_only_this_machine_by_its_own_name_is_answered_where_that_is_allowed(
    postgres_log: EventLog,
) -> None:
    async with serving(postgres_log, anonymous="loopback") as client:
        assert await client.get("/v1/clusters") == []
        rebound = await client.get("/v1/clusters", status=403, Host="evil.example:8080")
        assert "not 'evil.example'" in rebound["error"]


async def test_a_caller_who_asks_too_often_is_told_when_to_ask_again(postgres_log: EventLog) -> None:
    async with serving(postgres_log, anonymous="loopback", per_s=0.01, burst=3) as client:
        for _ in range(3):
            await client.get("/v1/clusters")
        async with client._session.get(f"{client.url}/v1/clusters") as response:
            assert (response.status, 90 < int(response.headers["Retry-After"]) <= 100) == (429, True)


async def test_wrong_keys_keep_no_right_key_out_whatever_address_they_come_from(
    postgres_log: EventLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    key = make_key(file, "one", "*", capsys=capsys)
    async with serving(postgres_log, file=file, clock=lambda: 0.0) as client:
        for _ in range(20):
            await client.get("/v1/clusters", key="kai_wrong", status=401)
        # An address is what the connection has, not what a client says: not even one of this machine.
        for said in ("", "203.0.113.7"):
            refused = await client.get("/v1/clusters", key="kai_wrong", status=429, **{"X-Forwarded-For": said})
            assert refused["error"] == "too many tokens of 127.0.0.1 were refused"
        assert await client.get("/v1/clusters", key=key) == []
        async with client._session.post(f"{client.url}/login", data={"token": key, "next": "/v1/whoami"}) as response:
            assert (response.status, (await response.json())["name"]) == (200, "one")


async def test_callers_behind_a_trusted_proxy_are_counted_one_by_one(
    postgres_log: EventLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    make_key(file, "one", "*", capsys=capsys)
    async with serving(postgres_log, file=file, trusted_proxies=["127.0.0.0/8"], clock=lambda: 0.0) as client:
        bad = {"X-Forwarded-For": "198.51.100.1, 203.0.113.7"}
        for _ in range(20):
            await client.get("/v1/clusters", key="kai_wrong", status=401, **bad)
        refused = await client.get("/v1/clusters", key="kai_wrong", status=429, **bad)
        assert "203.0.113.7" in refused["error"]
        await client.get("/v1/clusters", key="kai_wrong", status=401, **{"X-Forwarded-For": "203.0.113.8"})


async def test_a_session_that_was_logged_out_is_over_for_whoever_has_its_cookie(
    postgres_log: EventLog, superuser_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    connections = Connections(as_role(superuser_url, "kai_read"), size=2, patience_s=10, application="test")
    await connections.open()
    key = make_key(file, "one", "*", capsys=capsys)
    page = {"Accept": "text/html"}

    def replica() -> Sessions:
        return Sessions(b"s" * 32, SharedEndedTokens(connections, look_s=0))

    async with (
        serving(postgres_log, file=file, sessions=replica()) as client,
        serving(postgres_log, file=file, sessions=replica()) as other,
    ):
        cookies = []
        for _ in range(2):
            form = {"token": key, "next": "/v1/whoami"}
            async with client._session.post(f"{client.url}/login", data=form) as response:
                cookies.append(f"{COOKIE}={response.history[0].cookies[COOKIE].value}")
        client._session.cookie_jar.clear()
        for at in (client, other):
            assert (await at.get("/v1/whoami", Cookie=cookies[0]))["name"] == "one"
        # A page of another site is known by its origin where the browser says nothing else of it.
        for origin in ("http://evil.example", "null", f"{client.url}0"):
            await client.get("/logout", method="POST", status=403, Cookie=cookies[0], Origin=origin)
            await client.get("/login", method="POST", status=403, body=f"token={key}", Origin=origin)
        await client.get("/logout", method="POST", status=303, Cookie=cookies[0], Origin=client.url, **page)
        await client.get("/logout", method="POST", status=303, Cookie=cookies[0], **page)
        for at in (client, other):
            await at.get("/v1/whoami", status=401, Cookie=cookies[0])
            assert (await at.get("/v1/whoami", Cookie=cookies[1]))["name"] == "one"
        path = (await client.get("/v1/login-tokens", key=key, method="POST"))["path"]
        once = f"token={path.removeprefix('/login#')}"
        await client.get("/login", method="POST", body=once, status=303)
        assert "used before" in await other.get("/login", method="POST", body=once, status=401)
    async with serving(postgres_log, file=file, sessions=replica()) as restarted:
        await restarted.get("/v1/whoami", status=401, Cookie=cookies[0])
        # A database that does not answer logs nobody out, and a logout says so.
        await connections.close()
        assert (await restarted.get("/v1/whoami", Cookie=cookies[1]))["name"] == "one"
        await restarted.get("/logout", method="POST", status=503, Cookie=cookies[1])


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("keys: 3", "keys: Input should be a valid list"),
        ("keys: [{name: a, hash: 'sha256:00', scopes: ['*']}]", "keys.0.hash: String should match"),
        (f"keys: [{{name: a, hash: 'sha256:{'0' * 64}', scopes: [a/b/c]}}]", "is none of CLUSTER"),
        ("kees: []", "kees: Extra inputs are not permitted"),
        ("keys: [", "is no YAML"),
    ],
)
def test_an_access_file_that_makes_no_sense_is_named_with_field_and_problem(
    tmp_path: Path, document: str, problem: str
) -> None:
    file = tmp_path / "access.yaml"
    file.write_text(document)
    with pytest.raises(ConfigurationError, match=re.escape(problem)) as raised:
        read_access_file(file)
    assert str(file) in str(raised.value)


def test_a_made_key_is_added_to_the_file_and_its_name_is_not_taken_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "access.yaml"
    make_key(file, "one", "prod/a", capsys=capsys)
    with pytest.raises(ConfigurationError, match="a key 'one' already"):
        new("one", file=file, scope=["*"])
    assert [entry["scopes"] for entry in load_yaml(file.read_text())["keys"]] == [["prod/a"]]
    assert file.stat().st_mode & 0o077 == 0


def test_names_in_other_namespaces_are_taken_out_and_resources_and_counts_stay() -> None:
    view = View(whole=False, namespaces=frozenset({"red"}))
    text = "evicted for PodGroup/blue/big by blue/x, not red/y; 2/5 nodes, nvidia.com/gpu short"
    assert redacted({"message": text, "stream": "pod/u"}, view) == {
        "message": f"evicted for {HIDDEN} by {HIDDEN}, not red/y; 2/5 nodes, nvidia.com/gpu short",
        "stream": "pod/u",
    }


async def test_policy_inputs_are_recorded_by_who_may_once_for_each_request(
    postgres_log: EventLog, cluster_name: str, superuser_url: str, tmp_path: Path
) -> None:
    facts, file = Facts(postgres_log, cluster_name), tmp_path / "access.yaml"
    await facts.add_nodes(1)
    keys = {"feed": f"inputs:{cluster_name}", "reader": cluster_name, "other": "inputs:elsewhere"}
    made = {name: new_key() for name in keys}
    entries = [{"name": name, "hash": key_hash(made[name]), "scopes": [scope]} for name, scope in keys.items()]
    file.write_text(json.dumps({"keys": entries}))
    path = f"/v1/clusters/{cluster_name}/policy-inputs"

    async def post(api: Client, key: str, status: int, **asked: object) -> Any:
        return await api.get(path, key=made[key], status=status, method="POST", body=json.dumps(asked))

    async with serving(postgres_log, file=file) as api:
        assert "KAI_INPUTS_DATABASE_URL" in (await post(api, "feed", 501, name="price", value=1))["error"]
    async with (
        await PostgresLog.open(as_inputs(superuser_url)) as recording,
        serving(postgres_log, file=file, recording=recording) as api,
    ):
        for _ in range(2):
            await post(api, "feed", 200, name="price", value=12, node="n0", request="a")
        await post(api, "feed", 200, name="mode", value="night")
        # The feed sees nothing, the reader records nothing, and of another cluster neither is known.
        await api.get(path, key=made["feed"], status=404)
        assert f"scope inputs:{cluster_name}" in (await post(api, "reader", 403, name="price", value=1))["error"]
        await post(api, "other", 404, name="price", value=1)
        refused = await post(api, "feed", 400, name="price", value=13, node="n0", request="a")
        assert "was used for another input" in refused["error"]
        assert "policy input Price: name" in (await post(api, "feed", 400, name="Price", value=1))["error"]
        assert "value" in (await post(api, "feed", 400, name="price", value=1.5))["error"]
        rows = await api.get(path, key=made["reader"])
    assert [(row["name"], row["node"], row["value"], row["by"]) for row in rows] == [
        ("mode", "", "night", "feed"),
        ("price", "n0", 12, "feed"),
    ]
    events = await postgres_log.read(cluster_name, where=Filter(types=("PolicyInputRecorded",)))
    assert [(event.actor, event.subject) for event in events] == [("caller/feed", "price"), ("caller/feed", "mode")]


def as_inputs(superuser_url: str) -> str:
    """The url of the role that records policy inputs, made and admitted as `roles.sql` and `kai migrate` do."""
    with psycopg.connect(superuser_url) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('kai tests: roles'))")
        there = connection.execute("SELECT FROM pg_roles WHERE rolname = 'kai_inputs'").rowcount
        connection.execute(f"{'ALTER' if there else 'CREATE'} ROLE kai_inputs LOGIN PASSWORD 'x'".encode())
        connection.execute("SELECT kai_admit_roles()")
    return as_role(superuser_url, "kai_inputs")
