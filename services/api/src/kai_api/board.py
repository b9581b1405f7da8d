"""The health of services and the links of an installation: all that pages show besides the log.

A file has the services' addresses (`KAI_SERVICES_FILE`), as the one that `kai up` keeps; or a name of the DNS has those
of all pods that are to be asked (`KAI_SERVICES_HOST`), as the chart's headless Service. Without both none is asked.
"""

import asyncio
import re
import socket
import string
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlsplit

import msgspec
from kaicore.errors import ConfigurationError
from kaicore.runtime.asked_health import ask_health, ask_path

#: Seconds between two rounds, and that a page waits for one at most.
_EVERY_S, _WAIT_S = 10.0, 1.0
#: The part of a pod's name behind its Deployment's or StatefulSet's.
_POD = re.compile(r"(-[a-z0-9]{6,10}-[a-z0-9]{5}|-\d+)$")
_REFUSING = re.compile(r'^kai_relay_deposit_failing\{deposit="(?P<deposit>[^"]*)"\} 1(?:\.0)?$', re.MULTILINE)


class ServiceLine(msgspec.Struct, frozen=True):
    """A service.

    Attributes:
        status: ready, not ready, or no answer.
        remarks: what it waits for, and what it warns of.
    """

    name: str
    status: str
    remarks: str = ""

    @property
    def well(self) -> bool:
        """True if nobody has to look at it."""
        return self.status == "ready" and not self.remarks


class _Addresses(msgspec.Struct, frozen=True):
    """The file's part that counts here."""

    services: dict[str, str]


class ServicesWatch:
    """The services, as they answered last."""

    def __init__(self, file: Path | None = None, host: str = "") -> None:
        """Args:
        file: JSON, of which `services` has an address by name; None for none.
        host: `NAME:PORT`; its addresses are services, each of which says what it is called. Empty for none.
        """
        self.file, self.host = file, host
        self._names: dict[str, str] = {}
        self.lines: tuple[ServiceLine, ...] = ()
        self._wanted, self._known = asyncio.Event(), asyncio.Event()

    @property
    def unwell(self) -> tuple[str, ...]:
        """The services that somebody has to look at, each with its status and remarks."""
        return tuple(
            f"{line.name}: {'; '.join(filter(None, (line.status * (line.status != 'ready'), line.remarks)))}"
            for line in self.lines
            if not line.well
        )

    async def look(self) -> None:
        """Ask every service once."""
        addresses: dict[str, str] = {}
        try:
            if self.file is not None:
                addresses = msgspec.json.decode(self.file.read_bytes(), type=_Addresses).services
            if self.host:
                addresses |= await self._resolved()
        except (OSError, msgspec.MsgspecError) as error:
            self.lines = (ServiceLine("services", "no answer", f"{self.file or self.host}: {error}"),)
            return
        asked = (asyncio.to_thread(_look, name, address) for name, address in sorted(addresses.items()))
        lines = await asyncio.gather(*asked)
        there = {_POD.sub("", line.name) for line in lines}
        # A pod that finds no node has no address.
        gone = {_POD.sub("", name) for name in self._names.values()} - there
        self.lines = (*lines, *(ServiceLine(name, "no answer", "no pod of it has an address") for name in sorted(gone)))

    async def _resolved(self) -> dict[str, str]:
        """Return the addresses of the host, each by the name that it says, or said before."""
        name, _, port = self.host.rpartition(":")
        found = await asyncio.get_running_loop().getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
        addresses = {}
        for family, _, _, _, place in found:
            ip = f"[{place[0]}]" if family == socket.AF_INET6 else str(place[0])
            address = f"http://{ip}:{port}"
            status, answer = await asyncio.to_thread(ask_path, f"{address}/instance")
            if status == HTTPStatus.OK:
                self._names[address] = answer.strip().removeprefix("kai-")
            addresses[self._names.get(address, ip)] = address
        return addresses

    async def wanted(self) -> None:
        """Somebody wants to know: they are asked soon, and what is said after a pause is waited for a moment."""
        self._wanted.set()
        if self.file is not None or self.host:
            with suppress(TimeoutError):
                async with asyncio.timeout(_WAIT_S):
                    await self._known.wait()

    async def follow(self) -> None:
        """Ask them as long as somebody wants to know, until cancelled."""
        while self.file is not None or self.host:
            await self._wanted.wait()
            self._wanted.clear()
            await self.look()
            self._known.set()
            await asyncio.sleep(_EVERY_S)
            if not self._wanted.is_set():
                self._known.clear()


def _look(name: str, address: str) -> ServiceLine:
    status, remarks = ask_health(address)
    _, metrics = ask_path(f"{address}/metrics") if name.startswith("relay") else (0, "")
    refusing = [f"deposit {match['deposit']} refuses seals" for match in _REFUSING.finditer(metrics)]
    return ServiceLine(name, status, "; ".join(filter(None, (remarks, *refusing))))


_FIELDS = ("cluster", "kind", "namespace", "name", "node")


@dataclass(frozen=True, slots=True)
class Board:
    """All that pages show besides the log (`links`: addresses with fields in braces, by the name that a link has)."""

    services: ServicesWatch = field(default_factory=ServicesWatch)
    links: tuple[tuple[str, str], ...] = ()

    def links_of(self, **fields: str) -> tuple[tuple[str, str], ...]:
        """Return the links of an object; those that need a field which it has not are left out."""
        given = {name: quote(value, safe="") for name, value in fields.items() if value}
        return tuple((name, url.format(**given)) for name, url in self.links if _needed(url) <= given.keys())


def parse_links(text: str) -> tuple[tuple[str, str], ...]:
    """Read links as a setting has them.

    Raises ConfigurationError: one has no name, no address of the web, or a field that nothing has.
    """
    links = []
    for one in text.split():
        name, _, url = one.partition("=")
        try:
            unknown = _needed(url) - set(_FIELDS)
            scheme = urlsplit(url).scheme
        except ValueError as error:
            raise ConfigurationError(f"links: {one!r}: {error}") from error
        if not name or scheme not in ("http", "https") or unknown:
            raise ConfigurationError(f"links: {one!r} is not NAME=URL with fields among {', '.join(_FIELDS)}")
        links.append((name, url))
    return tuple(links)


def _needed(url: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(url) if name is not None}
