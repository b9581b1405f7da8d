"""A log for notebooks and scripts: what `kai get`, `why`, `replay`, `what-if` and `report` answer, as Python objects.

    from kai_ledger.client import Ledger
    with Ledger("prod.log.gz") as ledger:
        ledger.pods(at="-1h", pending=True).to_polars()

Every method waits for its answer, also where an event loop runs, as in a notebook: the questions are asked on a
thread. The answers are those of the commands, by the same functions, and print as the commands do.
"""

import asyncio
import atexit
import importlib
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import msgspec
from kai_cli.asking.questions import check_subjects, read_subject, time_of, with_forecasts
from kai_cli.asking.why_page import why_text
from kai_cli.history.exporting import moments_of
from kai_cli.history.replaying import PolicySources, replayed, report_lines
from kai_cli.history.report import report_from, report_rows, report_text
from kai_cli.output import listing_text
from kai_cli.sources.answers import Answers, open_answers
from kai_cli.sources.log_access import opened_source
from kai_cli.sources.source import AnswerSource, one_cluster
from kai_cli.trials.what_if_history import compared_history, comparison_text
from kaicore.analysis.ask.answers import Listing, RowSelection, Why, inapplicable_filters
from kaicore.analysis.ask.hours.report import ReportQuestion, UsageReport, read_prices
from kaicore.analysis.trial.history.alternative import HistoryQuestion
from kaicore.analysis.trial.history.comparison import HistoryComparison
from kaicore.errors import ConfigurationError
from kaicore.rules.deciding.replay import ReplayReport

if TYPE_CHECKING:
    from kai_cli.sources.answers import ApiAnswers
    from kaicore.analysis.trial.submission.start_forecasts import StartForecasts

_AnswerT = TypeVar("_AnswerT")


class Answered(Generic[_AnswerT]):
    """An answer: `data` is the object, with its fields; it prints as the command does that asks the same."""

    def __init__(self, data: _AnswerT, text: str) -> None:
        self.data = data
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Table(Answered[_AnswerT]):
    """An answer in rows, all with the same keys; a library that is not installed raises ConfigurationError."""

    def __init__(self, data: _AnswerT, text: str, rows: list[dict[str, Any]]) -> None:
        super().__init__(data, text)
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return list(self._rows)

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`."""
        return _library("polars").DataFrame(self._rows, infer_schema_length=None)

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`."""
        return _library("pandas").DataFrame(self._rows)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"{error.name} is not installed: pip install {name}") from error


class Ledger:
    """A cluster's log: by way of an API, in a database, of a data directory, or in a file of `kai export`.

    Methods raise what is below `kaicore.errors.KaiError`, such as UnknownSubject and UnknownMoment. `at`, `since` and
    `until` are moments as the commands have them: a position, a time, or a time before the log's end, such as `-1h`.
    """

    def __init__(self, where: str | Path = "", *, cluster: str = "", token: str = "") -> None:
        """Open a log; what is folded for one question is kept for the next, until it is closed.

        Args:
            where: `https://…` of an API, `postgresql://…`, a data directory, or a file; by default as commands choose.
            cluster: by default the only one, or the current one (`kai cluster use`).
            token: key or token for the API; by default that of `$KAI_API_TOKEN`.

        Raises:
            KaiError: there is no such log or cluster, or it cannot be opened.
        """
        self._source = _source(str(where), cluster=cluster or None, token=token or None)
        self._stack = AsyncExitStack()
        self._answers: Answers | None = None
        self._forecasts: ApiAnswers | StartForecasts | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="kai-ledger", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        try:
            self.cluster = self._ask(self._open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened; harmless when that is done already."""
        atexit.unregister(self.close)
        if self._loop.is_closed():
            return
        try:
            self._ask(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def pods(self, *, at: str = "", **filters: Any) -> Table[Listing]:
        """Return the pods; filters are the fields of `RowSelection`: namespace, name, queue, node, pending, …"""
        return self._ask(self._listing("pods", at, filters))

    def groups(self, *, at: str = "", **filters: Any) -> Table[Listing]:
        """Return the groups of pods, with when those that wait are expected to start."""
        return self._ask(self._listing("groups", at, filters))

    def nodes(self, *, at: str = "", **filters: Any) -> Table[Listing]:
        """Return the nodes."""
        return self._ask(self._listing("nodes", at, filters))

    def queues(self, *, at: str = "", **filters: Any) -> Table[Listing]:
        """Return the queues with their accounts."""
        return self._ask(self._listing("queues", at, filters))

    def why(self, subject: str, *, at: str = "") -> Answered[Why]:
        """Explain why a pod is where it is or nowhere: `NAMESPACE/NAME`, or another subject, such as `queue/team-a`."""
        return self._ask(self._why(subject, at))

    def replay(
        self, *, since: str = "", until: str = "", cycle: str | None = None, processes: int = 1
    ) -> Answered[ReplayReport]:
        """Run recorded cycles again, and compare; for several processes, guard the script's main module."""
        moments, policies = moments_of(since, until), PolicySources()
        self._reads_the_log("replay")
        (report,) = self._ask(replayed(self._source, cycle, moments, processes, policies=policies))
        return Answered(report, "\n".join(report_lines(report)))

    def what_if(self, *settings: str, since: str = "", until: str = "") -> Answered[HistoryComparison]:
        """Simulate history again with other settings, `KEY=VALUE`, and compare; without any, with the best policies."""
        question = HistoryQuestion(since=since, until=until, settings=settings, policies=not settings)
        self._reads_the_log("what_if")
        comparison = self._ask(compared_history(self._source, question))
        return Answered(comparison, comparison_text(comparison))

    def report(
        self,
        by: str = "queue",
        *,
        month: str = "",
        since: str = "",
        until: str = "",
        prices: dict[str, str] | None = None,
    ) -> Table[UsageReport]:
        """Return who held how many GPU-hours; see `ReportQuestion`, where prices are decimal numbers."""
        question = ReportQuestion(by, month, since, until, read_prices(list((prices or {}).items())))
        question.check()
        answer = self._ask(report_from(self._source, question))
        head, rows = report_rows(answer)
        return Table(answer, report_text(answer), [dict(zip(head, row, strict=True)) for row in rows])

    def _ask(self, question: Coroutine[Any, Any, _AnswerT]) -> _AnswerT:
        if self._loop.is_closed():
            question.close()
            raise ConfigurationError("this ledger is closed")
        answer = asyncio.run_coroutine_threadsafe(question, self._loop)
        try:
            return answer.result()
        except BaseException:
            # Ctrl-C ends the question, too.
            answer.cancel()
            raise

    async def _open(self) -> str:
        if self._source.api() is None:
            opened = await self._stack.enter_async_context(opened_source(self._source))
            assert isinstance(opened, AnswerSource)
            self._source = opened
        answers, clusters = await self._stack.enter_async_context(open_answers(self._source, once=False))
        self._answers = answers
        self._forecasts = with_forecasts(answers)
        cluster = one_cluster(self._source, clusters)
        self._source = replace(self._source, cluster=cluster)
        return cluster

    async def _listing(self, kind: str, at: str, filters: dict[str, Any]) -> Table[Listing]:
        assert self._answers is not None
        assert self._forecasts is not None
        wanted = RowSelection(**filters)
        if wrong := inapplicable_filters(kind, wanted):
            raise ConfigurationError(f"{kind} cannot be filtered by {', '.join(wrong)}")
        await check_subjects(self._answers, [self.cluster], kind, wanted, at=at)
        now = time_of(self._source, at)
        listing = await self._forecasts.listing(self.cluster, kind, wanted, at=at, now=now)
        return Table(listing, listing_text(listing), msgspec.json.decode(listing.items))

    async def _why(self, subject: str, at: str) -> Answered[Why]:
        assert self._forecasts is not None
        about = read_subject(subject, None)
        now = time_of(self._source, at)
        why = await self._forecasts.why(self.cluster, about.kind, about.namespace, about.name, at=at, now=now)
        return Answered(why, why_text(why))

    def _reads_the_log(self, question: str) -> None:
        if self._source.api_named:
            raise ConfigurationError(f"{question}: reads the log itself: open a database or a file")


def _source(where: str, *, cluster: str | None, token: str | None) -> AnswerSource:
    if where.startswith(("http://", "https://")):
        return AnswerSource(cluster=cluster, api_url=where, token=token)
    if where.startswith(("postgres://", "postgresql://")):
        return AnswerSource(cluster=cluster, database_url=where)
    if Path(where).is_dir():
        return AnswerSource(cluster=cluster, data_dir=Path(where) if where else None)
    return AnswerSource(cluster=cluster, file=Path(where))
