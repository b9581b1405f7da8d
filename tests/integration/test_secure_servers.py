"""The bus and the log over TLS: each side proves who it is before anything is sent that another could use."""

import asyncio
import ipaddress
import re
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import msgspec
import psycopg
import pytest
from cryptography import x509
from kaicore.errors import ConfigurationError, LogUnavailable
from kaicore.ledger.bus import Limits, Message, NatsBus
from kaicore.ledger.bus.connection import server_access
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.nkeys import Nkey, new_seed
from kaicore.runtime.access.certificates import make_server_certificate
from kaicore.runtime.embedded import EmbeddedNats
from kaicore.runtime.embedded.places import unprivileged_user

from tests.given.logs.new_events import unit
from tests.given.processes.relay_process import PATIENCE_S
from tests.given.servers.servers import scratch_directory

DEPLOYED = Path(__file__).parents[2] / "deploy" / "nats"
USERS = ("relay", "scheduler", "binder", "ingest", "watcher", "projector", "hub")


@dataclass(frozen=True)
class Certificates:
    """Files of an authority and of a server's certificate for 127.0.0.1."""

    directory: Path

    def make(self) -> None:
        made = make_server_certificate(
            [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))],
            authority_name="test",
            server_name="server",
            now=datetime.now(UTC),
            life=timedelta(days=1),
        )
        self.directory.mkdir(exist_ok=True)
        self.directory.chmod(0o755)
        for name, content in (("ca.crt", made.authority), ("tls.crt", made.certificate), ("tls.key", made.key)):
            (self.directory / name).write_bytes(content)
        key = self.directory / "tls.key"
        key.chmod(0o600)
        user = unprivileged_user()
        if user.other:
            shutil.chown(key, user.uid, user.gid)

    def file(self, name: str) -> str:
        return quote(str(self.directory / name), safe="/")


class SecureNats(EmbeddedNats):
    """The server with `deploy/nats/nats-tls.conf`; only its places are the test's."""

    def __init__(self, directory: Path, certificates: Certificates) -> None:
        super().__init__(directory)
        self._certificates = certificates
        self.seeds = {user: new_seed() for user in USERS}

    def _command(self, port: int) -> list[str]:
        command = super()._command(port)
        store = msgspec.json.encode(str(self._directory / "data")).decode()
        text = (DEPLOYED / "nats-tls.conf").read_text().replace("0.0.0.0:4222", f"127.0.0.1:{port}")
        text = text.replace("/etc/nats/tls/", f"{self._certificates.directory}/").replace("/data ", f"{store} ")
        for user, seed in self.seeds.items():
            text = text.replace(f"$NATS_{user.upper()}_NKEY", Nkey(seed).public)
            (self._directory / f"{user}.seed").write_text(seed)
        text = text.replace('http: "127.0.0.1:8222"', f'server_name: "{self._server_name}"')
        Path(command[-1]).write_text(text)
        return command

    def url_of(self, user: str, *, ca: str = "") -> str:
        seed = quote(str(self._directory / f"{user}.seed"), safe="/")
        place = self.url.rpartition("@")[2]
        return f"tls://{place}?nkey={seed}&ca={ca or self._certificates.file('ca.crt')}"


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    made = Certificates(tmp_path / "certificates")
    made.make()
    return made


@pytest.fixture
async def nats(certificates: Certificates) -> AsyncIterator[SecureNats]:
    with scratch_directory() as directory:
        async with SecureNats(directory, certificates) as running:
            yield running


def test_rights_are_those_of_the_configuration_with_passwords() -> None:
    texts = [(DEPLOYED / name).read_text() for name in ("nats.conf", "nats-tls.conf")]
    rights = [text.partition("PUBLISHER = {")[2].partition("authorization")[0] for text in texts]
    assert rights[0] == rights[1]
    users = [re.findall(r"\$NATS_([A-Z]+)_\w+, permissions: (\$\w+)", text) for text in texts]
    assert users[0] == users[1]
    assert len(users[0]) == len(USERS)


async def connects(url: str, *, timeout_s: float = 1) -> bool:
    bus = await NatsBus.open(url, name="test")
    try:
        return await bus.wait_connected(timeout_s=timeout_s)
    finally:
        await bus.close()


async def test_services_with_their_keys_publish_and_read_over_tls(nats: SecureNats) -> None:
    relay = await NatsBus.open(nats.url_of("relay"), name="test")
    reader = await NatsBus.open(nats.url_of("scheduler"), name="test")
    for bus in (relay, reader):
        assert await bus.wait_connected(timeout_s=PATIENCE_S)
    await relay.create_stream("c1", first=1, limits=Limits())
    await relay.publish("c1", [Message(1, "X", b"true")])
    state = await reader.stream("c1")
    assert state is not None
    assert state.last == 1
    for bus in (relay, reader):
        await bus.close()


async def test_a_client_with_a_wrong_key_or_without_tls_is_refused(nats: SecureNats) -> None:
    place = nats.url.rpartition("@")[2]
    stranger = nats._directory / "relay.seed"
    stranger.write_text(new_seed())
    outcomes = await asyncio.gather(
        connects(nats.url_of("relay")), connects(f"nats://{place}"), connects(f"nats://{nats.seeds['binder']}@{place}")
    )
    assert outcomes == [False, False, False]


async def test_a_server_that_does_not_prove_who_it_is_gets_nothing(nats: SecureNats, tmp_path: Path) -> None:
    """Neither one with a certificate of another authority, nor one that offers no TLS at all."""
    other = Certificates(tmp_path / "other")
    other.make()
    heard = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b'INFO {"server_id":"x","version":"2.11.0","max_payload":1048576,"headers":true,"auth_required":true}\r\n'
        )
        heard.extend(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    outcomes = await asyncio.gather(
        connects(nats.url_of("relay", ca=other.file("ca.crt"))),
        connects(f"tls://relay:secret@127.0.0.1:{port}?ca={other.file('ca.crt')}"),
    )
    server.close()
    assert outcomes == [False, False]
    assert b"secret" not in heard


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("tls://host?ca=/nowhere/ca.crt", r"\?ca=/nowhere/ca\.crt: No such file"),
        ("tls://host?nkey=/nowhere/seed", r"\?nkey=/nowhere/seed: No such file"),
        ("nats://host?ca=/etc/hostname", r"\?ca= is of TLS"),
        ("tls://host?nkye=x", r"\?nkye= is none of .* did you mean 'nkey'"),
        ("tls://a,nats://b", "some begin with tls:// and some do not"),
    ],
)
def test_a_url_that_cannot_be_says_what_is_wrong_with_it(url: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        server_access(url)


@asynccontextmanager
async def tls_before(url: str, certificates: Certificates) -> AsyncIterator[str]:
    """Give a database TLS, which the embedded one is built without: where it is to be reached then, as `HOST:PORT`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.directory / "tls.crt", certificates.directory / "tls.key")
    place = urlsplit(url)

    async def passes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The manual of Postgres, "SSL Session Encryption": a request of 8 bytes, an answer of one, then TLS.
        with suppress(OSError, asyncio.IncompleteReadError):
            request = await reader.readexactly(8)
            if request != bytes.fromhex("00000008 04d2162f"):
                writer.close()
                return
            writer.write(b"S")
            await writer.start_tls(context)
            behind_reader, behind = await asyncio.open_connection(place.hostname, place.port)
            ways = [asyncio.ensure_future(passes(reader, behind)), asyncio.ensure_future(passes(behind_reader, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            behind.close()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_log_is_reached_over_tls_by_roles_that_can_only_append(
    superuser_url: str, database_url: str, certificates: Certificates, tmp_path: Path
) -> None:
    other = Certificates(tmp_path / "other")
    other.make()
    async with tls_before(superuser_url, certificates) as place:

        def secure(url: str, ca: Certificates = certificates) -> str:
            parts = urlsplit(url)
            query = f"{parts.query}&sslmode=verify-full&sslrootcert={ca.file('ca.crt')}".lstrip("&")
            return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{place}", query=query))

        await asyncio.to_thread(upgrade, secure(superuser_url))
        async with await PostgresLog.open(secure(database_url)) as log:
            assert (await log.append("c", [unit()]))[0].positions == (1,)
        async with await psycopg.AsyncConnection.connect(secure(database_url)) as connection:
            assert connection.pgconn.ssl_in_use
            for statement in ("UPDATE event SET cluster = 'x'", "DELETE FROM event", "CREATE TABLE mine ()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(statement.encode())
                await connection.rollback()
        with pytest.raises(LogUnavailable, match="certificate verify failed"):
            await PostgresLog.open(secure(database_url, other))
        # Nor is anything sent to a server that offers no TLS.
        clear = secure(database_url).replace(place, urlsplit(superuser_url).netloc.rpartition("@")[2])
        with pytest.raises(LogUnavailable, match="does not support SSL"):
            await PostgresLog.open(clear)
