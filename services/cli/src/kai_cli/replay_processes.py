"""A replay in several processes: each takes a part of the range, from the nearest snapshot on."""

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from kaicore.analysis.inquiry.ranges import Range
from kaicore.analysis.inquiry.replay import replay_log
from kaicore.errors import KaiError
from kaicore.rules.state.replay_report import ReplayReport, merged

from kai_cli.log_access import open_log
from kai_cli.source import LogSource

#: What a part tells: how far it is, its report, or why there is none.
_Message = int | ReplayReport | str


class PartFailed(KaiError):
    """A part of a replay could not be run; the message is its error's."""


def replay_in_processes(
    source: LogSource, cluster: str, parts: Sequence[Range], *, progress: Callable[[int, int], None]
) -> ReplayReport:
    """Replay the parts of a range, each in a process of its own.

    Args:
        source: of the log; that of a data directory must name its database.
        cluster: whose log.
        parts: in order, without gaps.
        progress: called with how many events were replayed, and how many there are.

    Raises:
        PartFailed: a part could not be run.
    """
    # Not forked: this process has threads and connections.
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes = []
    try:
        for part in parts:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_replay_part, args=(there, source, cluster, part), daemon=True)
            process.start()
            there.close()
            connections.append(here)
            processes.append(process)
        return merged(_collect(connections, parts, progress))
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()
        for connection in connections:
            connection.close()


def _collect(
    connections: Sequence[Connection], parts: Sequence[Range], progress: Callable[[int, int], None]
) -> list[ReplayReport]:
    """Wait for the reports of all parts."""
    total = parts[-1].last - parts[0].first + 1
    done = dict.fromkeys(connections, 0)
    reports: dict[Connection, ReplayReport] = {}
    while len(reports) < len(connections):
        for ready in wait([one for one in connections if one not in reports]):
            assert isinstance(ready, Connection)
            try:
                message: _Message = ready.recv()
            except EOFError:
                raise PartFailed("a part of the replay ended without an answer") from None
            if isinstance(message, str):
                raise PartFailed(message)
            if isinstance(message, ReplayReport):
                reports[ready] = message
            else:
                done[ready] = message
                progress(sum(done.values()), total)
    return [reports[one] for one in connections]


def _replay_part(connection: Connection, source: LogSource, cluster: str, part: Range) -> None:
    # Ctrl-C reaches all processes of a terminal; the one that began this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(asyncio.run(_replay(connection, source, cluster, part)))
    except KaiError as error:
        connection.send(str(error))


async def _replay(connection: Connection, source: LogSource, cluster: str, part: Range) -> ReplayReport:
    def progress(done: int, _: int) -> None:
        connection.send(min(done, part.last - part.first + 1))

    async with open_log(source) as log:
        return await replay_log(log, cluster, part, progress=progress)
