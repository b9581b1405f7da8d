"""A client's way to a server: a proxy that cuts, holds still, loses answers, and tells nobody.

What a firewall or a dead switch does to a connection cannot be had by killing one of its ends: here both ends live, and
neither hears of it (half-open), or the server does as asked and the client never learns.
"""

import asyncio
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class Link:
    """Passes bytes on, until changed.

    Attributes:
        lost: how many answers were lost.
        slowness: seconds that each byte of an answer takes.
    """

    def __init__(self, url: str, *, listen: str = "127.0.0.1") -> None:
        """Args:
        url: of the server.
        listen: address on which the client finds it instead.
        """
        self._target = urlsplit(url)
        self._listen = listen
        self._server: asyncio.Server | None = None
        self._sessions: dict[asyncio.Task[None], tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = {}
        self._lose: bytes | None = None
        self._hears, self._answers = asyncio.Event(), asyncio.Event()
        self._hears.set()
        self._answers.set()
        self.lost = 0
        self.slowness = 0.0

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login, at, _ = self._target.netloc.rpartition("@")
        return urlunsplit(self._target._replace(netloc=f"{login}{at}{self._listen}:{port}"))

    def lose_after(self, command: bytes) -> None:
        """Lose the answer to the next command that contains this text."""
        self._lose = command

    def cut(self) -> int:
        """Cut all connections without a word (RST); return how many there were."""
        cut = [pair for session, pair in self._sessions.items() if not session.done()]
        for pair in cut:
            for writer in pair:
                writer.transport.abort()
        return len(cut)

    def hold(self, *, only_answers: bool = False) -> None:
        """Let nothing through any more, or no answers; connections stay, new ones are taken and held, too."""
        self._answers.clear()
        if not only_answers:
            self._hears.clear()

    def release(self) -> None:
        """Let everything through again, what was held first."""
        self._answers.set()
        self._hears.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._listen, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for session in list(self._sessions):
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        self._sessions[task] = (writer, server_writer)
        try:
            async with asyncio.TaskGroup() as group:
                answers = group.create_task(self._pass_on(server_reader, writer))
                group.create_task(self._pass_commands_on(reader, server_writer, server_reader, answers))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            del self._sessions[task]
            for one in (writer, server_writer):
                one.transport.abort() if one.is_closing() else one.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._answers.wait()
            if self.slowness:
                await asyncio.sleep(len(data) * self.slowness)
            _write(writer, data)
            await writer.drain()
        with suppress(OSError):
            await self._answers.wait()
        raise ConnectionResetError

    async def _pass_commands_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: asyncio.StreamReader,
        answers: "asyncio.Task[None]",
    ) -> None:
        while data := await reader.read(65536):
            await self._hears.wait()
            if self._lose is not None and self._lose in data:
                self._lose = None
                self.lost += 1
                answers.cancel()
                _write(writer, data)
                # When the server has answered, the transaction is in the log.
                await answer.read(1)
                raise ConnectionResetError
            _write(writer, data)
            await writer.drain()
        raise ConnectionResetError


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Write to a side that may be gone: uvloop says so by a RuntimeError, and only there."""
    if writer.is_closing():
        raise ConnectionResetError
    writer.write(data)
