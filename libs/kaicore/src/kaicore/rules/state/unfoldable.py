"""Events that decode and that no state can take in: none is known, but for defects.

Such an event makes the fold raise in the middle, which leaves a state half changed. That state is thrown away, and the
states before are folded again. This time the event is quarantined instead of folded, as one that cannot be decoded is.

Whether the fold raises depends on the event and on the events before it, and on nothing else. An event's hash covers
all of them. So what was learned of a hash holds for every state of this program, live or replayed.
"""

from kaicore.errors import UnfoldableEvent
from kaicore.rules.events.envelope import Event

#: By the hash of an event that makes the fold raise, what is wrong with it.
_problems: dict[bytes, str] = {}


def known_problem(event: Event) -> str:
    """Return why an event cannot be folded; empty where that is not known, or it can."""
    return _problems.get(event.hash, "") if _problems else ""


def learn(event: Event, error: Exception) -> UnfoldableEvent:
    """Take note that an event makes the fold raise, and return the error that says so."""
    problem = _problems[event.hash] = f"{type(error).__name__}: {error}"
    return UnfoldableEvent(event.cluster, event.position, f"{event.type} on {event.stream}: {problem}")
