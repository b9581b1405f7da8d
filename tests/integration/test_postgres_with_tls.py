"""A Postgres that has TLS itself, as the chart's values set it up: who may come in, and what each role may do then."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from kaicore.errors import ConfigurationError, LogUnavailable
from kaicore.ledger.log.migrate import upgrade
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.runtime.embedded.places import unprivileged_user

from tests.given.logs.new_events import new_event, unit
from tests.given.servers.servers import scratch_directory
from tests.integration.test_deployed_roles import ROLES
from tests.integration.test_secure_servers import Certificates

ACCESS = ROLES.parent / "pg_hba-tls.conf"
PASSWORDS = {"migrate": "m", "append": "a", "read": "r", "project": "p"}
SERVICES = ("append", "read", "project")


def programs() -> Path | None:
    """The folder of a Postgres with OpenSSL, as Debian's: the newest."""
    places = [
        *Path("/usr/lib/postgresql").glob("*/bin"),
        *(Path(one).parent for one in (shutil.which("initdb"),) if one),
    ]
    for place in sorted(places, key=lambda one: [int(part) for part in one.parts if part.isdigit()], reverse=True):
        config = place / "pg_config"
        if all((place / name).exists() for name in ("initdb", "postgres", "psql", "pg_config")) and (
            "--with-openssl" in (shown := subprocess.check_output([config], text=True)) or "--with-ssl=openssl" in shown
        ):
            return place
    return None


PROGRAMS = programs()
pytestmark = pytest.mark.skipif(
    PROGRAMS is None, reason="no Postgres with OpenSSL is installed here: apt-get install postgresql"
)


@dataclass(frozen=True)
class SecurePostgres:
    """The server, with TLS and `deploy/postgres` as it is."""

    port: int
    certificates: Certificates

    def url(self, role: str, **options: str) -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        return f"postgresql://kai_{role}:{PASSWORDS[role]}@127.0.0.1:{self.port}/kai?{query}".rstrip("?")


@pytest.fixture(scope="module")
def server() -> Iterator[SecurePostgres]:
    assert PROGRAMS is not None
    user = unprivileged_user()
    with scratch_directory() as directory:
        certificates = Certificates(directory / "certificates")
        certificates.make()
        places = [directory / "data", directory / "run"]
        for place in places:
            place.mkdir()
            if user.other:
                shutil.chown(place, user.uid, user.gid)
        data, run = (str(place) for place in places)
        access = directory / "pg_hba.conf"
        shutil.copy(ACCESS, access)
        access.chmod(0o644)
        as_user = user.popen()
        subprocess.run(
            [PROGRAMS / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync"],
            check=True, capture_output=True, cwd="/", **as_user,  # type: ignore[call-overload]
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {
            "ssl": "on",
            "ssl_cert_file": certificates.directory / "tls.crt",
            "ssl_key_file": certificates.directory / "tls.key",
            "hba_file": access,
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": run,
            "fsync": "off",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        process = subprocess.Popen(
            [PROGRAMS / "postgres", "-D", data, *arguments],
            stderr=subprocess.PIPE,
            cwd="/",
            **as_user,  # type: ignore[call-overload]
        )
        try:
            administrator = f"postgresql://postgres@/postgres?host={quote(run, safe='')}&port={port}"
            with connected(administrator, process) as connection:
                connection.execute("CREATE DATABASE kai")
            subprocess.run(
                [PROGRAMS / "psql", "-d", administrator.replace("/postgres?", "/kai?"), "-f", ROLES],
                env={
                    **os.environ,
                    **{f"KAI_{role.upper()}_PASSWORD": password for role, password in PASSWORDS.items()},
                },
                check=True,
                capture_output=True,
            )
            yield SecurePostgres(port, certificates)
        finally:
            process.terminate()
            process.communicate()


def connected(url: str, process: "subprocess.Popen[bytes]") -> "psycopg.Connection[tuple[object, ...]]":
    deadline = time.monotonic() + 60
    while True:
        try:
            return psycopg.connect(url, autocommit=True)
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.fixture(autouse=True)
def environment(server: SecurePostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chart's settings for each service with `postgres.tls.enabled`; the urls say nothing of TLS."""
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    monkeypatch.setenv("PGSSLROOTCERT", str(server.certificates.directory / "ca.crt"))


@pytest.fixture(scope="module")
def _migrated(server: SecurePostgres) -> None:
    authority = str(server.certificates.directory / "ca.crt")
    upgrade(server.url("migrate", sslmode="verify-full", sslrootcert=authority))


@pytest.mark.usefixtures("_migrated")
async def test_a_service_appends_and_reads_by_tls_and_can_change_nothing(server: SecurePostgres) -> None:
    async with await PostgresLog.open(server.url("append")) as log:
        assert (await log.append("c", [unit()]))[0].positions == (1,)
        assert len(await log.read("c")) == 1
    for role in SERVICES:
        with psycopg.connect(server.url(role)) as connection:
            row = connection.execute("SELECT ssl, version FROM pg_stat_ssl WHERE pid = pg_backend_pid()").fetchone()
            assert row is not None
            assert row[0], "by TLS"
            assert row[1] in ("TLSv1.2", "TLSv1.3")
            for statement in (
                "UPDATE event SET cluster = 'x'",
                "DELETE FROM event",
                "TRUNCATE event",
                "INSERT INTO event SELECT * FROM event",
                "UPDATE log_head SET position = 0",
                "DELETE FROM log_head",
                "ALTER TABLE event DISABLE TRIGGER ALL",
                "DROP TABLE event",
                "CREATE TABLE mine ()",
                "SET ROLE kai_migrate",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                    connection.execute(statement.encode())


@pytest.mark.usefixtures("_migrated")
async def test_who_only_reads_or_projects_cannot_append_and_who_appends_cannot_migrate(server: SecurePostgres) -> None:
    for role in ("read", "project"):
        async with await PostgresLog.open(server.url(role)) as log:
            with pytest.raises(ConfigurationError, match="role may not"):
                await log.append("c", [unit(new_event())])
    with psycopg.connect(server.url("migrate")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
        before = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        connection.rollback()
    assert before == [("0001",)], "who migrates may"
    for role in SERVICES:
        with psycopg.connect(server.url(role)) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("UPDATE alembic_version SET version_num = '0001'")


@pytest.mark.usefixtures("_migrated")
async def test_neither_side_talks_to_one_that_does_not_prove_who_it_is(
    server: SecurePostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LogUnavailable, match="no encryption"):
        await PostgresLog.open(server.url("append", sslmode="disable"))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url("append").replace("kai_append:a@", "kai_append:b@"))
    with pytest.raises(LogUnavailable, match="does not match host name"):
        await PostgresLog.open(server.url("append").replace("127.0.0.1", "localhost"))
    other = Certificates(tmp_path / "other")
    other.make()
    monkeypatch.setenv("PGSSLROOTCERT", str(other.directory / "ca.crt"))
    with pytest.raises(LogUnavailable, match="certificate verify failed"):
        await PostgresLog.open(server.url("append"))
