"""Servers from the wheels: they resume, they do not start twice, they die with us."""

import asyncio
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import nats
import psycopg
import pytest
from kaicore.errors import BusUnavailable, ConfigurationError, EmbeddedServerError
from kaicore.ledger.bus import Limits, Message, NatsBus
from kaicore.ledger.nkeys import key_of, new_seed
from kaicore.runtime.embedded import EmbeddedNats, EmbeddedPostgres, postgres, process
from kaicore.runtime.embedded.nats import PERMISSIONS
from kaicore.runtime.embedded.process import EmbeddedServer

from tests.given.servers.embedded_servers import SERVERS, close, connected, query

# What is in them outlives them


async def test_postgres_resumes_after_a_stop_and_a_crash_and_is_durable_unless_told_otherwise(
    used: Path, server: EmbeddedPostgres
) -> None:
    await server.start()
    url = server.url
    await query(url, "CREATE TABLE kept AS SELECT 7 AS seven")
    await server.stop()
    assert server.pid is None
    await server.start()
    await server.kill()
    assert server.pid is None
    await server.start()
    assert server.url == url
    assert await query(url, "SELECT seven FROM kept") == (7,)
    assert await query(url, "SHOW fsync") == ("off",)
    await server.stop()
    async with EmbeddedPostgres(used) as durable:
        assert await query(durable.url, "SELECT seven FROM kept") == (7,)
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            assert await query(durable.url, f"SHOW {setting}") == ("on",)


async def test_nats_resumes_after_a_stop_and_after_a_crash(directory: Path) -> None:
    server = EmbeddedNats(directory / "nats")
    for end in (server.stop, server.kill, server.stop):
        await server.start()
        client = await connected(server.url)
        stream = client.jetstream()
        await stream.add_stream(name="kept", subjects=["kept"])
        await stream.publish("kept", b"x" * 7_000_000)
        sequence = (await stream.stream_info("kept")).state.messages
        assert client.max_payload == 8 * 1024 * 1024
        await client.close()
        await end()
    assert sequence == 3


@pytest.fixture
def full_disk(directory: Path) -> Iterator[Path]:
    """A disk of its own that is full, until the file `filler` goes."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "none", str(directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only")
    try:
        with suppress(OSError), (directory / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


async def test_a_server_on_a_full_disk_says_so_and_starts_when_there_is_room(full_disk: Path) -> None:
    server = EmbeddedNats(full_disk / "nats")
    with pytest.raises(EmbeddedServerError, match=f"^NATS: {full_disk / 'nats'}.*: No space left on device$"):
        await server.start()
    (full_disk / "filler").unlink()
    async with server:
        pass


async def test_starting_what_runs_and_stopping_what_does_not_is_nothing_and_a_large_log_is_put_aside(
    directory: Path,
) -> None:
    server = EmbeddedNats(directory)
    with pytest.raises(EmbeddedServerError, match="not been started"):
        _ = server.url
    await server.stop()
    await server.kill()
    server.log_file.write_bytes(b"old\n" * (5 << 20))
    await server.start()
    assert server.log_file.stat().st_size < 1 << 20
    assert (directory / "nats.log.1").read_bytes().startswith(b"old")
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()


async def test_a_connection_without_the_password_is_refused(
    directory: Path, server: EmbeddedPostgres, used: Path
) -> None:
    async with server:
        with pytest.raises(psycopg.OperationalError, match="password"):
            await query(server.url.replace("kai:", "kai:not", 1), "SELECT 1")
    async with EmbeddedNats(directory / "nats") as bus:
        address, _ = key_of(bus.url)
        for stranger in (address, address.replace("//", f"//{new_seed()}@")):
            with pytest.raises(nats.errors.Error, match="Authorization Violation"):
                await connected(stranger)
    for secret in (used / "password", *(directory / "nats").glob("nkey*")):
        assert secret.stat().st_mode & 0o077 == 0


async def test_each_service_has_a_key_of_its_own_and_the_relay_alone_publishes(directory: Path) -> None:
    deployed = (Path(__file__).parents[3] / "deploy" / "nats" / "nats.conf").read_text()
    assert PERMISSIONS in deployed
    services = re.findall(r"user: (\w+),.*permissions: \$(\w+)", deployed)
    async with EmbeddedNats(directory) as server:
        assert len({server.url, *(server.url_of(service) for service, _ in services)}) == 8
        buses = {service: await NatsBus.open(server.url_of(service), name="test") for service, _ in services}
        await asyncio.gather(*(bus.wait_connected(timeout_s=30) for bus in buses.values()))
        relay = buses.pop("relay")
        await relay.create_stream("c", first=1, limits=Limits())
        forged = [Message(1, "PodPlaced", b"a lie")]
        # At once: what is not allowed is not answered, so each takes as long as an answer may.
        outcomes = await asyncio.gather(*(bus.publish("c", forged) for bus in buses.values()), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [BusUnavailable] * 6
        state = await relay.stream("c")
        assert state is not None
        assert state.empty
        for bus in (relay, *buses.values()):
            await bus.close()


async def test_another_server_on_the_port_of_nats_is_given_no_secret(directory: Path) -> None:
    greeting = {"server_id": "x", "version": "2.10.0", "headers": True, "auth_required": True, "max_payload": 1 << 20}
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO " + json.dumps({**greeting, "nonce": "abc"}).encode() + b"\r\n")
        while line := await reader.readline():
            heard.put_nowait(line)
            if line.startswith(b"PING"):
                writer.write(b"PONG\r\n")
        await close(writer)

    async with EmbeddedNats(directory) as server:
        url = server.url
    port = urlsplit(url).port
    async with await asyncio.start_server(pretend, "127.0.0.1", port):
        bus = await NatsBus.open(url, name="test")
        assert await bus.wait_connected(timeout_s=30), "it cannot tell, but has nothing to lose"
        await bus.close()
        received = (await heard.get()).decode()
    seed = (directory / "nkey").read_text()
    assert received.startswith("CONNECT ")
    assert (seed in received, "pass" in received, '"sig"' in received) == (False, False, True)


async def test_another_server_on_the_port_of_postgres_is_given_no_password(
    server: EmbeddedPostgres, used: Path
) -> None:
    async with server:
        url = server.url
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # AuthenticationCleartextPassword, as the protocol of Postgres has it.
        await reader.read(1000)
        writer.write(b"R" + (8).to_bytes(4) + (3).to_bytes(4))
        received = await reader.read(1000)
        await close(writer)
        heard.put_nowait(received)

    async with await asyncio.start_server(pretend, "127.0.0.1", urlsplit(url).port):
        with pytest.raises(psycopg.OperationalError, match="cleartext"):
            await query(url.replace("?", "?sslmode=disable&gssencmode=disable&"), "SELECT 1")
        async with asyncio.timeout(60):
            received = await heard.get()
    assert (used / "password").read_bytes() not in received


# Not twice on the same data


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_live_server_on_the_same_data_is_named(directory: Path, used: Path, kind: type[EmbeddedServer]) -> None:
    place = used if kind is EmbeddedPostgres else directory
    async with kind(place) as first:
        with pytest.raises(ConfigurationError, match=f"{place}: process {first.pid} is using it"):
            await kind(place).start()


async def test_a_pid_of_another_process_is_no_live_server_unless_kai_did_not_start_it(
    used: Path, server: EmbeddedPostgres
) -> None:
    await server.start()
    await server.kill()
    pid_file = used / "data" / "postmaster.pid"
    _, rest = pid_file.read_text().split("\n", 1)
    pid_file.write_text(f"{os.getpid()}\n{rest}")
    (used / "lock").write_text(str(os.getpid()))
    await server.start()
    await server.stop()
    pid_file.write_text(f"{os.getpid()}\n")
    with pytest.raises(ConfigurationError, match=f"process {os.getpid()} is using it, a server that kai did not start"):
        await server.start()
    pid_file.unlink()


# Ports


async def test_port_that_is_taken_is_named(directory: Path, used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {EmbeddedPostgres: used, EmbeddedNats: directory}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for kind, place in places.items():
            with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is taken"):
                await kind(place, port=port).start()
        free = list(process._free_ports())
        monkeypatch.setattr(process, "_free_ports", lambda: iter([port, *free]))
        for kind, place in places.items():
            async with kind(place) as started:
                assert f":{port}" not in started.url


# What cannot work is said


async def test_data_that_are_not_ours_are_refused(directory: Path) -> None:
    data = directory / "data"
    data.mkdir()
    for version, problem in (
        (None, "no Postgres at all"),
        ("17", "data of 17, and this is"),
        ("18", "password: is miss"),
    ):
        if version is not None:
            (data / "PG_VERSION").write_text(f"{version}\n")
        with pytest.raises(ConfigurationError, match=problem):
            await EmbeddedPostgres(directory).start()


async def test_a_server_that_ends_while_starting_says_why(used: Path, server: EmbeddedPostgres) -> None:
    await server.start()
    await server.stop()
    settings = used / "data" / "postgresql.auto.conf"
    before = settings.read_text()
    settings.write_text(f"{before}shared_buffers = nonsense\n")
    with pytest.raises(EmbeddedServerError, match=r"(?s)postgres\.log says:\n.*shared_buffers"):
        await server.start()
    assert server.pid is None
    settings.write_text(before)


async def test_missing_wheels_are_named(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"kai-ledger\[embedded\]"):
        await EmbeddedPostgres(directory).start()

    def absent(name: str) -> None:
        raise postgres.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(postgres.importlib.metadata, "files", absent)
    with pytest.raises(ConfigurationError, match=r"kai-ledger\[embedded\]"):
        await EmbeddedNats(directory).start()
