"""The source of an answer: the API where one runs, else the log, folded here.

Nothing that folding needs is imported before it is clear that there is no API: that makes `kai why` start fast.
"""

import asyncio
import sys
import threading
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
from kaicore.analysis.ask.answers import (
    CalibrationAnswer,
    ClusterRow,
    ClusterSummary,
    DiffAnswer,
    DiffQuestion,
    DispatchRow,
    DispatchWhy,
    GpuHolders,
    Listing,
    RowSelection,
    Why,
)
from kaicore.analysis.ask.audits.audit_answers import EvictionAudit, GroupAudit, NodeAudit, PlacementAudit, Span
from kaicore.analysis.ask.topology.answers import TopologiesAnswer, TopologyQuestion
from kaicore.errors import UnknownSubject

from kai_cli.sources.api_requests import ANSWER_S, LONG_ANSWER_S, ApiUnreachable, request_api
from kai_cli.sources.source import AnswerSource, clusters_at, look_in

if TYPE_CHECKING:
    from kaicore.analysis.ask.counterfactuals.drains import DrainPlan
    from kaicore.analysis.ask.counterfactuals.reservations import (
        ReservationPlan,
        ReservationQuestion,
        ReservationsAnswer,
    )
    from kaicore.analysis.ask.hours.report import UsageReport
    from kaicore.analysis.ask.projections.jobs import JobHistory, JobQuestion
    from kaicore.analysis.ask.queries import Inquiry
    from kaicore.analysis.ask.standings import PriorityAnswer
    from kaicore.analysis.trial.history.alternative import HistoryQuestion
    from kaicore.analysis.trial.history.comparison import HistoryComparison
    from kaicore.analysis.trial.shadow import ShadowReport
    from kaicore.analysis.trial.submission.answers import StartsAnswer, SubmitAnswer

_AnswerT = TypeVar("_AnswerT")


class ApiAnswers:
    """Answers from an API over HTTP."""

    def __init__(self, url: str, token: str = "") -> None:
        """Args:
        url: of the API, `http://host:port`.
        token: a key or token that the API knows; empty for none.
        """
        self._url = url.rstrip("/")
        self._token = token

    async def clusters(self) -> list[ClusterRow]:
        """Return the clusters that have a log."""
        return await self._get(list[ClusterRow], "clusters")

    async def dispatches(self, *, pending: bool = False) -> list[DispatchRow]:
        """Return the hub's dispatches, the oldest first; `pending` for those that have not started."""
        return await self._get(list[DispatchRow], "dispatches", pending=pending)

    async def why_dispatch(self, name: str) -> DispatchWhy:
        """Say in which cluster a dispatch is, and why."""
        return await self._get(DispatchWhy, "dispatches", name, "why")

    async def listing(self, cluster: str, kind: str, wanted: RowSelection, *, at: str = "", now: int = 0) -> Listing:
        """Return rows of a kind; the API has a clock of its own."""
        return await self._get(Listing, "clusters", cluster, kind, **msgspec.to_builtins(wanted), at=at)

    async def topologies(self, cluster: str, wanted: TopologyQuestion, *, at: str = "") -> TopologiesAnswer:
        """Return what the domains of a cluster's topologies have, use, and still have room for."""
        return await self._get(
            TopologiesAnswer, "clusters", cluster, "topologies", **msgspec.to_builtins(wanted), at=at
        )

    async def why(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "", now: int = 0) -> Why:
        """Explain something; the API has a clock of its own."""
        return await self._get(Why, "clusters", cluster, "why", kind, name, namespace=namespace, at=at)

    async def priority(self, cluster: str, *, queue: str = "", at: str = "") -> "PriorityAnswer":
        """Return the order of a queue's waiting groups."""
        from kaicore.analysis.ask.standings import PriorityAnswer  # noqa: PLC0415

        return await self._get(PriorityAnswer, "clusters", cluster, "priority", queue=queue, at=at)

    async def reservations(self, cluster: str, *, at: str = "", now: int = 0) -> "ReservationsAnswer":
        """Return the reservations of nodes that stand; the API has a clock of its own."""
        from kaicore.analysis.ask.counterfactuals.reservations import ReservationsAnswer  # noqa: PLC0415

        return await self._get(ReservationsAnswer, "clusters", cluster, "reservations", at=at)

    async def planned_reservation(self, cluster: str, asked: "ReservationQuestion") -> "ReservationPlan":
        """Return what a reservation would be, before it is made."""
        from kaicore.analysis.ask.counterfactuals.reservations import ReservationPlan  # noqa: PLC0415

        return await self._get(
            ReservationPlan, "clusters", cluster, "planned-reservation", **msgspec.to_builtins(asked)
        )

    async def planned_drain(self, cluster: str, asked: "ReservationQuestion") -> "DrainPlan":
        """Return what a drain would do, before it is made."""
        from kaicore.analysis.ask.counterfactuals.drains import DrainPlan  # noqa: PLC0415

        return await self._get(DrainPlan, "clusters", cluster, "planned-drain", **msgspec.to_builtins(asked))

    async def cluster(self, cluster: str, *, at: str = "") -> ClusterSummary:
        """Return a cluster in figures."""
        return await self._get(ClusterSummary, "clusters", cluster, at=at)

    async def who(
        self, cluster: str, queue: str, *, at: str = "", settings: Sequence[str] = (), change: object = None
    ) -> GpuHolders:
        """Say who has the GPUs that a queue is owed; the API makes `change` of the settings itself."""
        return await self._get(GpuHolders, "clusters", cluster, "who", queue=queue, set=settings, at=at)

    async def diff(self, cluster: str, before: str, after: str, wanted: DiffQuestion) -> DiffAnswer:
        """Return what is different at one moment from what it was at another one."""
        sides = {"from": before, "to": after}
        return await self._get(DiffAnswer, "clusters", cluster, "diff", **msgspec.to_builtins(wanted), **sides)

    async def audit_placements(self, cluster: str, span: Span, *, node: str = "") -> PlacementAudit:
        """Compare predicted placements with observed ones."""
        return await self._get(PlacementAudit, "clusters", cluster, "audit", "placements", **_ends(span), node=node)

    async def audit_node(self, cluster: str, node: str, span: Span, *, gpu: str = "") -> NodeAudit:
        """Return everything that held a node, and by which decision."""
        return await self._get(NodeAudit, "clusters", cluster, "audit", "nodes", node, **_ends(span), gpu=gpu)

    async def audit_group(self, cluster: str, namespace: str, name: str, span: Span) -> GroupAudit:
        """Return what was decided about a group, and by whom."""
        return await self._get(GroupAudit, "clusters", cluster, "audit", "groups", namespace, name, **_ends(span))

    async def audit_evictions(self, cluster: str, span: Span, *, namespace: str = "") -> EvictionAudit:
        """Return every eviction that was decided."""
        ends = _ends(span)
        return await self._get(EvictionAudit, "clusters", cluster, "audit", "evictions", **ends, namespace=namespace)

    async def calibration(self, cluster: str, *, renew: bool) -> CalibrationAnswer:
        """Return how often forecasts of starts came true."""
        return await self._get(CalibrationAnswer, "clusters", cluster, "calibration", renew=renew)

    async def shadow_report(self, cluster: str, **asked: str) -> "ShadowReport":
        """Return what a shadow's decisions come to; `asked` is the question's query."""
        from kaicore.analysis.trial.shadow import ShadowReport  # noqa: PLC0415

        body = await self._bytes("clusters", cluster, "shadow-report", query=asked, answer_s=LONG_ANSWER_S)
        return msgspec.json.decode(body, type=ShadowReport)

    async def usage_report(self, cluster: str, asked: Mapping[str, object]) -> "UsageReport":
        """Return who held how many GPU-hours; `asked` is the question's query."""
        from kaicore.analysis.ask.hours.report import UsageReport  # noqa: PLC0415

        body = await self._bytes("clusters", cluster, "report", query=asked, answer_s=LONG_ANSWER_S)
        return msgspec.json.decode(body, type=UsageReport)

    async def jobs(self, cluster: str, wanted: "JobQuestion") -> "JobHistory":
        """Return what became of jobs."""
        from kaicore.analysis.ask.projections.jobs import JobHistory  # noqa: PLC0415

        flags = {_ENDS.get(name, name): value for name, value in msgspec.to_builtins(wanted).items()}
        return await self._get(JobHistory, "clusters", cluster, "history", "jobs", **flags)

    async def starts(self, cluster: str, kind: str, namespace: str, name: str, *, at: str = "") -> "StartsAnswer":
        """Return when what waits is likely to start."""
        from kaicore.analysis.trial.submission.answers import StartsAnswer  # noqa: PLC0415

        return await self._get(StartsAnswer, "clusters", cluster, "start", kind, name, namespace=namespace, at=at)

    async def what_if(self, cluster: str, question: "HistoryQuestion") -> "HistoryComparison":
        """Return a window of history simulated again."""
        from kaicore.analysis.trial.history.comparison import HistoryComparison  # noqa: PLC0415

        asked = msgspec.json.encode(question)
        body = await self._bytes("clusters", cluster, "what-if", body=asked, answer_s=LONG_ANSWER_S)
        return msgspec.json.decode(body, type=HistoryComparison)

    async def submit(self, cluster: str, manifests: Mapping[str, object], *, at: str = "") -> "SubmitAnswer":
        """Return what would become of the manifests of a List."""
        from kaicore.analysis.trial.submission.answers import SubmitAnswer  # noqa: PLC0415

        body = await self._bytes("clusters", cluster, "submit", query={"at": at}, body=msgspec.json.encode(manifests))
        return msgspec.json.decode(body, type=SubmitAnswer)

    async def position(self, cluster: str, *, at: str = "") -> int:
        """Return the position of a moment of a cluster's log."""
        return (await self._get(dict[str, int], "clusters", cluster, "position", at=at))["position"]

    async def wait_beyond(self, cluster: str, position: int, *, timeout_s: float) -> int:
        """Wait until a cluster's log goes on beyond a position; return its end's position."""
        answer = await self._get(dict[str, int], "clusters", cluster, "position", beyond=position, wait=timeout_s)
        return answer["position"]

    async def _get(self, shape: type[_AnswerT], /, *path: str, **query: object) -> _AnswerT:
        return msgspec.json.decode(await self._bytes(*path, query=query), type=shape)

    async def _bytes(
        self,
        *path: str,
        query: Mapping[str, object] = MappingProxyType({}),
        body: bytes | None = None,
        answer_s: float = ANSWER_S,
    ) -> bytes:
        """Return an answer's body; what is empty or false in the query is left out, and `body` is posted."""
        where = "/".join(urllib.parse.quote(part, safe="") for part in ("v1", *path))
        given = {name: "true" if value is True else value for name, value in query.items() if value}
        url = f"{self._url}/{where}?{urllib.parse.urlencode(given, doseq=True)}"
        method = "GET" if body is None else "POST"
        return await _in_the_background(
            partial(request_api, url, self._token, method=method, body=body, answer_s=answer_s)
        )


async def _in_the_background(ask: Callable[[], bytes]) -> bytes:
    """Return the result of a call in a thread that nothing waits for after Ctrl-C, as it would for `to_thread`'s."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()

    def settle(answer: bytes, error: Exception | None) -> None:
        if answered.done():
            return
        if error is None:
            answered.set_result(answer)
        else:
            answered.set_exception(error)

    def run() -> None:
        answer, problem = b"", None
        try:
            answer = ask()
        except Exception as error:  # raised where it is awaited
            problem = error
        # The loop may be closed by now.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, answer, problem)

    threading.Thread(target=run, daemon=True).start()
    return await answered


def _ends(span: Span) -> dict[str, str]:
    return {"from": span.since, "to": span.until}


#: The ends of a span, as the API calls them.
_ENDS = {"since": "from", "until": "to"}


#: Who answers: an API, or this process from the log. Both have the questions of `Inquiry`.
Answers: TypeAlias = "ApiAnswers | Inquiry"


async def named_api(source: AnswerSource) -> tuple[ApiAnswers, list[str]]:
    """Return the API that is named, and its clusters. Raises ApiUnreachable: it does not answer."""
    api = ApiAnswers(source.api() or "", source.api_token())
    return api, [row.name for row in await api.clusters()]


@asynccontextmanager
async def open_answers(
    source: AnswerSource, *at: str, since: str = "", once: bool = True
) -> AsyncIterator[tuple[Answers, list[str]]]:
    """Yield who answers, and the clusters that are meant (`kai_cli.sources.source`).

    Args:
        at: moments of the question; a cluster without them in its log is left out.
        since: where a range begins, which may be before a log does.
        once: whether one question is asked; a log's states are kept for the next ones otherwise.

    Raises:
        ConfigurationError: there is no log to ask, no such cluster, or none with the moments in its log.
        ApiUnreachable: the API that was named does not answer.
    """
    async with _open(source, once=once) as (answers, there_are):
        clusters = clusters_at(source, there_are, *at, since)
        moments = [moment for moment in at if moment not in ("", "end")]
        if moments and len(clusters) > 1:

            async def positions(cluster: str) -> list[int]:
                return [await answers.position(cluster, at=moment) for moment in moments]

            clusters = [cluster for cluster, _ in await look_in(clusters, positions)]
        yield answers, clusters


async def ask_each(
    source: AnswerSource, at: str, ask: Callable[[Answers, str], Awaitable[_AnswerT]], *, since: str = ""
) -> list[_AnswerT]:
    """Ask about each cluster that is meant; one that has no such subject is left out.

    Raises UnknownSubject: none has it, or the log is empty.
    """
    found: list[_AnswerT] = []
    unknown: list[UnknownSubject] = []
    async with open_answers(source, at, since=since) as (answers, clusters):
        for cluster in clusters:
            try:
                found.append(await ask(answers, cluster))
            except UnknownSubject as error:
                unknown.append(error)
    if not found:
        # The one with a close name, else all that differ.
        close = [error for error in unknown if "did you mean" in str(error)]
        problems = dict.fromkeys(map(str, close[:1] or unknown))
        raise UnknownSubject("; ".join(problems) or "the log is empty")
    return found


@asynccontextmanager
async def _open(source: AnswerSource, *, once: bool) -> AsyncIterator[tuple[Answers, list[str]]]:
    if source.api() is not None:
        try:
            answers_and_clusters = await named_api(source)
        except ApiUnreachable as error:
            if source.api_named:
                raise
            sys.stderr.write(f"kai: {error}; asking the log itself\n")
        else:
            yield answers_and_clusters
            return
    # Folding needs the engine, NumPy and the database's driver.
    from kai_cli.sources.log_access import open_log_answers  # noqa: PLC0415

    async with open_log_answers(source, once=once) as answers:
        yield answers, [row.name for row in await answers.clusters()]
