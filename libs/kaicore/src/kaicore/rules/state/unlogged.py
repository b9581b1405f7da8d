"""Events without a log that are folded into a state: for trials on a copy, or for simulation."""

from kaicore.rules.events.codec import unhashed_event
from kaicore.rules.events.envelope import Event, NewEvent
from kaicore.rules.state.cluster_state import ClusterState


def fold_unlogged(state: ClusterState, new: NewEvent, *, recorded_at: int) -> Event:
    """Fold an event as if it had been appended right behind the last one, and return it.

    Args:
        state: changed.
        new: the event.
        recorded_at: microseconds since the epoch; not before the state's last event.
    """
    event = unhashed_event(
        new,
        cluster=state.cluster,
        position=state.position + 1,
        version=state.versions.get(new.stream, 0) + 1,
        recorded_at=recorded_at,
    )
    state.fold(event)
    return event
