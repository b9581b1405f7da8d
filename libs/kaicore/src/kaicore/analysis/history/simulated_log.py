"""The log of a simulation: each appended event is folded at once and not stored."""

from collections.abc import Callable, Iterable

from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.unlogged import fold_unlogged

_ACTOR = "what-if"
#: No event of a simulation is looked for by its id.
_ID = derived_id(_ACTOR)


class SimulatedLog:
    """Goes on where a state is."""

    def __init__(self, state: ClusterState, taken: Callable[[Payload, int], None]) -> None:
        """Args:
        state: folded on.
        taken: told of each payload, and when it was recorded, once it is folded.
        """
        self.state = state
        self.events = 0
        self._taken = taken

    def record(self, stream: str, payload: Payload, *, at: int) -> None:
        """Append an event.

        Args:
            stream: that it is of.
            payload: what it says.
            at: microseconds since the epoch; never less than before.
        """
        self._append(stream, payload, at=at, occurred_at=at, actor=_ACTOR)

    def append(self, units: Iterable[Unit], *, at: int) -> None:
        """Append what a cycle decided; with one decider none of it is stale."""
        for unit in units:
            for event in unit.events:
                self._of_cycle(event, at)

    def _of_cycle(self, event: NewEvent, at: int) -> None:
        self._append(event.stream, event.payload, at=at, occurred_at=event.occurred_at, actor=event.actor)

    def _append(self, stream: str, payload: Payload, *, at: int, occurred_at: int, actor: str) -> None:
        fold_unlogged(self.state, NewEvent(_ID, stream, payload, actor, occurred_at), recorded_at=at)
        self.events += 1
        self._taken(payload, at)
