"""The page of reservations: who has which nodes when, as a calendar of four weeks."""

from datetime import datetime
from typing import NamedTuple

from kaicore.analysis.ask.reservations import SHOWN_US, ReservationRow, standing_reservations
from kaicore.rules.state.cluster_state import ClusterState


class WindowSpan(NamedTuple):
    """A window, as percentages of the four weeks."""

    start: float
    width: float
    text: str


class ReservationLine(NamedTuple):
    """A reservation on the page."""

    row: ReservationRow
    whom: str
    spans: list[WindowSpan]


class ReservationsPage(NamedTuple):
    """The reservations of a cluster at a moment; `begin` is when the four weeks begin."""

    begin: str
    rows: list[ReservationLine]


def reservations_page(state: ClusterState) -> ReservationsPage:
    """Return the page's model."""
    answer = standing_reservations(state)
    begin = state.recorded_at / 1_000_000

    def span(start: str, end: str) -> WindowSpan:
        first, last = (
            min(max((datetime.fromisoformat(one).timestamp() - begin) * 1e8 / SHOWN_US, 0.0), 100.0)
            for one in (start, end)
        )
        text = f"{start[:16].replace('T', ' ')} to {end[:16].replace('T', ' ')}"
        return WindowSpan(round(first, 2), round(max(last - first, 0.4), 2), text)

    lines = [
        ReservationLine(row, row.whom, [span(one.start, one.end) for one in row.windows]) for row in answer.reservations
    ]
    return ReservationsPage(answer.recorded_at[:16].replace("T", " "), lines)
