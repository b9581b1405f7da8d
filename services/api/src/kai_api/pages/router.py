"""Routes of the dashboard. A page is a function of the state at one position of a log: `?at=`, or the log's end."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from kaicore.analysis.ask.answers import CycleRow, RowSelection
from kaicore.analysis.ask.listing import list_cycles
from kaicore.analysis.ask.projections.questions import Decisions, ReadModels
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.ask.standings import gpu_holders
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.analysis.trial.history.alternative import BEST_POLICIES, HistoryQuestion
from kaicore.analysis.trial.history.comparison import HistoryComparison
from kaicore.analysis.trial.shadow import ShadowReport
from kaicore.analysis.trial.submission.start_forecasts import StartForecasts
from kaicore.errors import UnknownMoment
from kaicore.ledger.log.port import Filter
from kaicore.rules.hub.hub_state import without_hub
from kaicore.runtime.access.scopes import current_caller, current_view

from kai_api.auth import check_kind, check_sees_hub, for_namespaces, seen_namespaces, seen_of_hub, sees_hub
from kai_api.board import Board
from kai_api.live import LiveLog
from kai_api.long_answers import LongAnswers, Question
from kai_api.pages.charts import (
    BY_REPORTS,
    BY_STATE,
    MOST_QUEUES,
    SPANS,
    ChartsPage,
    add_reports,
    chart_of_cluster,
    charts_of_hours,
    charts_of_reports,
    charts_of_rows,
    times_of,
)
from kai_api.pages.cycles import cycle_page, cycle_steps, predictions
from kai_api.pages.frame import MOST_HITS, PageRoute, Places, page, search, static_file
from kai_api.pages.lists import PageNumber, Wanted, list_page, reservations_page
from kai_api.pages.node import claim_lines, node_page
from kai_api.pages.overview import COLOURS, cluster_figures, domain_page, idle_segments, overview, topology_map
from kai_api.pages.pods import (
    MOST_LANES,
    own_page,
    shadow_page,
    story,
    visible_line,
    visible_story,
    visible_why,
    waiting_line,
)
from kai_api.pages.queues import queue_lines, queue_resources, queues_page
from kai_api.routes import Settings, answered, client_gone, read_rule, time_now

#: Groups that are shown of the order of a cycle.
_GROUPS = 1000
#: Dispatches of the hub that are shown, the youngest first.
_DISPATCHES = 200
#: Hours of predictions that are shown.
_HOURS = 48
#: Cycles that the overview shows, and a page of the list.
_CYCLES, _PAGE_CYCLES = 5, 50
#: Seconds of silence after which a live page gets a sign that it is still connected.
_IDLE_S = 15.0
_Wanted = Annotated[Wanted, Depends(Wanted)]
_Position = Annotated[int, Query(ge=0, le=2**63 - 1)]


def make_pages(  # long: one small handler for each page
    inquiry: Inquiry,
    forecasts: StartForecasts,
    live: LiveLog,
    models: ReadModels | None,
    board: Board,
    *,
    long_answers: LongAnswers,
) -> APIRouter:
    """Make the routes of the dashboard.

    Args:
        inquiry: of the log.
        forecasts: of what waits.
        live: by which live pages follow the ends of logs.
        models: what was over time; None where that is not kept.
        board: what pages show besides the log.
        long_answers: compares a shadow with what the other scheduler did.
    """
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    log, places = inquiry.log, Places(inquiry, board.services)

    async def ask(question: Question, cluster: str, options: Mapping[str, str], request: Request) -> Response:
        return await answered(long_answers.ask(question, cluster, options, gone=client_gone(request)))

    add_reports(router, log, places)

    @router.get("/")
    async def fleet_page(request: Request, at: str = "") -> Response:
        figures = []
        clusters = without_hub(await log.clusters())
        for cluster in current_caller().entirely_visible(clusters):
            try:
                figures.append(cluster_figures(await inquiry.state_at(cluster, at)))
            except UnknownMoment:
                # Another cluster's log may go back further, or be ahead.
                if at.strip().isdigit():
                    raise
        views = {cluster: current_caller().view(cluster) for cluster in clusters}
        parts_of = {name: sorted(view.namespaces) for name, view in views.items() if view and not view.whole}
        states = {row.name: row.state for row in await inquiry.hub.clusters(now=time.time_ns() // 1000)}
        return page(
            request,
            "fleet.html",
            clusters=figures,
            parts_of=parts_of,
            at=at,
            states={} if at else states,
            hub=sees_hub(),
        )

    @router.get("/hub")
    async def hub_page(request: Request, dispatch: str = "") -> Response:
        check_sees_hub()
        clusters = await inquiry.hub.clusters(now=time.time_ns() // 1000)
        rows = (await inquiry.hub.dispatches())[::-1][:_DISPATCHES]
        why = await inquiry.hub.why(dispatch) if dispatch else None
        return page(request, "hub.html", clusters=clusters, dispatches=rows, why=why)

    @router.get("/static/{name}")
    async def static(request: Request, name: str, v: str = "") -> Response:
        answer = static_file(request, name)
        if answer is None:
            raise HTTPException(404, f"no file {name!r}")
        return answer

    @router.get("/clusters/{cluster}/news")
    @for_namespaces
    async def news(cluster: str, after: _Position) -> Response:
        await live.check(cluster, after)
        return StreamingResponse(
            _positions(live, cluster, after, board),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @router.get("/clusters/{cluster}")
    @for_namespaces
    async def cluster_page(request: Request, cluster: str, at: str = "") -> Response:
        place = await places.find(request, cluster, at)
        if not (view := current_view()).whole:
            frame, state = await place.look()
            return page(request, "pods/own.html", frame=frame, model=own_page(state, view))
        cycles = await _cycles(inquiry, cluster, head=place.position, limit=_CYCLES)
        frame, state = await place.look()
        return page(request, "overview.html", frame=frame, model=overview(state, cycles))

    @router.get("/clusters/{cluster}/waiting")
    @for_namespaces
    async def waiting_page(
        request: Request, cluster: str, at: str = "", queue: str = "", number: PageNumber = 1
    ) -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        line = waiting_line(state, queue=queue, namespaces=seen_namespaces(), number=number)
        model = visible_line(line, current_view())
        return page(request, "pods/waiting.html", frame=frame, model=model)

    @router.get("/clusters/{cluster}/map")
    async def map_page(
        request: Request, cluster: str, *, at: str = "", topology: str = "", level: str = "", colour: str = ""
    ) -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        model = topology_map(state, topology=topology, level=level, colour=colour)
        return page(request, "nodes/map.html", frame=frame, model=model, colours=COLOURS)

    @router.get("/clusters/{cluster}/domain")
    async def domain(
        request: Request,
        cluster: str,
        path: str,
        *,
        at: str = "",
        topology: str = "",
        colour: str = "",
        number: PageNumber = 1,
    ) -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        model = domain_page(state, topology=topology, path=path, colour=colour, number=number)
        return page(request, "nodes/domain.html", frame=frame, model=model, colours=COLOURS)

    @router.get("/clusters/{cluster}/nodes/{node}")
    async def node(request: Request, cluster: str, node: str, at: str = "") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "nodes/node.html", frame=frame, model=node_page(state, node, now=time_now(at)))

    @router.get("/clusters/{cluster}/queues")
    async def queues(request: Request, cluster: str, at: str = "", resource: str = "gpu") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "queues.html", frame=frame, model=queues_page(state, resource=resource))

    @router.get("/clusters/{cluster}/charts")
    async def charts(
        request: Request, cluster: str, *, at: str = "", until: str = "", resource: str = "gpu", span: str = "6h"
    ) -> Response:
        place = await places.find(request, cluster, at)
        frame, _ = await place.look()
        model = await _charts(inquiry, models, cluster, until or at, resource=resource, span=span)
        width = model.ended - model.began
        mark = 100 * (frame.recorded_at - model.began) / width if frame.recorded_at <= model.ended else -1
        model = replace(model, mark=round(mark, 2) if 0 <= mark <= 100 else None)
        return page(request, "charts.html", frame=frame, model=model)

    def listing(kind: str, path: str = "/clusters/{cluster}/") -> None:
        """Serve a list."""

        async def rows(request: Request, cluster: str, wanted: _Wanted, at: str = "") -> Response:
            frame, state = await (await places.find(request, cluster, at)).look()
            return page(request, "list.html", frame=frame, model=list_page(state, kind, wanted, current_view()))

        router.add_api_route(path + kind, rows if kind == "nodes" else for_namespaces(rows), methods=["GET"])

    for kind in ("jobs", "pods", "nodes"):
        listing(kind)

    @router.get("/clusters/{cluster}/reservations")
    async def reservations(request: Request, cluster: str, at: str = "") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "reservations.html", frame=frame, model=reservations_page(state, now=time_now(at)))

    @router.get("/clusters/{cluster}/services")
    async def services(request: Request, cluster: str, at: str = "") -> Response:
        await board.services.wanted()
        frame, _ = await (await places.find(request, cluster, at)).look()
        return page(
            request,
            "services.html",
            frame=frame,
            lines=board.services.lines,
            known=board.services.file or board.services.host,
        )

    @router.get("/clusters/{cluster}/who")
    @for_namespaces
    async def who(request: Request, cluster: str, queue: str, settings: Settings = (), at: str = "") -> Response:
        place = await places.find(request, cluster, at)
        settings = tuple(one for one in settings if one.strip())
        change = read_rule(settings)
        frame, state = await place.look()
        model = gpu_holders(state, queue, namespaces=seen_namespaces(), settings=settings, change=change)
        return page(request, "who.html", frame=frame, model=model)

    @router.get("/clusters/{cluster}/cycles")
    async def cycles_page(request: Request, cluster: str, at: str = "", before: _Position = 0) -> Response:
        place = await places.find(request, cluster, at)
        head = min(before or place.position, place.position)
        rows = await _cycles(inquiry, cluster, head=head, limit=_PAGE_CYCLES)
        frame, _ = await place.look()
        older = rows[-1].position - 1 if len(rows) == _PAGE_CYCLES else 0
        return page(
            request, "cycles/cycles.html", frame=frame, model={"cycles": rows, "older": older, "first": not before}
        )

    @router.get("/clusters/{cluster}/cycles/{position}")
    async def cycle(
        request: Request, cluster: str, position: int, step: Annotated[int, Query(ge=0, le=10**6)] = 0, at: str = ""
    ) -> Response:
        place = await places.find(request, cluster, at)
        steps = await cycle_steps(log, cluster, position)
        chosen = steps.step_at(place.position) if at else steps.step(step)
        placement = None
        if chosen.verb == "place":
            namespace, _, name = chosen.subject.partition("/")
            placement = (await inquiry.why(cluster, "Pod", namespace, name, at=str(chosen.position))).placement
        frame, state = await (await places.find(request, cluster, str(chosen.position))).look()
        frame = replace(frame, query=(), live_path=f"{frame.home}/cycles")
        model = cycle_page(steps, chosen.number, state)
        return page(request, "cycles/cycle.html", frame=frame, model=model, placement=placement)

    @router.get("/clusters/{cluster}/cycles/{position}/order")
    async def cycle_order(request: Request, cluster: str, position: int, at: str = "") -> Response:
        steps = await cycle_steps(log, cluster, position)
        groups = await inquiry.tried_groups(cluster, steps.cycle)
        frame, _ = await (await places.find(request, cluster, at or str(steps.cycle.input_position))).look()
        model = {"steps": steps, "groups": groups[:_GROUPS], "total": len(groups)}
        return page(request, "cycles/order.html", frame=replace(frame, live_path=f"{frame.home}/cycles"), model=model)

    @router.get("/clusters/{cluster}/predictions")
    async def predictions_page(request: Request, cluster: str, at: str = "") -> Response:
        place = await places.find(request, cluster, at)
        hours: list[Decisions] = []
        if models is not None:
            series = (await models.decisions(cluster, until=str(place.position))).items
            hours = [one for one in series if one.agreed + one.contradicted + one.rejected][-_HOURS:]
        frame, state = await place.look()
        return page(request, "predictions.html", frame=frame, model=predictions(state, hours))

    @router.get("/clusters/{cluster}/segments")
    async def segments_page(request: Request, cluster: str, at: str = "", sizes: str = "") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "nodes/segments.html", frame=frame, model=idle_segments(state, sizes=sizes), sizes=sizes)

    @router.get("/clusters/{cluster}/shadow")
    async def shadow(request: Request, cluster: str, at: str = "", compare: str = "") -> Response:
        place, report = await places.find(request, cluster, at), None
        if compare:
            options = {"scheduler": compare, "to": str(place.position)}
            answer = await ask(Question.SHADOW, cluster, options, request)
            if answer.status_code != HTTPStatus.OK:
                return answer
            report = msgspec.json.decode(answer.body, type=ShadowReport)
        frame, state = await place.look()
        return page(request, "pods/shadow.html", frame=frame, model=shadow_page(state), report=report)

    @router.get("/clusters/{cluster}/policies")
    async def policies(request: Request, cluster: str, at: str = "", window: str = "") -> Response:
        frame, _ = await (await places.find(request, cluster, at)).look()
        compared = None
        if window:
            if window not in SPANS:
                raise HTTPException(400, f"window: {window[:20]!r} is none of {', '.join(SPANS)}")
            since = time_text(frame.recorded_at - SPANS[window] * 1_000_000)
            question = HistoryQuestion(since=since, until=str(frame.position), policies=True)
            options = {"question": msgspec.json.encode(question).decode()}
            answer = await ask(Question.WHAT_IF, cluster, options, request)
            if answer.status_code != HTTPStatus.OK:
                return answer
            compared = msgspec.json.decode(answer.body, type=HistoryComparison)
        parts = {"windows": tuple(SPANS), "window": window, "policies": BEST_POLICIES}
        return page(request, "policies.html", frame=frame, compared=compared, model=parts)

    @router.get("/clusters/{cluster}/search")
    @for_namespaces
    async def search_page(request: Request, cluster: str, q: str = "", at: str = "") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        hits = search(state, q, current_view())
        if len(hits) == 1:
            return RedirectResponse(frame.link(*hits[0].parts, **dict(hits[0].query)), 303)
        return page(request, "search.html", frame=frame, hits=hits, q=q, most=MOST_HITS)

    @router.get("/clusters/{cluster}/stories/{kind}/{namespace}/{name}")
    @for_namespaces
    async def story_page(
        request: Request, cluster: str, kind: str, namespace: str, name: str, *, at: str = "", trials: bool = False
    ) -> Response:
        check_kind(kind, namespace)
        place = await places.find(request, cluster, at)
        # Trials and forecasts take seconds: they are for those who ask for them, as scripts do behind the first paint.
        trials = trials or "x-whole" in request.headers
        moment = str(place.position) if at else ""
        why = seen_of_hub(await forecasts.why(cluster, kind, namespace, name, at=moment, trials=trials))
        if kind == "Pod":
            where = Filter(subject=f"{namespace}/{name}")
        else:
            where = Filter(streams=tuple(f"pod/{row.uid}" for row in why.pods[: MOST_LANES + 1]))
        events = [event async for event in events_of(log, cluster, upto=why.position, where=where)]
        frame, state = await place.look()
        view = current_view()
        model = visible_story(story(visible_why(why, view), events, now=state.recorded_at), view)
        entry = state.pods.get(why.uid)
        claims = () if entry is None else claim_lines(state, entry.pod)
        placed = "" if entry is None else entry.node
        links = board.links_of(cluster=cluster, kind=kind, namespace=namespace, name=name, node=placed)
        return page(request, "pods/story.html", frame=frame, model=model, claims=claims, links=links, trials=trials)

    return router


async def _positions(live: LiveLog, cluster: str, after: int, board: Board) -> AsyncIterator[str]:
    """Send where a log ends whenever it grows, and which services are not well while it does not, as events."""
    whole = current_view().whole
    async for events in live.follow(cluster, after=after, idle_s=_IDLE_S):
        if events:
            yield f"id: {events[-1].position}\ndata: {events[-1].position}\n\n"
        else:
            if whole:
                await board.services.wanted()
            unwell = board.services.unwell if whole else ()
            yield f"event: services\ndata: {json.dumps(unwell)}\n\n"


async def _charts(
    inquiry: Inquiry, models: ReadModels | None, cluster: str, until: str, *, resource: str, span: str
) -> ChartsPage:
    """Return charts up to a moment; of which spans there are any depends on what is kept."""
    if span not in SPANS:
        raise HTTPException(400, f"span: {span[:20]!r} is none of {', '.join(SPANS)}")
    state = await inquiry.state_at(cluster, until)
    # The state changes with the next `await`: what is asked of it is asked first.
    ended, position, resources = state.recorded_at, state.position, queue_resources(state)
    resource = resource if resource in resources else resources[0]
    names, times = [line.name for line in queue_lines(state, resource)], times_of(span, ended)
    queues = charts_of_hours(state, names, resource, times) if span in BY_STATE else ()
    of_cluster = None
    if span in BY_REPORTS:
        # How queues stood when the span began, a report of the hour before tells.
        where = Filter(types=("QueuesReported",), since=times[0] - 3_600_000_000)
        events = [event async for event in events_of(inquiry.log, cluster, upto=position, where=where)]
        queues = charts_of_reports(events, names, resource, times)
    if models is not None:
        step = times[1] - times[0]
        rows = await models.occupancy_rows(cluster, since=times[0], until=ended, step=step)
        of_cluster = chart_of_cluster(rows, times)
        if span not in (*BY_REPORTS, *BY_STATE):
            shown = names[:MOST_QUEUES]
            hours = await models.queue_rows(cluster, shown, resource, since=times[0], until=ended, step=step)
            queues = charts_of_rows(hours, names, resource, times)
    return ChartsPage(resource, resources, span, tuple(SPANS), times[0], ended, None, times, of_cluster, queues)


async def _cycles(inquiry: Inquiry, cluster: str, *, head: int, limit: int) -> tuple[CycleRow, ...]:
    rows = await list_cycles(inquiry.log, cluster, RowSelection(limit=limit), head=head)
    return tuple(row for row in rows[:limit] if isinstance(row, CycleRow))
