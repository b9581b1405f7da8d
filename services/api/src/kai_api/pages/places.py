"""The place of a page in a log: the page's frame, and the state that it shows."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from fastapi import HTTPException, Request
from kaicore.analysis.inquiry.moments import parse_moment, position_of
from kaicore.analysis.inquiry.queries import Inquiry
from kaicore.ledger.log.port import Filter
from kaicore.rules.hub.hub_state import without_hub
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.runtime.access.scopes import current_caller, current_view
from kaicore.spelling import did_you_mean

from kai_api.pages.frame import Frame
from kai_api.pages.shadow import is_shadowed


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
            shadowed=is_shadowed(state),
        )
        return frame, state


class Places:
    """Finds where in logs pages are."""

    def __init__(self, inquiry: Inquiry) -> None:
        self._inquiry = inquiry
        self._log = inquiry.log

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
        clusters = current_caller().visible(without_hub(await self._log.clusters()))
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
            whole=current_view().whole,
            query=tuple((name, value) for name, value in request.query_params.items() if name != "at"),
        )
        return Place(frame, partial(self._inquiry.state_at, cluster, str(position) if at else ""))
