"""`kai replay`: a log, a range of it, or one cycle, run again.

Several processes may share it: each takes a part of the range, from the nearest snapshot on.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from textwrap import indent
from typing import Annotated

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from kaicore.analysis.json_spelling import spelled
from kaicore.analysis.replay.moments import Moment, Range, range_of
from kaicore.analysis.replay.replay import cycle_range, halves, replay_log
from kaicore.analysis.trial.dispatching import ChoiceReplay, replay_choices
from kaicore.errors import ConfigurationError, KaiError
from kaicore.ledger.log.port import EventLog
from kaicore.rules.deciding.replay import Difference, ReplayReport, merged
from kaicore.rules.engine.config import ENGINE_VERSION
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.hub.hub_state import HUB, without_hub
from kaicore.runtime.policies.loading import load_source

from kai_cli.history.exporting import moments_of
from kai_cli.output import Output, OutputFlag, Progress, print_answer, print_answers, table
from kai_cli.sources.log_access import open_log, opened_source
from kai_cli.sources.source import ANY_LOG, FromFlag, LogSource, LogSourceFlags, ToFlag, look_in, one_cluster

#: What a part tells: how far it is, its report, or why there is none.
_Message = int | ReplayReport | str


@dataclass(frozen=True, slots=True)
class PolicySources:
    """The policies that cycles were decided with.

    Attributes:
        sources: files that end in `.py`, or names of entry points.
        others: whether other code of the same name stands in, to see what it decides otherwise.
    """

    sources: tuple[str, ...] = ()
    others: bool = False

    def book(self) -> PolicyBook:
        """Return a book with their code. Raises ConfigurationError: naming the file and what is wrong."""
        book = PolicyBook(others=self.others)
        for source in self.sources:
            kind, digest = load_source(source)
            book.add(kind, digest)
        return book


class PartFailed(KaiError):
    """A part of a replay could not be run; the message is its error's."""


def replay_in_processes(
    source: LogSource,
    cluster: str,
    parts: Sequence[Range],
    *,
    progress: Callable[[int, int], None],
    policies: PolicySources | None = None,
) -> ReplayReport:
    """Replay the parts of a range, each in a process of its own. Raises PartFailed: a part could not be run.

    Args:
        source: of the log; that of a data directory must name its database.
        cluster: the name of the cluster.
        parts: in order, without gaps.
        progress: called with how many events were replayed, and how many there are.
        policies: that cycles were decided with.
    """
    # Not forked: this process has threads and connections.
    context = multiprocessing.get_context("spawn")
    connections: list[Connection] = []
    processes = []
    try:
        for part in parts:
            here, there = context.Pipe(duplex=False)
            given = there, source, cluster, part, policies or PolicySources()
            process = context.Process(target=_replay_part, args=given, daemon=True)
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


def _replay_part(connection: Connection, source: LogSource, cluster: str, part: Range, policies: PolicySources) -> None:
    # Ctrl-C reaches all processes of a terminal; the one that began this ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        connection.send(asyncio.run(_replay(connection, source, cluster, part, policies)))
    except KaiError as error:
        connection.send(str(error))


async def _replay(
    connection: Connection, source: LogSource, cluster: str, part: Range, policies: PolicySources
) -> ReplayReport:
    def progress(done: int, _: int) -> None:
        connection.send(min(done, part.last - part.first + 1))

    async with open_log(source) as log:
        return await replay_log(log, cluster, part, progress=progress, policies=policies.book())


#: Events that are worth a second process, which takes about two seconds to start.
_WORTH_A_PROCESS = 20_000
#: Differences that are printed, after the first one.
_PRINTED = 5
#: Characters of a value that are printed; JSON has all of it.
_WIDTH = 60


async def replay(
    *,
    cycle: str | None = None,
    begin: FromFlag = "",
    to: ToFlag = "",
    processes: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
    policy: tuple[str, ...] = (),
    other_policies: bool = False,
    source: LogSourceFlags = ANY_LOG,
    output: OutputFlag = "table",
) -> int:
    """Run recorded cycles again on the states they were decided on, and compare; exit 1 if there is a difference.

    Every decision and every reason is compared. What another engine version decided may come out otherwise: that is
    summed up, and is no difference.

    Args:
        cycle: only this one: a number, or SHARD/NUMBER.
        begin: only cycles recorded from this position or time on (12345, 2026-11-22T02:55:00Z, -1h).
        to: only cycles recorded up to this position or time.
        processes: that share the work; by default one for each CPU, for a long range.
        policy: a policy that the shard has: its file, or its entry point. Other code than decided is refused.
        other_policies: take other code of the same name, and show what it decides otherwise.
    """
    if cycle is not None and (begin or to):
        raise ConfigurationError("--cycle selects one cycle: leave out --from and --to")
    moments = moments_of(begin, to)
    policies = PolicySources(policy, other_policies)
    if source.cluster == HUB:
        async with open_log(source) as log:
            return _print_choices(await replay_choices(log), output)
    reports = await replayed(source, cycle, moments, processes, policies=policies)
    lines = (line for report in reports for line in report_lines(report))
    print_answers([spelled(one) for one in reports], output, lambda: "\n".join(lines) or "the log is empty")
    return 1 if any(report.differences for report in reports) else 0


async def replayed(
    source: LogSource,
    cycle: str | None = None,
    moments: tuple[Moment | None, Moment | None] = (None, None),
    processes: int | None = None,
    *,
    policies: PolicySources,
) -> list[ReplayReport]:
    """Return the reports of replays, one for each cluster that is meant; the arguments are those of `replay`."""
    reports, book = [], policies.book()
    async with opened_source(source) as opened, open_log(opened) as log:
        there_are = without_hub(await log.clusters())
        of_one = cycle is not None or any(moment and moment.position is not None for moment in moments)
        meant = [one_cluster(source, there_are)] if of_one else opened.clusters(there_are)
        for cluster, wanted in await look_in(meant, lambda name: _wanted(log, name, cycle, moments)):
            with Progress("replaying events") as progress:
                parts = halves(wanted, _count(wanted, processes))
                if len(parts) == 1:
                    report = await replay_log(log, cluster, wanted, progress=progress, policies=book)
                else:
                    shared = partial(replay_in_processes, progress=progress, policies=policies)
                    report = await asyncio.to_thread(shared, opened, cluster, parts)
            reports.append(report)
    return reports


def _print_choices(replay: ChoiceReplay, output: Output) -> int:
    head = f"hub: {replay.choices:,} choices of clusters made again: {len(replay.differences):,} differences"
    print_answer(replay, output, lambda: "\n".join([head, *replay.differences[:_PRINTED]]))
    return 1 if replay.differences else 0


async def _wanted(
    log: EventLog, cluster: str, cycle: str | None, moments: tuple[Moment | None, Moment | None]
) -> Range:
    if cycle is not None:
        return await cycle_range(log, cluster, cycle)
    return await range_of(log, cluster, since=moments[0], until=moments[1])


def _count(wanted: Range, processes: int | None) -> int:
    if processes is not None:
        return processes
    events = wanted.last - wanted.first + 1
    return max(min(len(os.sched_getaffinity(0)), events // _WORTH_A_PROCESS), 1)


def report_lines(report: ReplayReport) -> Iterator[str]:
    """Yield the report's lines for people."""
    cycles, decisions, differences = (
        f"{count:,} {noun}{'' if count == 1 else 's'}"
        for count, noun in (
            (report.cycles, "cycle"),
            (report.decisions, "decision"),
            (sum(report.kinds.values()), "difference"),
        )
    )
    yield (
        f"cluster {report.cluster}: {cycles} at positions {report.first} to {report.position}, "
        f"{decisions} replayed ({report.late:,} more were stale): {differences}"
    )
    if report.unreachable:
        yield f"  {report.unreachable:,} more cycles were decided on a state that is retired"
    if report.erased:
        yield f"  of {report.erased:,} cycles the digest is over names that were erased; their decisions are the same"
    if report.differences:
        yield from _kinds(report.kinds)
        yield from _in_full(report.differences[0])
        yield from (f"  {difference}"[:500] for difference in report.differences[1:_PRINTED])
    for one in report.found:
        what = f"the check of the {one.check} found a difference between {one.after} and {one.upto}"
        yield f"  {what}: {', '.join(one.parts)}"[:500]
    if report.other_engine:
        versions = sorted(version for version in report.engine_versions if version != ENGINE_VERSION)
        otherwise = sum(report.otherwise_kinds.values())
        yield (
            f"  {report.other_engine:,} cycles were decided by engine version {', '.join(versions)}; "
            f"version {ENGINE_VERSION} decides {f'{otherwise:,} things otherwise' if otherwise else 'the same'}"
        )
        yield from _kinds(report.otherwise_kinds)
        yield from (f"  {difference}"[:500] for difference in report.otherwise[:_PRINTED])


def _kinds(kinds: Mapping[str, int]) -> Iterator[str]:
    for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0])):
        yield f"  {count:>8,}  {kind}"


def _in_full(difference: Difference) -> Iterator[str]:
    """The event that differs, recorded and replayed side by side; what differs is marked."""
    yield f"  first: position {difference.position}, cycle {difference.cycle}: {difference.what}"
    rows = [(difference.what, difference.recorded, difference.replayed)]
    recorded, replayed = difference.recorded_event, difference.replayed_event
    if recorded is not None or replayed is not None:
        present = recorded if recorded is not None else replayed
        assert present is not None
        names = present.__struct_fields__
        rows = [(name, _value(recorded, name), _value(replayed, name)) for name in names]
    cells = [(" " if mine == theirs else "*", name, _cut(mine), _cut(theirs)) for name, mine, theirs in rows]
    yield from indent(table(("", "FIELD", "RECORDED", "REPLAYED"), cells), "    ").splitlines()


def _value(payload: msgspec.Struct | None, name: str) -> str:
    if payload is None:
        return "-"
    value = getattr(payload, name)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
