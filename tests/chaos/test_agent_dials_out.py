"""An agent that dials out, under a hub as its manifest starts it; the hub's side never has the kubeconfig.

Only `make chaos` runs it, for it takes a minute of many processes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psycopg
import pytest
from kai_cli.running.load import Loader
from kai_cli.sources.manifests import read_manifests
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.runtime.embedded import embedded_url_of
from kaicore.yaml_text import load_yaml, load_yaml_all

from tests.chaos.test_clusters_lost import job
from tests.e2e.live_stack import PATIENCE_S, LiveStack, running
from tests.given.servers.ports import free_port
from tests.given.servers.servers import scratch_directory

HUB = Path(__file__).parents[2] / "deploy" / "hub"
LEASE_S = 3.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(6 * PATIENCE_S),
    pytest.mark.skipif("KAI_TEST_LONG" not in os.environ, reason="takes a minute of many processes: make chaos"),
]


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program of ours; what it says goes to this one's standard error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("KAI_")}
    started = subprocess.Popen(
        [str(Path(sys.executable).parent / command[0]), *command[1:]], env=inherited | environment, stdout=sys.stderr
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)
            started.wait(PATIENCE_S)


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(2 * PATIENCE_S):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.5)


def as_its_manifest_has_it(given: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The hub's command and environment; `given` stands for Secrets, and for what is of a pod's own network."""
    (hub,) = (one for one in load_yaml_all((HUB / "hub.yaml").read_text()) if one["kind"] == "Deployment")
    (container,) = hub["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: given.get(one["name"], one.get("value", "")) for one in container["env"]}
    assert set(given) <= set(environment)
    return container["command"], environment


def descendants(pid: int) -> Iterator[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


async def test_agent_runs_what_the_hub_gives_its_cluster_and_its_kubeconfig_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `/proc` is looked through for command lines and environments.
    monkeypatch.setenv("KAI_FORK_SERVICES", "no")
    with scratch_directory() as root, scratch_directory() as west:
        kubeconfig = west / "kubeconfig"
        stack = LiveStack(root, flags=("--schedulers", "2"))
        server = ["kai-apiserver", "--http-kubeconfig-out", str(kubeconfig), "--no-https", "--no-controllers"]
        fleet = ["kai-fleet", "--kubeconfig", str(kubeconfig), "--profile", "mini", "--install-crds"]
        with running(stack), process(*server):
            await until(kubeconfig.exists)
            with process(*fleet, "--data-dir", str(west / "fleet")):
                await with_agent(stack, west, kubeconfig)


async def spoke_url(stack: LiveStack) -> str:
    """The url of the role that the cluster `west` dials in with, as `deploy/postgres/spoke-role.sql` makes it."""
    place = stack.running.database_url.partition("@")[2]
    superuser = f"postgresql://kai:{(stack.directory.postgres / 'password').read_text()}@{place}"
    async with await psycopg.AsyncConnection.connect(superuser, autocommit=True) as connection:
        await connection.execute("CREATE ROLE kai_spoke_west LOGIN PASSWORD 'west'")
        await connection.execute("SELECT kai_admit_spoke('kai_spoke_west', 'west')")
    return f"postgresql://kai_spoke_west:west@{place}"


async def with_agent(stack: LiveStack, west: Path, kubeconfig: Path) -> None:
    url = await spoke_url(stack)
    hub_port = str(free_port())
    given = {
        "KAI_DATABASE_URL": embedded_url_of(stack.directory.postgres, stack.running.database_url, "kai_hub"),
        "KAI_NATS_URL": stack.running.nats_url,
        "KAI_ACCESS_FILE": str(stack.directory.api / "access.yaml"),
        "KAI_HTTP_HOST": "127.0.0.1",
        "KAI_HTTP_PORT": hub_port,
    }
    command, environment = as_its_manifest_has_it(given)
    agent = ["kai", "agent", "west", "--database-url", url, "--nats-url", stack.running.nats_url]
    agent += ["--kubeconfig", str(kubeconfig), "--data-dir", str(west / "agent")]
    async with KubeClient(configured_access(str(kubeconfig))) as client:
        loaded = await Loader(client).create(
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kai-system"}}, *read_manifests([HUB])]
        )
        assert loaded.refused == []
        with process(*command, **environment), process(*agent, KAI_HUB_LEASE_S=str(LEASE_S)) as agents:
            await until(lambda: state_of(stack, "west") == "Ready")
            key = stack.running.api_key
            headers = {"Authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                address = f"http://127.0.0.1:{hub_port}/v1/dispatches?clusters=west"
                pod = {"apiVersion": "v1", "kind": "Pod", **job("x")["spec"]["template"]}
                pod["metadata"] |= {"name": "tried", "namespace": "default"}
                async with session.post(address, data=json.dumps(pod)) as response:
                    assert response.status == 201, await response.text()
            await until(lambda: stack.ask("get", "dispatches", "tried")[0]["stage"] == "Started")
            there = msgspec.json.decode(await client.get("/api/v1/namespaces/default/pods/tried"))
            assert there["spec"]["nodeName"]
            check_kubeconfig_stayed(stack, url, kubeconfig)
            agents.kill()
            await until(lambda: state_of(stack, "west") == "Lost")


def state_of(stack: LiveStack, cluster: str) -> str:
    rows = [row for row in stack.ask("cluster", "list") if row["name"] == cluster]
    return str(rows[0]["state"]) if rows else ""


def check_kubeconfig_stayed(stack: LiveStack, url: str, kubeconfig: Path) -> None:
    """Nothing on the hub's side names the kubeconfig or the API server: no event, no process, no file of its own."""
    document = load_yaml(kubeconfig.read_text())
    address = document["clusters"][0]["cluster"]["server"].partition("://")[2]
    secrets = (str(kubeconfig), address)
    with psycopg.connect(url) as connection:
        replicas = "SELECT body::text FROM readable_event WHERE type = 'ReplicasChanged' ORDER BY position DESC"
        ((listed,), *_) = connection.execute(replicas).fetchall()
        assert json.loads(listed)["replicas"] == ["e2e-scheduler", "e2e-scheduler-2"]
        for secret in secrets:
            query = "SELECT count(*) FROM readable_event WHERE position(%s in body::text) > 0"
            assert connection.execute(query, [secret]).fetchone() == (0,)
    assert stack._process is not None
    schedulers = 0
    for pid in descendants(stack._process.pid):
        try:
            about = (Path(f"/proc/{pid}/environ").read_bytes() + Path(f"/proc/{pid}/cmdline").read_bytes()).decode()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since: Postgres has a process for each connection.
            continue
        assert not any(secret in about for secret in secrets), about
        schedulers += "kai_scheduler.main" in about and "KAI_CLUSTER=west\0" in about
    assert schedulers == 1
    for file in (path for path in stack.directory.root.glob("*") if path.is_file()):
        assert not any(secret in file.read_text(errors="replace") for secret in secrets), file
