"""Routes of the dashboard. A page is a function of the state at one position of a log: `?at=`, or the log's end."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from kaicore.analysis.inquiry.answers import CycleRow, RowSelection
from kaicore.analysis.inquiry.cycle_rows import list_cycles
from kaicore.analysis.inquiry.log_states import events_of
from kaicore.analysis.inquiry.moments import parse_moment, position_of
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.ledger.log.port import Filter
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.spelling import did_you_mean

from kai_api.auth.scopes import current_caller
from kai_api.pages.frame import Frame
from kai_api.pages.overview import cluster_figures, overview
from kai_api.pages.page_route import PageRoute
from kai_api.pages.past_states import PastStates
from kai_api.pages.rendering import page, static_file
from kai_api.pages.story import MOST_LANES, story
from kai_api.pages.topology_map import topology_map
from kai_api.pages.waiting import waiting_line

#: Cycles that the overview shows.
_CYCLES = 5


class Place:
    """Where in a log a page is."""

    def __init__(self, frame: Frame, state: Callable[[], Awaitable[ClusterState]]) -> None:
        """Args:
        frame: as far as it is known without the state.
        state: gets the state; it may change with the next `await`.
        """
        self._frame = frame
        self._state = state
        self.position = frame.position

    async def look(self) -> tuple[Frame, ClusterState]:
        """Return the frame and the state, to be answered from before the next `await`."""
        state = await self._state()
        frame = replace(
            self._frame,
            position=state.position,
            head=max(self._frame.head, state.position),
            recorded_at=state.recorded_at,
            cycle_before=max((known for _, known in state.last_cycles.values()), default=0),
        )
        return frame, state


class Places:
    """Finds where in logs pages are."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry
        self._log = inquiry.log
        self._past = PastStates(inquiry.log)

    async def find(self, request: Request, cluster: str, at: str) -> Place:
        """Return where a page is.

        Args:
            request: the page's.
            cluster: whose log.
            at: a moment; empty for the log's end.

        Raises:
            HTTPException: there is no such cluster.
            UnknownMoment: there is no such moment.
            EventsRetired: what it takes to know the state there is gone.
            LogUnavailable: the log does not answer.
        """
        clusters = current_caller().visible(await self._log.clusters())
        if cluster not in clusters:
            raise HTTPException(404, f"no cluster {cluster!r} in the log{did_you_mean(cluster, clusters)}")
        head = await self._log.head(cluster)
        position, after = head.position, 0
        if at:
            position = await position_of(self._log, cluster, parse_moment(at))
            coming = await self._log.read(cluster, after=position, limit=1, where=Filter(types=("CycleCompleted",)))
            after = coming[0].position if coming else 0
        frame = Frame(
            cluster=cluster,
            clusters=tuple(clusters),
            position=position,
            first=await self._log.retired(cluster),
            head=head.position,
            recorded_at=0,
            head_recorded_at=head.recorded_at,
            live=not at,
            cycle_before=0,
            cycle_after=after,
            path=request.url.path,
            query=tuple((name, value) for name, value in request.query_params.items() if name != "at"),
        )
        state = partial(self._past.at, cluster, position) if at else self._inquiry.state(cluster).current
        return Place(frame, state)


def make_pages(inquiry: Inquiry) -> APIRouter:  # long: one small handler for each page
    """Make the routes of the dashboard."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)
    log, places = inquiry.log, Places(inquiry)

    @router.get("/")
    async def fleet(request: Request) -> Response:
        figures = []
        for cluster in current_caller().entirely_visible(await log.clusters()):
            figures.append(cluster_figures(await inquiry.state(cluster).current()))  # noqa: PERF401
        return page(request, "fleet.html", clusters=figures)

    @router.get("/static/{name}")
    async def static(request: Request, name: str, v: str = "") -> Response:
        found = static_file(request, name)
        if found is None:
            raise HTTPException(404, f"no file {name!r}")
        return found

    @router.get("/clusters/{cluster}")
    async def cluster_page(request: Request, cluster: str, at: str = "") -> Response:
        place = await places.find(request, cluster, at)
        rows = await list_cycles(log, cluster, RowSelection(limit=_CYCLES), head=place.position)
        cycles = tuple(row for row in rows[:_CYCLES] if isinstance(row, CycleRow))
        frame, state = await place.look()
        return page(request, "overview.html", frame=frame, model=overview(state, cycles))

    @router.get("/clusters/{cluster}/waiting")
    async def waiting(request: Request, cluster: str, at: str = "", queue: str = "", number: int = 1) -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "waiting.html", frame=frame, model=waiting_line(state, queue=queue, number=number))

    @router.get("/clusters/{cluster}/map")
    async def map_page(request: Request, cluster: str, at: str = "", topology: str = "", level: str = "") -> Response:
        frame, state = await (await places.find(request, cluster, at)).look()
        return page(request, "map.html", frame=frame, model=topology_map(state, topology=topology, level=level))

    @router.get("/clusters/{cluster}/stories/{kind}/{namespace}/{name}")
    async def story_page(
        request: Request, cluster: str, kind: str, namespace: str, name: str, *, at: str = ""
    ) -> Response:
        place = await places.find(request, cluster, at)
        why = await inquiry.why(cluster, kind, namespace, name)
        if kind == "Pod":
            where = Filter(subject=f"{namespace}/{name}")
        else:
            where = Filter(streams=tuple(f"pod/{row.uid}" for row in why.pods[: MOST_LANES + 1]))
        events = [event async for event in events_of(log, cluster, upto=place.position, where=where)]
        frame, state = await place.look()
        return page(request, "story.html", frame=frame, model=story(why, events, now=state.recorded_at))

    return router
