"""A copy of a state for trials. Events are folded into it that no log ever contains."""

from collections.abc import Iterable

from kaicore.rules.events.envelope import Unit
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.unlogged import fold_unlogged


class CopiedState:
    """A copy of a state.

    Attributes:
        state: the copy.
        now: recorded time of what is folded to it, microseconds since the epoch.
    """

    def __init__(self, state: ClusterState, *, now: int) -> None:
        """Args:
        state: the copy; changed.
        now: see above; not before the state's last event.
        """
        self.state = state
        self.now = max(now, state.recorded_at)

    def record(self, units: Iterable[Unit | None]) -> None:
        """Fold units as if they had been appended."""
        for unit in units:
            for new in unit.events if unit is not None else ():
                fold_unlogged(self.state, new, recorded_at=self.now)
