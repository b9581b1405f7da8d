"""Forecasts of starts for waiting groups, and how often such forecasts were right, as data."""

import msgspec

from kaicore.analysis.inquiry.answer import Answer


class StartAnswer(Answer, frozen=True, kw_only=True):
    """When a group is likely to start.

    Attributes:
        calibrated: whether this is a forecast: past ones came true, and it is known how long most running pods go on.
        missing: what is missing for that; empty where it is one.
        p50, p90: in half, and in nine tenths, of the scenarios it has started by then; None where not within the
            horizon. Without `calibrated` nothing says that they come true.
        p50_seconds, p90_seconds: the same, from now.
        earliest_seconds: from now; in no scenario it starts before. None where it starts in none within the horizon.
        latest_seconds: from now; in all scenarios it has started by then. None where not in all within the horizon.
        horizon_seconds: beyond this nothing is claimed.
        within_horizon: the share of the scenarios in which it starts within the horizon.
        scenarios: how many were computed, of `asked_scenarios`.
        ahead: how many of the groups that wait start before it, as median.
        runs: how many runs have ended, of those that were looked at.
        bases: of how many of the pods that run the end is drawn from which runs: of their owner, their class, their
            queue or the cluster.
        unknown: how many running pods have no run-time data: they are assumed endless.
        deadlines: of how many `activeDeadlineSeconds` bounds it.
        text: all that for people.
    """

    calibrated: bool = False
    missing: list[str] = msgspec.field(default_factory=list)
    p50: str | None
    p90: str | None
    p50_seconds: int | None
    p90_seconds: int | None
    earliest_seconds: int | None
    latest_seconds: int | None
    horizon_seconds: int
    within_horizon: float
    scenarios: int
    asked_scenarios: int
    ahead: int
    runs: int
    bases: dict[str, int]
    unknown: int
    deadlines: int
    text: str


class GroupStart(Answer, frozen=True, kw_only=True):
    """When a group that waits is likely to start.

    Attributes:
        kind: of the object that it is a group by, with its API group; Pod for one that is alone.
        start: None where nothing is foretold.
        no_start: why nothing is.
    """

    kind: str
    namespace: str
    name: str
    start: StartAnswer | None = None
    no_start: str = ""

    @property
    def text(self) -> str:
        """All that for people."""
        return f"when it starts is not foretold: {self.no_start}" if self.start is None else self.start.text


class CalibrationAnswer(Answer, frozen=True, kw_only=True):
    """How often forecasts of starts came true.

    Attributes:
        position: of the log's end when it was measured.
        groups: that waited, of which the start was foretold as of then, and is known by now.
        undecided: groups that wait still, and not yet longer than was foretold.
        started_before_p50, started_before_p90: shares of those for which there was such a time within the horizon;
            None where there are fewer than 10.
        median_error_seconds: between p50 and the start; None where there are fewer than 10.
        from_position, to_position: between which the forecasts were made.
        left_out: groups of the sample that were not looked at, because of what that costs.
        text: all that for people.
    """

    cluster: str
    position: int
    groups: int
    undecided: int
    started_before_p50: float | None
    started_before_p90: float | None
    median_error_seconds: int | None
    from_position: int
    to_position: int
    left_out: int
    text: str
