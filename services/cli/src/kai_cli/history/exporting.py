"""`kai export` and `kai import log`: a log, or a range of it, as one file, and back."""

import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from kaicore.analysis.json_spelling import spelled
from kaicore.analysis.replay.exports import export_log, export_redacted
from kaicore.analysis.replay.log_states import events_of, first_state
from kaicore.analysis.replay.moments import Moment, Range, end_of_append, parse_moment, range_of
from kaicore.analysis.replay.replay import cycle_with_input
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.files.reader import LogFile
from kaicore.ledger.log.files.writer import Header
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.envelope import Event
from kaicore.rules.hub.hub_state import HUB, without_hub
from kaicore.rules.state.cluster_state import ClusterState

from kai_cli.output import Output, OutputFlag, Progress, print_answer, print_data, table
from kai_cli.sources.log_access import open_log, open_log_as_owner
from kai_cli.sources.source import ANY_LOG, FromFlag, LogSource, LogSourceFlags, ToFlag, one_cluster


def moments_of(begin: str, to: str) -> tuple[Moment | None, Moment | None]:
    """Read `--from` and `--to`; None where one is empty. Raises UnknownMoment: one is no moment."""
    return parse_moment(begin) if begin else None, parse_moment(to) if to else None


async def export(
    file: Path,
    /,
    *,
    begin: FromFlag = "",
    to: ToFlag = "",
    form: Annotated[Literal["log", "parquet", "perfetto"], Parameter(name="--format")] = "log",
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> None:
    """Write a cluster's log, or a range of it, into one compressed file that can be verified and asked alone.

    The file has the events to the byte, and, where it does not begin with event 1, the state to start from. Other
    commands ask it by --file; `kai import log` takes it into another database.

    Args:
        file: to write, such as prod.log.gz or prod.json.gz; replaced where it is there. Of tables, the directory.
        begin: the first event, by position or time (12345, 2026-11-22T02:55:00Z, -1h); by default the first there is.
        to: the last event likewise, with all that was appended with it; by default the last there is.
        form: parquet for tables instead: pods, groups, decisions, placements, observations, usage and occupancy;
            perfetto for a trace of what waited and what held GPUs, which https://ui.perfetto.dev shows.
    """
    moments = moments_of(begin, to)
    if form == "log":
        await _export(file, moments, source, output)
    elif form == "perfetto":
        from kai_cli.history.perfetto import write_trace  # noqa: PLC0415

        await _export_folded(file, moments, source, output, writer=write_trace)
    elif begin:
        raise ConfigurationError(f"--from {begin}: tables begin with the log, for a pod's row needs all of its life")
    else:
        await _export_tables(file, moments, source, output)


async def _export(file: Path, moments: tuple[Moment | None, Moment | None], source: LogSource, output: Output) -> None:
    async with open_log(source) as log:
        cluster = await _cluster(log, source)
        wanted = await _whole_range(log, cluster, moments)
        with Progress("exporting events") as progress:
            header = await export_log(log, cluster, file, wanted, progress=progress)
    _report(file, header, output)


async def _whole_range(log: EventLog, cluster: str, moments: tuple[Moment | None, Moment | None]) -> Range:
    """Return a range that ends with the end of an append: a replay would miss decisions that were cut off."""
    wanted = await range_of(log, cluster, since=moments[0], until=moments[1])
    return Range(wanted.first, await end_of_append(log, cluster, wanted.last))


async def _cluster(log: EventLog, source: LogSource) -> str:
    there_are = await log.clusters()
    if not there_are:
        raise ConfigurationError("the log is empty: there is nothing to export")
    return one_cluster(source, there_are if source.cluster == HUB else without_hub(there_are))


#: Writes events, given the state before them, and what is to be said of the log; returns how much of what it wrote.
_Writer = Callable[[Path, AsyncIterator[Event], ClusterState, Mapping[str, str]], Awaitable[Mapping[str, int]]]


async def _export_tables(
    path: Path, moments: tuple[Moment | None, Moment | None], source: LogSource, output: Output
) -> None:
    """Write tables: those of the read models from there, where these are up to date; else all by folding the log."""
    # Other exports do without the engine, and without the package.
    try:
        from kai_cli.history.parquet import TYPES, up_to_date, write_tables  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ConfigurationError("pyarrow is not installed: pip install 'kai-ledger[parquet]'") from error
    if moments[1] is None:
        async with open_log(source) as log:
            cluster = await _cluster(log, source)
            async with up_to_date(log, cluster) as models:
                if models is not None:
                    first, last = await log.retired(cluster) + 1, models.generation.position
                    with Progress("exporting events") as progress:
                        events = _events(log, cluster, (first, last), progress, where=Filter(types=TYPES))
                        about = _about(cluster, first, last)
                        counts = await write_tables(path, events, None, about, models=models)
                    _report_rows(path, about, counts, output)
                    return
    await _export_folded(path, moments, source, output, writer=write_tables)


async def _events(
    log: EventLog, cluster: str, span: tuple[int, int], progress: Progress, *, where: Filter | None = None
) -> AsyncIterator[Event]:
    first, last = span
    async for event in events_of(log, cluster, after=first - 1, upto=last, where=where):
        yield event
        progress(event.position, last)


def _about(cluster: str, first: int, last: int) -> dict[str, str]:
    return {"kai.cluster": cluster, "kai.first": str(first), "kai.last": str(last)}


async def _export_folded(
    path: Path, moments: tuple[Moment | None, Moment | None], source: LogSource, output: Output, *, writer: _Writer
) -> None:
    async with open_log(source) as log:
        cluster = await _cluster(log, source)
        wanted = await range_of(log, cluster, since=moments[0], until=moments[1])
        state = await first_state(log, cluster)
        with Progress("exporting events") as progress:
            async for event in events_of(log, cluster, after=state.position, upto=wanted.first - 1):
                state.fold(event)
            span = state.position + 1, wanted.last
            about = _about(cluster, *span)
            counts = await writer(path, _events(log, cluster, span, progress), state, about)
    _report_rows(path, about, counts, output)


def _report_rows(path: Path, about: Mapping[str, str], counts: Mapping[str, int], output: Output) -> None:
    head = f"cluster {about['kai.cluster']}: events {about['kai.first']} to {about['kai.last']} in {path}\n"
    rows = [(name, str(count)) for name, count in counts.items()]
    print_answer({"path": str(path), **about, "rows": counts}, output, lambda: head + table(("WHAT", "ROWS"), rows))


async def report_bug(
    file: Path,
    /,
    *,
    cycle: str | None = None,
    begin: FromFlag = "",
    to: ToFlag = "",
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> None:
    """Write a range of a log without its names, which others replay with the same differences.

    Pseudonyms stand for names of objects, values of labels and texts, in the order of the names. Sizes, times, uids
    and keys of labels stay. The cluster is called redacted. All cycles from event 1 on are decided for it, twice.

    Args:
        file: to write, such as bug.log.gz; replaced where it is there.
        cycle: only this one: a number, or SHARD/NUMBER.
        begin: the first event, by position or time (12345, 2026-11-22T02:55:00Z, -1h); by default the first there is.
        to: the last event likewise, with all that was appended with it; by default the last there is.
    """
    if cycle is not None and (begin or to):
        raise ConfigurationError("--cycle selects one cycle: leave out --from and --to")
    async with open_log(source) as log:
        cluster = await _cluster(log, source)
        if cycle is not None:
            wanted = await cycle_with_input(log, cluster, cycle)
        else:
            wanted = await _whole_range(log, cluster, moments_of(begin, to))
        header, otherwise = await export_redacted(log, cluster, file, wanted, key=secrets.token_bytes(32))
    _report(file, header, output)
    if output == "table":
        print(f"whoever has the file sees what it shows by `kai replay --file {file.name}`")
    if otherwise:
        print(f"{otherwise:,} decisions come out otherwise without names: replays show them too", file=sys.stderr)


def _report(file: Path, header: Header, output: Output) -> None:
    size = file.stat().st_size
    if output != "table":
        answer = spelled(header)
        assert isinstance(answer, dict)
        print_data({"file": str(file), "bytes": size, **answer}, output)
        return
    after, last = header.after.position, header.last
    begins = "" if header.state is None else f", with the state at {header.state.position}"
    print(f"cluster {header.cluster}: {last.position - after:,} events, {after + 1} to {last.position}{begins}")
    print(f"head {last.position} {last.hash}")
    print(f"{size:,} bytes in {file}")


async def import_log(file: Path, /, *, source: LogSourceFlags = ANY_LOG) -> None:
    """Take a file that `kai export` wrote into a database, with the same positions, hashes and ids.

    What is there already stays: after an interruption, or for a longer file of the same log, it goes on where the log
    ends. A cluster's log with other events is refused.

    Args:
        file: to read.
        source: which database; with --database-url, as the role that owns the log (kai_migrate).
    """
    with LogFile(file) as opened:
        cluster = opened.header.cluster
        if source.cluster not in (None, cluster):
            raise ConfigurationError(f"{file}: has the log of cluster {cluster}, not of {source.cluster}")
        async with open_log_as_owner(source) as log:
            with Progress("importing events") as progress:
                count = await log.import_file(opened, progress=progress)
            head = await log.head(cluster)
    what = f"{count:,} events imported" if count else "all events of the file were there already"
    print(f"cluster {cluster}: {what}")
    print(f"head {head.position} {head.hash.hex()}")
