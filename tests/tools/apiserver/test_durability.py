"""Acknowledged writes are there after a kill, and versions go on."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from kai_apiserver.errors import CorruptJournal
from kai_apiserver.server import ApiServer, ApiServerOptions
from kai_apiserver.store import store as store_module
from kai_apiserver.store.records import Journal

from tests.given.processes.kai_commands import Forks
from tests.given.servers.api_server_process import ApiServerProcess, StartFailed
from tests.tools.apiserver.client import CONFIG_MAPS, PODS, Answer, Client, binding, config_map, pod
from tests.tools.apiserver.test_custom_resources import DEFINITIONS, RACKS, definition, rack

WRITERS = 8


class Writer:
    """Writes until the server is gone, and remembers the answers."""

    def __init__(self, client: Client, number: int, written: asyncio.Event) -> None:
        self._client = client
        self._number = number
        self._written = written
        self.acknowledged: dict[str, tuple[int, str] | None] = {}
        self.uncertain: set[str] = set()

    async def run(self) -> None:
        """Create, change, bind and delete in turn."""
        count = 0
        while True:
            name = f"w{self._number}-{count}"
            try:
                await self._one(name, count)
            except (aiohttp.ClientError, ConnectionError):
                self.uncertain.add(name)
                return
            count += 1
            if count == 40:
                self._written.set()

    async def _one(self, name: str, count: int) -> None:
        created = await self._client.post(CONFIG_MAPS, config_map(name, n="0"))
        self._note(name, created)
        if count % 3 == 1:
            changed = await self._client.merge(f"{CONFIG_MAPS}/{name}", {"data": {"n": "1"}})
            self._note(name, changed)
        if count % 3 == 2:
            await self._client.delete(f"{CONFIG_MAPS}/{name}")
            self.acknowledged[name] = None

    def _note(self, name: str, answer: Answer) -> None:
        body = answer.json
        self.acknowledged[name] = (int(body["metadata"]["resourceVersion"]), body["data"]["n"])


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as started:
        yield started


@pytest.mark.slow
async def test_every_acknowledged_write_survives_kills_under_load(tmp_path: Path, forks: Forks) -> None:
    expected: dict[str, tuple[int, str] | None] = {}
    uncertain: set[str] = set()
    highest = 0
    for _ in range(2):
        flags = ("--data-dir", tmp_path / "data", "--no-https", "--no-controllers")
        server = ApiServerProcess(tmp_path, *flags, forks=forks)
        await server.start()
        async with Client(server.http_url, server.admin_token) as client:
            listed = (await client.get(CONFIG_MAPS)).json
            assert int(listed["metadata"]["resourceVersion"]) >= highest
            _compare(listed["items"], expected, uncertain)
            highest = int(
                (await client.post(CONFIG_MAPS, {"metadata": {"generateName": "mark-"}})).json["metadata"][
                    "resourceVersion"
                ]
            )
            written = [asyncio.Event() for _ in range(WRITERS)]
            writers = [Writer(client, highest * WRITERS + n, event) for n, event in enumerate(written)]
            running = [asyncio.create_task(writer.run()) for writer in writers]
            await asyncio.gather(*(event.wait() for event in written))
            await server.kill()
            await asyncio.gather(*running)
        for writer in writers:
            expected |= writer.acknowledged
            uncertain |= writer.uncertain
        highest = max([highest, *(versions[0] for versions in expected.values() if versions)])
    options = ApiServerOptions(data_dir=tmp_path / "data", controllers=False)
    async with ApiServer(options) as last, Client(last.http_url, last.admin_token) as client:
        _compare((await client.get(CONFIG_MAPS)).json["items"], expected, uncertain)


def _compare(
    items: list[dict[str, dict[str, str]]], expected: dict[str, tuple[int, str] | None], uncertain: set[str]
) -> None:
    """Objects are as acknowledged; only the requests in flight at a kill may have gone either way."""
    present = {
        item["metadata"]["name"]: (int(item["metadata"]["resourceVersion"]), item["data"]["n"])
        for item in items
        if not item["metadata"]["name"].startswith("mark-")
    }
    for name, last in expected.items():
        if name not in uncertain:
            assert present.get(name) == last, name
    assert present.keys() - expected.keys() <= uncertain


async def test_a_restart_goes_on_where_the_last_run_ended(tmp_path: Path) -> None:
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        token = server.admin_token
        await client.post(PODS, pod("p"))
        await client.post(f"{PODS}/p/binding", binding("p", "n1"))
        await client.post(DEFINITIONS, definition())
        await client.post(RACKS, rack(units=4))
        before = (await client.get(f"{PODS}/p")).json
        last = int((await client.post(CONFIG_MAPS, config_map("gone"))).json["metadata"]["resourceVersion"])
        await client.delete(f"{CONFIG_MAPS}/gone")
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        assert server.admin_token == token
        assert (await client.get(f"{PODS}/p")).json == before
        assert (await client.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1")).items == ["p"]
        assert (await client.get(f"{RACKS}/r")).json["spec"]["units"] == 4
        assert (await client.post(RACKS, rack(units=0))).status == 422
        created = await client.post(CONFIG_MAPS, config_map("next"))
        assert int(created.json["metadata"]["resourceVersion"]) == last + 2, "the deletion had a version of its own"
        async with client.watch(f"{CONFIG_MAPS}?resourceVersion={last}") as watch:
            (event,) = await watch.rest()
        assert event["object"]["code"] == 410


async def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        await client.post(CONFIG_MAPS, config_map("kept"))
        await client.post(CONFIG_MAPS, config_map("torn"))
    (journal,) = (tmp_path / "objects").glob("journal-*")
    whole = journal.read_bytes()
    for cut in (1, 20, 60):
        journal.write_bytes(whole[:-cut])
        async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
            assert (await client.get(CONFIG_MAPS)).items == ["kept"]
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        await client.post(CONFIG_MAPS, config_map("after"))
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        assert (await client.get(CONFIG_MAPS)).items == ["after", "kept"]


async def test_damage_in_the_middle_is_not_passed_over(tmp_path: Path) -> None:
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options):
        pass
    (journal,) = (tmp_path / "objects").glob("journal-*")
    damaged = bytearray(journal.read_bytes())
    damaged[40] ^= 1
    journal.write_bytes(damaged)
    with pytest.raises(CorruptJournal, match="damaged at byte 0"):
        ApiServer(options)


async def test_snapshots_replace_journals_under_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SNAPSHOT_AFTER_BYTES", 4096)
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        await client.post(DEFINITIONS, definition())
        await client.post(RACKS, rack(units=4))
        for i in range(60):
            await client.post(CONFIG_MAPS, config_map(f"c{i % 20}", n=str(i)))
            await client.merge(f"{CONFIG_MAPS}/c{i % 20}", {"data": {"n": str(i)}})
        expected = (await client.get(CONFIG_MAPS)).json
    files = sorted(path.name for path in (tmp_path / "objects").iterdir())
    assert sum(name.startswith("snapshot-") for name in files) == 1
    assert not any(name.endswith(".tmp") for name in files)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        assert (await client.get(CONFIG_MAPS)).json == expected
        assert (await client.get(f"{RACKS}/r")).status == 200


async def test_two_servers_do_not_share_a_directory(tmp_path: Path) -> None:
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options):
        with pytest.raises(CorruptJournal, match="in use by another process"):
            Journal(tmp_path / "objects")


def test_a_directory_that_cannot_be_made_is_named() -> None:
    with pytest.raises(CorruptJournal, match="/proc/no/objects: No such file or directory"):
        Journal(Path("/proc/no/objects"))


async def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ApiServerOptions(data_dir=tmp_path, controllers=False)
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        await client.post(CONFIG_MAPS, config_map("before"))
        whole_write = os.write

        def half_a_write(file: int, data: bytes) -> int:
            whole_write(file, bytes(data)[: len(data) // 2])
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "write", half_a_write)
            assert (await client.post(CONFIG_MAPS, config_map("lost"))).status == 500
        await client.post(CONFIG_MAPS, config_map("after"))
        assert (await client.get(CONFIG_MAPS)).items == ["after", "before"]
    async with ApiServer(options) as server, Client(server.http_url, server.admin_token) as client:
        assert (await client.get(CONFIG_MAPS)).items == ["after", "before"]


@pytest.mark.slow
async def test_the_process_says_why_it_does_not_start_and_stops_when_told(tmp_path: Path, forks: Forks) -> None:
    with pytest.raises(StartFailed, match="kubectl sends no token over plain HTTP"):
        await ApiServerProcess(tmp_path, "--no-https", "--kubeconfig-out", tmp_path / "x", forks=forks).start()
    with pytest.raises(StartFailed, match="--https-port"):
        await ApiServerProcess(tmp_path, "--https-port", "-1", forks=forks).start()
    # As a user starts it.
    async with ApiServerProcess(tmp_path, "--data-dir", tmp_path / "data") as server:
        assert server.kubeconfig.stat().st_mode & 0o777 == 0o600
        assert await server.stop(signal.SIGTERM) == 0
