"""A proxy before Postgres that can lose an answer: the server did as it was told, and the client never learns of it."""

import asyncio
from typing import Self
from urllib.parse import urlsplit, urlunsplit


class LosingProxy:
    """Passes bytes on, until told to lose the answer to a certain command and the connection with it.

    Attributes:
        lost: how many answers were lost.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._lose: bytes | None = None
        self.lost = 0

    @property
    def url(self) -> str:
        """Where clients connect."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        login = self._target.netloc.rpartition("@")[0]
        return urlunsplit(self._target._replace(netloc=f"{login}@127.0.0.1:{port}"))

    def lose_after(self, command: bytes) -> None:
        """Lose the answer to the next command that contains this text."""
        self._lose = command

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        server_reader, server_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            async with asyncio.TaskGroup() as group:
                answers = group.create_task(self._pass_on(server_reader, writer))
                group.create_task(self._pass_commands_on(reader, server_writer, server_reader, answers))
        except* (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            for one in (writer, server_writer):
                one.close()
            self._sessions.discard(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError

    async def _pass_commands_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answer: asyncio.StreamReader,
        answers: "asyncio.Task[None]",
    ) -> None:
        while data := await reader.read(65536):
            if self._lose is not None and self._lose in data:
                self._lose = None
                self.lost += 1
                answers.cancel()
                writer.write(data)
                # When the server has answered, the transaction is in the log.
                await answer.read(1)
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError
