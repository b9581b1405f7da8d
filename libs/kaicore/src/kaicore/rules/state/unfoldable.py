"""Events that decode and that no state can take in: none is known, but for defects.

Such an event makes the fold raise in the middle, which leaves a state half changed. That state is thrown away, and the
states before are folded again. This time the event is quarantined instead of folded, as one that cannot be decoded is.

Readers with a fold of their own, such as the binder, do the same (`folding`): each passes over the events that make its
fold raise.

Whether the fold raises depends on the event and on the events before it, and on nothing else. An event's hash covers
all of them. So what was learned of a hash holds for every state of this program, live or replayed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from kaicore.errors import KaiError, UnfoldableEvent
from kaicore.rules.events.envelope import Event

#: By the hash of an event that makes the fold raise, what is wrong with it; that of other readers by their names.
_problems: dict[bytes, str] = {}
_of_readers: dict[tuple[str, bytes], str] = {}


def known_problem(event: Event) -> str:
    """Return why an event cannot be folded; empty where that is not known, or it can."""
    return _problems.get(event.hash, "") if _problems else ""


def learn(event: Event, error: Exception) -> UnfoldableEvent:
    """Take note that an event makes the fold raise, and return the error that says so."""
    problem = _problems[event.hash] = f"{type(error).__name__}: {error}"
    return UnfoldableEvent(event.cluster, event.position, f"{event.type} on {event.stream}: {problem}")


def is_passed_over(event: Event, reader: str) -> bool:
    """Tell whether an event is known to make a reader's own fold raise."""
    return (reader, event.hash) in _of_readers if _of_readers else False


@contextmanager
def folding(event: Event, reader: str) -> Iterator[None]:
    """Fold an event into what a reader keeps; where that raises, take note that the reader passes it over.

    Raises:
        UnfoldableEvent: what the reader keeps is half changed, and is to be made anew.
    """
    try:
        yield
    except (MemoryError, RecursionError, KaiError):
        raise
    except Exception as error:
        problem = _of_readers[reader, event.hash] = f"{type(error).__name__}: {error}"
        about = f"{event.type} on {event.stream}, by {event.actor}: {problem}"
        raise UnfoldableEvent(event.cluster, event.position, about) from error
