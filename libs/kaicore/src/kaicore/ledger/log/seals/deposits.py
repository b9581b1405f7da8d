"""Deposits: stores for seals, out of reach of any role that can rewrite the log.

A deposit takes lines (`anchors`) one after the other and gives them back. It is a file, or a folder of objects at an
HTTP address: line 1 is PUT to `ADDRESS/00000001.json`, line 2 to `ADDRESS/00000002.json`, each with `If-None-Match: *`,
so that nothing is ever replaced. Any store of objects will do that takes PUT and GET; one with retention (object lock,
WORM) lets nobody take a line back. No listing is needed: lines are counted by their numbers.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit, urlunsplit

from kaicore.errors import ConfigurationError, InvalidObject, KaiError

if TYPE_CHECKING:
    import aiohttp

#: Seconds that an HTTP address has for an answer.
_ANSWER_S = 10.0
#: Lines that are fetched from an HTTP address at a time.
_AT_ONCE = 16
#: Bytes of a line at most; a longer answer is none.
_MOST_BYTES = 64 << 10
#: Lines that a deposit may have: beyond it an address answers to any number.
_MOST_LINES = 1 << 24

#: Answers to a PUT of a number that is taken: failed precondition, conflict, and what stores with retention say.
_TAKEN = frozenset({405, 409, 412})


class DepositUnavailable(KaiError):
    """A deposit does not answer, or refuses; what was to be handed in may be handed in again."""


class FileUnavailable(DepositUnavailable, ConfigurationError):
    """A file cannot be read or written."""


class DepositTaken(KaiError):
    """There is another line under that number already: somebody else deposits there, too."""


class Deposit(Protocol):
    """A place that takes lines and keeps them in order.

    Attributes:
        address: what it is called by people: a file or a URL without its query.
    """

    address: str

    async def count(self) -> int:
        """Return how many lines there are. Raises DepositUnavailable: it does not answer."""

    async def lines(self, *, after: int = 0) -> list[str]:
        """Return the lines after so many.

        Raises:
            DepositUnavailable: it does not answer.
            InvalidObject: what is there is no text.
        """

    async def add(self, line: str, *, number: int) -> None:
        """Hand in a line as number so-and-so, one more than there are.

        Raises:
            DepositTaken: there is one under that number.
            DepositUnavailable: it does not answer, or does not take it.
        """

    async def close(self) -> None:
        """Release connections."""


def open_deposit(address: str, *, token: str = "") -> Deposit:
    """Return the deposit at an address. Raises ConfigurationError: the address is none.

    Args:
        address: `http://…` or `https://…`, or else a file.
        token: sent to an HTTP address as `Authorization: Bearer`; empty for none.
    """
    if address.startswith(("http://", "https://")):
        return HttpDeposit(address, token=token)
    path = address.removeprefix("file://")
    if "://" in path or not path:
        raise ConfigurationError(f"{address!r}: is no address of a deposit: a file, http://… or https://…")
    return FileDeposit(Path(path))


@asynccontextmanager
async def closing(deposit: Deposit) -> AsyncIterator[Deposit]:
    """Close a deposit in the end."""
    try:
        yield deposit
    finally:
        await deposit.close()


class FileDeposit:
    """A file with a line for each seal; on a file system that its writers cannot rewrite, or for a first check."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._path = path

    async def count(self) -> int:
        """See `Deposit.count`."""
        return len(await self.lines())

    async def lines(self, *, after: int = 0) -> list[str]:
        """See `Deposit.lines`; a file that is not there has none."""
        try:
            text = await asyncio.to_thread(self._path.read_bytes)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FileUnavailable(f"{self.address}: cannot be read: {error.strerror}") from error
        return _text(text, self.address).splitlines()[after:]

    async def add(self, line: str, *, number: int) -> None:
        """See `Deposit.add`."""
        lines = await self.lines()
        if len(lines) != number - 1:
            raise DepositTaken(f"{self.address}: has {len(lines)} lines, and line {number} was to be added")
        await asyncio.to_thread(self._replace, "".join(f"{one}\n" for one in (*lines, line)))

    async def close(self) -> None:
        """See `Deposit.close`."""

    def _replace(self, text: str) -> None:
        """Replace the file as a whole: a line that was cut off halfway would be taken for a forged one."""
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            with beside.open("w", encoding="utf-8") as written:
                written.write(text)
                written.flush()
                os.fsync(written.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise FileUnavailable(f"{self.address}: cannot be written: {error.strerror}") from error


class HttpDeposit:
    """Objects at an HTTP address, one for each line; see the module."""

    def __init__(self, address: str, *, token: str = "") -> None:
        """Args:
        address: of the folder; a query, such as a signature of the store's, is sent with every request.
        token: sent as `Authorization: Bearer`; empty for none.
        """
        parts = urlsplit(address)
        if not parts.hostname:
            raise ConfigurationError(f"{address!r}: is no address of a deposit: it names no host")
        self._parts = parts._replace(path=parts.path.rstrip("/"), fragment="")
        # A query may hold a secret, and a user's name comes with a password.
        self.address = urlunsplit(self._parts._replace(query="", netloc=parts.netloc.rpartition("@")[2]))
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def count(self) -> int:
        """See `Deposit.count`; it takes some two requests for each doubling of the lines."""
        if await self._get(1) is None:
            return 0
        low, high = 1, 2
        while await self._get(high) is not None:
            low, high = high, high * 2
            if high > _MOST_LINES:
                raise DepositUnavailable(f"{self.address}: has an answer for every number: it is no deposit")
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if await self._get(middle) is not None else (low, middle)
        return low

    async def lines(self, *, after: int = 0) -> list[str]:
        """See `Deposit.lines`."""
        lines: list[str] = []
        while len(lines) < _MOST_LINES:
            first = after + len(lines) + 1
            page = await asyncio.gather(*(self._get(number) for number in range(first, first + _AT_ONCE)))
            for line in page:
                if line is None:
                    return lines
                lines.append(line)
        raise DepositUnavailable(f"{self.address}: has an answer for every number: it is no deposit")

    async def add(self, line: str, *, number: int) -> None:
        """See `Deposit.add`."""
        headers = {"If-None-Match": "*", "Content-Type": "application/json"}
        status, content = await self._request("PUT", number, headers=headers, data=f"{line}\n".encode())
        if status in _TAKEN and await self._get(number) is not None:
            raise DepositTaken(f"{self.address}: line {number} is there already")
        if not 200 <= status < 300:
            raise DepositUnavailable(f"{self.address}: line {number}: HTTP {status}: {content[:200]!r}")

    async def close(self) -> None:
        """See `Deposit.close`."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, number: int) -> str | None:
        status, content = await self._request("GET", number)
        if status in (404, 410):
            return None
        if status != 200:
            raise DepositUnavailable(f"{self.address}: line {number}: HTTP {status}: {content[:200]!r}")
        return _text(content, f"{self.address}/{_name(number)}").rstrip("\n")

    async def _request(
        self, method: str, number: int, *, headers: dict[str, str] | None = None, data: bytes | None = None
    ) -> tuple[int, bytes]:
        # It takes 0.2 s to import, and most relays have no such deposit.
        import aiohttp  # noqa: PLC0415

        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_ANSWER_S), trust_env=True)
        url = urlunsplit(self._parts._replace(path=f"{self._parts.path}/{_name(number)}"))
        try:
            async with self._session.request(
                method, url, headers={**self._headers, **(headers or {})}, data=data, allow_redirects=False
            ) as response:
                content = bytearray()
                async for chunk in response.content.iter_any():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        raise DepositUnavailable(f"{self.address}: line {number}: an answer of that length is no seal")
                return response.status, bytes(content)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
            raise DepositUnavailable(f"{self.address}: {problem}") from error


def _name(number: int) -> str:
    return f"{number:08}.json"


def _text(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidObject(name, "contents", str(error.object[:20]), "is no text") from error
