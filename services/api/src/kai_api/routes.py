"""Routes of the API's answers: from kept states, read models, audits, questions that take long, and trials.

`from` and `to` are moments, as `at` is elsewhere: a position, a time, or a time before the log's end.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import Response
from kaicore.analysis.ask.answers import (
    KIND_CALLED,
    ROWS,
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
    inapplicable_filters,
)
from kaicore.analysis.ask.audits.audit_answers import EvictionAudit, GroupAudit, NodeAudit, PlacementAudit, Span
from kaicore.analysis.ask.counterfactuals.drains import DrainPlan
from kaicore.analysis.ask.counterfactuals.reservations import ReservationPlan, ReservationQuestion, ReservationsAnswer
from kaicore.analysis.ask.hours.report import ReportQuestion, UsageReport, read_prices
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, PolicyInputRow, input_rows, record_input
from kaicore.analysis.ask.projections.jobs import JobHistory, JobQuestion
from kaicore.analysis.ask.projections.questions import (
    DecisionSeries,
    OccupancySeries,
    PodRecords,
    QueueSeries,
    ReadModels,
)
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.ask.standings import Change, PriorityAnswer
from kaicore.analysis.ask.topology.answers import TopologiesAnswer, TopologyAssignments, TopologyQuestion
from kaicore.analysis.json_spelling import Answer
from kaicore.analysis.replay.moments import Range, parse_moment, range_of
from kaicore.analysis.replay.replay import cycle_range
from kaicore.analysis.trial import shadow
from kaicore.analysis.trial.history.alternative import HistoryQuestion, other_rule
from kaicore.analysis.trial.history.comparison import HistoryComparison
from kaicore.analysis.trial.history.page import page
from kaicore.analysis.trial.shadow import ShadowReport
from kaicore.analysis.trial.simulation import Located
from kaicore.analysis.trial.simulation.manifest_text import Reading, read_text
from kaicore.analysis.trial.submission.answers import StartsAnswer, SubmitAnswer, SubmittedGroup
from kaicore.analysis.trial.submission.start_forecasts import StartForecasts
from kaicore.analysis.trial.submission.submit import Submissions
from kaicore.errors import ConfigurationError, InvalidObject, UnknownMoment
from kaicore.ledger.log.port import EventLog
from kaicore.runtime.access.scopes import View, current_caller, current_view

from kai_api.answering import HIDDEN, AnswerRouter, asking, encoded
from kai_api.auth import check_kind, check_sees_hub, for_namespaces, for_recorders, seen_namespaces, seen_of_hub
from kai_api.events import PositionQuery
from kai_api.long_answers import (
    CLIENT_GONE,
    NONE,
    Busy,
    Calibrations,
    LongAnswers,
    NoAnswer,
    Question,
    count_replay,
)

Since = Annotated[str, Query(alias="from")]
Until = Annotated[str, Query(alias="to")]


def _asked(question: Callable[..., object], **otherwise: object) -> Any:
    """Return what reads a question from a request's query, with a parameter for each field.

    Args:
        otherwise: annotations of fields in place of the question's own; None for no parameter.
    """

    def read(**fields: object) -> object:
        return question(**fields)

    fields = inspect.signature(question).parameters
    kept = [one.replace(annotation=otherwise.get(name, one.annotation)) for name, one in fields.items()]
    read.__dict__["__signature__"] = inspect.Signature([one for one in kept if one.annotation is not None])
    return Depends(read)


#: Most rows in one answer.
_MOST_ROWS = 100_000

AskedReservation = Annotated[ReservationQuestion, Depends(ReservationQuestion)]
AskedTopologies = Annotated[TopologyQuestion, Depends(TopologyQuestion)]
AskedDiff = Annotated[DiffQuestion, Depends(DiffQuestion)]
AskedJobs = Annotated[JobQuestion, _asked(JobQuestion, since=Since, until=Until)]
_Limit = Annotated[int, Query(ge=0, le=_MOST_ROWS)]
AskedRows = Annotated[RowSelection, _asked(RowSelection, limit=_Limit, skip=None, namespaces=None)]
Settings = Annotated[tuple[str, ...], Query(alias="set", description="KEY=VALUE of another rule")]


def make_audit_router(inquiry: Inquiry) -> APIRouter:
    """Make the routes."""
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/audit/placements")
    async def placements(cluster: str, *, node: str = "", since: Since = "", until: Until = "") -> PlacementAudit:
        """Compare predicted placements with observed ones, by node, policy, cause and hour."""
        return await inquiry.audit_placements(cluster, Span(since=since, until=until), node=node)

    @router.get("/v1/clusters/{cluster}/audit/nodes/{node}")
    async def node(cluster: str, node: str, *, since: Since = "", until: Until = "", gpu: str = "") -> NodeAudit:
        """Return everything that held a node, and by which decision."""
        return await inquiry.audit_node(cluster, node, Span(since=since, until=until), gpu=gpu)

    @router.get("/v1/clusters/{cluster}/audit/evictions")
    async def evictions(cluster: str, *, namespace: str = "", since: Since = "", until: Until = "") -> EvictionAudit:
        """Return every eviction that was decided: of which pod, for whom, why, and what would have spared it."""
        return await inquiry.audit_evictions(cluster, Span(since=since, until=until), namespace=namespace)

    @router.get("/v1/clusters/{cluster}/audit/groups/{namespace}/{name}")
    @for_namespaces
    async def group(cluster: str, namespace: str, name: str, *, since: Since = "", until: Until = "") -> GroupAudit:
        """Return what was decided about a group, by whom and with which rules."""
        return await inquiry.audit_group(cluster, namespace, name, Span(since=since, until=until))

    return router


def make_history_router(history: ReadModels) -> APIRouter:  # long: a small handler for each route
    """Make the routes."""
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/history/pods")
    @for_namespaces
    async def pods(
        cluster: str,
        *,
        namespace: str = "",
        name: str = "",
        group: str = "",
        queue: str = "",
        node: str = "",
        after: str = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> PodRecords:
        """Return what became of pods, those that are gone included, the last one first."""
        return await history.pods(
            cluster,
            namespaces=seen_namespaces(),
            namespace=namespace,
            name=name,
            group=group,
            queue=queue,
            node=node,
            after=after,
            limit=limit,
        )

    @router.get("/v1/clusters/{cluster}/history/jobs")
    @for_namespaces
    async def jobs(cluster: str, wanted: AskedJobs) -> JobHistory:
        """Return what became of jobs: by attempts where one is named."""
        found = await history.jobs(cluster, wanted, namespaces=seen_namespaces())
        if found is None:
            raise HTTPException(503, f"cluster {cluster}: its read models are not made yet")
        return found

    @router.get("/v1/clusters/{cluster}/series/occupancy")
    async def occupancy(cluster: str, *, since: Since = "", until: Until = "", step: str = "") -> OccupancySeries:
        """Return how many GPUs were held, free, stranded and waited for, step by step."""
        return await history.occupancy(cluster, since=since, until=until, step=step)

    @router.get("/v1/clusters/{cluster}/series/queues")
    async def queues(cluster: str, *, queue: str = "", since: Since = "", until: Until = "") -> QueueSeries:
        """Return what queues used, asked for and deserved, by the hour."""
        return await history.queues(cluster, queue=queue, since=since, until=until)

    @router.get("/v1/clusters/{cluster}/series/decisions")
    async def decisions(cluster: str, *, since: Since = "", until: Until = "") -> DecisionSeries:
        """Return what was decided, and how often kubelets did as predicted, by the hour."""
        return await history.decisions(cluster, since=since, until=until)

    return router


#: Bytes of a question at most: it is an argument of the process that answers.
_MOST_BYTES = 100_000

#: The report's styles are in it; nothing else is allowed.
_HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}


def read_question(body: bytes) -> str:
    """Return a question as text, once it can be read.

    Raises:
        InvalidObject: it is none.
        HTTPException: 413, it is too long.
    """
    if len(body) > _MOST_BYTES:
        raise HTTPException(413, f"a question has {_MOST_BYTES:,} bytes at most")
    try:
        return msgspec.json.encode(msgspec.json.decode(body or b"{}", type=HistoryQuestion)).decode()
    except msgspec.DecodeError as error:
        raise InvalidObject("question", "body", body[:100].decode(errors="replace"), str(error)) from error


def _compared_page(body: bytes) -> str:
    return page(msgspec.json.decode(body, type=HistoryComparison))


def _shadow_page(body: bytes) -> str:
    report = msgspec.json.decode(body, type=ShadowReport)
    assert report.trajectory is not None
    return shadow.page(report, report.trajectory)


def _as_page(response: Response, page_of: Callable[[bytes], str]) -> Response:
    """Return an answer as a report; as it is where it is a refusal."""
    if response.status_code != 200:
        return response
    return Response(page_of(bytes(response.body)), media_type="text/html; charset=utf-8", headers=_HEADERS)


#: Seconds after which a client may ask again what too many others are asking.
_RETRY_AFTER = {"Retry-After": "10"}

_From = Annotated[str | None, Query(alias="from", description="from this position or time on")]
_To = Annotated[str | None, Query(alias="to", description="up to this position or time")]


def make_long_router(  # long: a route each
    log: EventLog, long_answers: LongAnswers, calibrations: Calibrations
) -> AnswerRouter:
    """Make the routes."""
    router = AnswerRouter()

    async def ask(
        question: Question, cluster: str, request: Request, options: Mapping[str, str | None] = NONE
    ) -> Response:
        return await answered(long_answers.ask(question, cluster, options, gone=client_gone(request)))

    @router.get("/v1/clusters/{cluster}/replay")
    async def replay(
        cluster: str,
        request: Request,
        cycle: Annotated[str | None, Query(description="only this one: a number, or SHARD/NUMBER")] = None,
        since: _From = None,
        until: _To = None,
    ) -> Response:
        """Run every recorded cycle again, or those of a range, and compare."""
        wanted = await _replayed(log, cluster, cycle, since, until)
        options = {} if wanted is None else {"from": str(wanted.first), "to": str(wanted.last)}
        response = await ask(Question.REPLAY, cluster, request, options)
        if response.status_code == 200:
            count_replay(cluster, bytes(response.body))
        return response

    @router.get("/v1/clusters/{cluster}/audit")
    async def audit(cluster: str, request: Request) -> Response:
        """Check the log's chain, its gaps and its promises."""
        return await ask(Question.AUDIT, cluster, request)

    @router.post("/v1/clusters/{cluster}/what-if", openapi_extra=asking(HistoryQuestion))
    async def what_if(cluster: str, request: Request, format: Literal["json", "html"] = "json") -> Response:  # noqa: A002
        """Simulate a window of history again with something different, and compare what comes of it."""
        question = read_question(await request.body())
        response = await ask(Question.WHAT_IF, cluster, request, {"question": question})
        return _as_page(response, _compared_page) if format == "html" else response

    @router.get("/v1/clusters/{cluster}/shadow-report")
    async def shadow_report(
        cluster: str,
        request: Request,
        *,
        scheduler: Annotated[
            str | None, Query(description="the scheduler of the pods; needed where several are shadowed")
        ] = None,
        since: _From = None,
        until: _To = None,
        simulate: Annotated[bool, Query(description="simulate the window, too; it takes most of the time")] = True,
        format: Literal["json", "html"] = "json",  # noqa: A002
    ) -> ShadowReport | Response:
        """Compare what a shadow decided with what the other scheduler did, pod by pod, and simulate the window."""
        if format == "html" and not simulate:
            raise HTTPException(400, "format: html shows the simulated window; leave out simulate=false")
        options = {"scheduler": scheduler, "from": since, "to": until, "simulate": "yes" if simulate else None}
        response = await ask(Question.SHADOW, cluster, request, options)
        return _as_page(response, _shadow_page) if format == "html" else response

    @router.get("/v1/clusters/{cluster}/report")
    async def report(
        cluster: str,
        request: Request,
        *,
        by: Annotated[str, Query(description="team, user, namespace, queue, model, or label:KEY")] = "queue",
        month: Annotated[str, Query(description="by UTC, such as 2026-11")] = "",
        since: _From = None,
        until: _To = None,
        price: Annotated[list[str] | None, Query(description="of a GPU-hour: MODEL=AMOUNT; `*` for others")] = None,
    ) -> UsageReport | Response:
        """Say who held how many GPU-hours, by right or borrowed, and what there was besides."""
        prices = read_prices([(model, amount) for model, _, amount in (one.rpartition("=") for one in price or [])])
        question = ReportQuestion(by, month, since or "", until or "", prices)
        question.check()
        return await ask(Question.REPORT, cluster, request, {"question": msgspec.json.encode(question).decode()})

    @router.get("/v1/clusters/{cluster}/calibration")
    async def calibration(cluster: str, request: Request, *, renew: bool = False) -> Response:
        """Return how often forecasts of starts came true; measured now where it never was, or with `renew`."""
        kept = None if renew else await calibrations.kept(cluster)
        return (
            await answered(calibrations.measure(cluster, gone=client_gone(request))) if kept is None else encoded(kept)
        )

    return router


async def _replayed(
    log: EventLog, cluster: str, cycle: str | None, since: str | None, until: str | None
) -> Range | None:
    """Return the range that is asked for; None for the whole log.

    It is looked up before a process is started, so that what there is not is answered at once.

    Raises:
        EventsRetired: it begins in a month that was retired.
        UnknownMoment: there is no such range, or this is no name of a cycle.
        UnknownSubject: there is no such cycle.
    """
    if cycle is not None and (since is not None or until is not None):
        raise UnknownMoment("cycle means one cycle: it goes without from and to")
    if cycle is not None:
        return await cycle_range(log, cluster, cycle)
    if since is None and until is None:
        return None
    begin, end = (None if text is None else parse_moment(text) for text in (since, until))
    return await range_of(log, cluster, since=begin, until=end)


async def answered(question: Awaitable[object]) -> Response:
    """Return an answer that takes long, or the status that says why there is none."""
    try:
        answer = await question
    except NoAnswer as error:
        if error.status == CLIENT_GONE:
            return Response(status_code=CLIENT_GONE)
        raise HTTPException(error.status, str(error), _RETRY_AFTER if isinstance(error, Busy) else None) from error
    return Response(answer, media_type="application/json") if isinstance(answer, bytes) else encoded(answer)


async def client_gone(request: Request) -> None:
    """End when a client does not wait for its answer any more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


#: Most seconds that a client may wait for news.
_MOST_WAIT_S = 60.0

#: Lists with rows in a namespace.
_NAMESPACED = frozenset({"pods", "groups"})

_CURSOR = re.compile(r"([0-9]{1,18})-([0-9]{1,9})", re.ASCII)


class Position(Answer, frozen=True, kw_only=True):
    """The end of a log."""

    position: int


def time_now(at: str) -> int:
    """Return the time, microseconds since the epoch, where a log goes on; 0 for a moment of the past."""
    return 0 if at else time.time_ns() // 1000


def read_rule(settings: Sequence[str]) -> Change | None:
    """Return the rule of other settings; None without any.

    Raises:
        HTTPException: 400, there is no such setting, or it cannot have the value.
    """
    try:
        return other_rule(settings)
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error


def make_router(inquiry: Inquiry, forecasts: StartForecasts) -> APIRouter:  # long: a small handler for each route
    """Make the routes that answer from kept states."""
    router = AnswerRouter()

    @router.get("/v1/clusters")
    async def clusters() -> list[ClusterRow]:
        """List the clusters that have a log."""
        views = ((row, current_caller().view(row.name)) for row in await inquiry.clusters())
        # The numbers of dispatches are those of all teams.
        return [
            row if view.whole else msgspec.structs.replace(row, waiting=0, running=0)
            for row, view in views
            if view is not None
        ]

    @router.get("/v1/dispatches")
    async def dispatches(*, pending: bool = False) -> list[DispatchRow]:
        """List what was submitted to the hub, the oldest first."""
        check_sees_hub()
        return await inquiry.dispatches(pending=pending)

    @router.get("/v1/dispatches/{name}/why")
    async def why_dispatch(name: str) -> DispatchWhy:
        """Say in which cluster a dispatch is, and why."""
        check_sees_hub()
        return await inquiry.why_dispatch(name)

    @router.get("/v1/clusters/{cluster}")
    async def cluster_summary(cluster: str, *, at: str = "") -> ClusterSummary:
        """Return a cluster in figures."""
        return await inquiry.cluster(cluster, at=at)

    @router.get("/v1/clusters/{cluster}/position")
    @for_namespaces
    async def position(
        cluster: str,
        *,
        beyond: PositionQuery = 0,
        wait: Annotated[float, Query(ge=0, le=_MOST_WAIT_S)] = 0,
        at: str = "",
    ) -> Position:
        """Return the position of the log's end, or of a moment; wait until the end is beyond another position."""
        if at:
            return Position(position=await inquiry.position(cluster, at=at))
        return Position(position=await inquiry.wait_beyond(cluster, beyond, timeout_s=wait))

    @router.get("/v1/clusters/{cluster}/why/{kind}/{name}")
    @for_namespaces
    async def why(cluster: str, kind: str, name: str, namespace: str = "", at: str = "") -> Why:
        """Say why something is as it is: a pod, what owns pods, a group, a queue, a node."""
        kind = KIND_CALLED.get(kind.lower(), kind)
        check_kind(kind, namespace)
        return seen_of_hub(await forecasts.why(cluster, kind, namespace, name, at=at, now=time_now(at)))

    @router.get("/v1/clusters/{cluster}/pods/{namespace}/{name}/why")
    @for_namespaces
    async def why_pod(cluster: str, namespace: str, name: str, at: str = "") -> Why:
        """Say why a pod is where it is, or nowhere."""
        return seen_of_hub(await forecasts.why(cluster, "Pod", namespace, name, at=at))

    @router.get("/v1/clusters/{cluster}/diff")
    async def diff(cluster: str, wanted: AskedDiff, *, before: Since, after: Until = "end") -> DiffAnswer:
        """Return what is different between two moments: what is new, gone or changed, field by field."""
        return await inquiry.diff(cluster, before, after, wanted)

    @router.get("/v1/clusters/{cluster}/priority")
    async def priority(cluster: str, *, queue: str = "", at: str = "") -> PriorityAnswer:
        """Return the order of waiting groups, and what puts each before the next."""
        return await inquiry.priority(cluster, queue=queue, at=at)

    @router.get("/v1/clusters/{cluster}/reservations")
    async def reservations(cluster: str, *, at: str = "") -> ReservationsAnswer:
        """Return the reservations of nodes that stand, with what is in their way."""
        return await inquiry.reservations(cluster, at=at, now=time_now(at))

    @router.get("/v1/clusters/{cluster}/planned-reservation")
    async def planned_reservation(cluster: str, asked: AskedReservation) -> ReservationPlan:
        """Return what a reservation would be, and what it would displace, before it is made."""
        return await inquiry.planned_reservation(cluster, asked)

    @router.get("/v1/clusters/{cluster}/planned-drain")
    async def planned_drain(cluster: str, asked: AskedReservation) -> DrainPlan:
        """Return which groups a drain would touch, what each loses and where it goes on, before it is made."""
        return await inquiry.planned_drain(cluster, asked)

    @router.get("/v1/clusters/{cluster}/who")
    @for_namespaces
    async def who(cluster: str, *, queue: str, settings: Settings = (), at: str = "") -> GpuHolders:
        """Say who has the GPUs that a queue is owed, by which rule, and what another rule would say."""
        change, seen = read_rule(settings), seen_namespaces()
        return await inquiry.who(cluster, queue, at=at, settings=settings, change=change, namespaces=seen)

    @router.get("/v1/clusters/{cluster}/topologies")
    async def topologies(cluster: str, wanted: AskedTopologies, at: str = "") -> TopologiesAnswer:
        """Return what the domains of the topologies have, use, and still have room for."""
        return await inquiry.topologies(cluster, wanted, at=at)

    @router.get("/v1/clusters/{cluster}/groups/{kind}/{namespace}/{name}/topology-assignment")
    async def topology_assignment(
        cluster: str, kind: str, namespace: str, name: str, *, version: str = "v1beta2", at: str = ""
    ) -> TopologyAssignments:
        """Return where the pods of a group are in its topology, as Kueue spells it."""
        return await inquiry.topology_assignments(cluster, kind, namespace, name, version=version, at=at)

    @router.get("/v1/clusters/{cluster}/{kind}")
    @for_namespaces
    async def listing(cluster: str, kind: str, wanted: AskedRows, *, after: str = "", at: str = "") -> Listing:
        """List pods, groups, queues, nodes or cycles; `next` is the next page's `after`, of the same moment."""
        if kind not in ROWS:
            raise HTTPException(404, f"no such list: {kind}; there are: {', '.join(ROWS)}")
        seen = seen_namespaces()
        if seen is not None and kind not in _NAMESPACED:
            raise HTTPException(403, f"{kind} are for callers who may see all of cluster {cluster}")
        skip, at = _cursor(after, at)
        wanted = msgspec.structs.replace(wanted, skip=skip, namespaces=seen)
        if wrong := inapplicable_filters(kind, wanted):
            raise HTTPException(400, f"{kind} cannot be filtered by {', '.join(wrong)}")
        return await forecasts.listing(cluster, kind, wanted, at=at, now=time_now(at))

    return router


def _cursor(after: str, at: str) -> tuple[int, str]:
    """Return how many rows a page skips, and the moment that it is of: a page's cursor is `POSITION-ROWS`."""
    if not after:
        return 0, at
    match = _CURSOR.fullmatch(after)
    if match is None:
        raise HTTPException(400, f"after: is not the `next` of a list: {after[:100]!r}")
    if at:
        raise HTTPException(
            400, "after, at: a page that follows another is of the same moment, so at is not named again"
        )
    return int(match[2]), match[1]


#: How a request's documents are called in problems.
_BODY = "request"

_OBJECT = {"schema": {"type": "object", "description": "An object of Kubernetes, or a List of them"}}
_DESCRIBED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "Manifests: one JSON object or List, or documents of YAML",
        "content": {"application/json": _OBJECT, "application/yaml": {"schema": {"type": "string"}}},
    }
}


def make_submission_router(submissions: Submissions) -> APIRouter:
    """Make the route that says what would become of manifests."""
    router = AnswerRouter()

    @router.post("/v1/clusters/{cluster}/submit", openapi_extra=_DESCRIBED)
    @for_namespaces
    async def submit(cluster: str, request: Request, at: str = "") -> SubmitAnswer:
        """Say what would become of manifests: where they start now, whom that evicts, or when they are likely to.

        Nothing is created, and nothing is recorded.
        """
        reading = Reading()
        read_text(reading, _BODY, await request.body(), is_json=None, named=True)
        if reading.problems and not reading.objects:
            raise InvalidObject("manifests", "body", "", "; ".join(map(str, reading.problems)))
        _check_namespaces(reading.objects, current_view())
        answer = await submissions.submit(cluster, reading.objects, at=at)
        problems = [*map(str, reading.problems), *answer.problems]
        groups = [_seen(group, current_view()) for group in answer.groups]
        return msgspec.structs.replace(answer, problems=problems, groups=groups)

    @router.get("/v1/clusters/{cluster}/start/{kind}/{name}")
    @for_namespaces
    async def start(cluster: str, kind: str, name: str, namespace: str = "default", at: str = "") -> StartsAnswer:
        """Say when the pods of something that wait are likely to start."""
        if not current_view().sees(namespace):
            raise HTTPException(403, f"namespace {namespace!r} is not yours to ask about")
        return await submissions.starts(cluster, KIND_CALLED.get(kind.lower(), kind), namespace, name, at=at)

    return router


def _check_namespaces(objects: Sequence[Located], view: View) -> None:
    """Refuse to answer for namespaces that the caller does not see, and for what is in none.

    Raises:
        HTTPException: 403.
    """
    if view.whole:
        return
    for item in objects:
        metadata = item.object.get("metadata")
        namespace = (metadata.get("namespace") or "default") if isinstance(metadata, dict) else ""
        if not isinstance(namespace, str) or not view.sees(namespace):
            raise HTTPException(403, f"{item.where}: namespace {namespace!r} is not yours to submit to")


def _seen(group: SubmittedGroup, view: View) -> SubmittedGroup:
    """Return a group without the names of pods that are evicted in namespaces that the caller does not see."""
    evictions = [
        one if view.sees(one.namespace) else msgspec.structs.replace(one, namespace=HIDDEN, name=HIDDEN, group=HIDDEN)
        for one in group.evictions
    ]
    return msgspec.structs.replace(group, evictions=evictions)


def make_policy_inputs_router(inquiry: Inquiry, recording: EventLog | None) -> AnswerRouter:
    """Make the routes. `recording`: the log, as a role that may append such facts; None where nobody may."""
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/policy-inputs")
    async def inputs(cluster: str, *, at: str = "") -> list[PolicyInputRow]:
        """List the facts from outside that policies may look at."""
        return input_rows((await inquiry.state_at(cluster, at)).policy_inputs)

    @router.post("/v1/clusters/{cluster}/policy-inputs", openapi_extra=asking(PolicyInputRequest))
    @for_recorders
    async def record(cluster: str, request: Request) -> PolicyInputRow:
        """Record a fact from outside for policies; a request that names itself may come again."""
        if recording is None:
            raise HTTPException(501, "this API records nothing: it has no KAI_INPUTS_DATABASE_URL")
        body = await request.body()
        try:
            asked = msgspec.json.decode(body, type=PolicyInputRequest)
        except msgspec.DecodeError as error:
            raise InvalidObject("policy input", "body", body[:100].decode(errors="replace"), str(error)) from error
        known, by = (await inquiry.state_at(cluster)).policy_inputs, current_caller().name
        return await record_input(recording, cluster, asked, known, by=by, actor=f"caller/{by}")

    return router
