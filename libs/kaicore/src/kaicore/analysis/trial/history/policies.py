"""The three policies that the league measured as the best, as alternatives of a what-if over history.

Figures and commands: docs/how-to/what-if.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from kaicore.analysis.trial.history.patch import PatchText

_HOUR_US = 3_600_000_000

#: Placement of all three: pods with devices leave room for the work of the last week.
_PLACEMENT: Mapping[str, object] = {"placement_strategy": "binpack", "recent_work_days": 7}


@dataclass(frozen=True, slots=True)
class MeasuredPolicy:
    """A policy: its settings, and the clusters for which it measured best.

    Attributes:
        name: of its column in a report.
        meaning: what it does, in a few words.
        settings: of the scheduler, as `--set` has them.
    """

    name: str
    meaning: str
    settings: Mapping[str, object]

    def patch(self) -> PatchText:
        """Return it as an alternative of a question."""
        document = {"name": self.name, "settings": {**_PLACEMENT, **self.settings}}
        return PatchText(name=self.name, text=msgspec.json.encode(document).decode())


#: The first two differ in what may start before the oldest group that waits; the third also moves running pods.
BEST_POLICIES = (
    MeasuredPolicy(
        "fill", "all that fits starts; large groups wait longest", {"backfill": "off", "consolidate_win_us": 0}
    ),
    MeasuredPolicy(
        "reserve",
        "the oldest group that waits for room has a reserved start",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": 0},
    ),
    MeasuredPolicy(
        "reserve-and-move",
        "as reserve; pods are moved where a start wins more than they lose, at an hour for each GPU",
        {"backfill": "easy", "run_time_per_cent": 75, "consolidate_win_us": _HOUR_US},
    ),
)
