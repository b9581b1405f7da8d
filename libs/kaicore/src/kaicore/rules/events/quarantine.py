"""Quarantine: an event that cannot be decoded or folded says nothing until the owner sets it aside.

No event that decodes and that no state can take in is known, but for defects. It makes the fold raise in the middle,
which leaves a state half changed. That state is thrown away, and the states before are folded again. This time the
event is quarantined instead of folded. Readers with a fold of their own, such as the binder, do the same (`folding`).

Whether the fold raises depends on the event and on the events before it. An event's hash covers all of them. So what
was learned of a hash holds for every state of this program, live or replayed. Only a state in memory can be wrong, too:
what it blames is tried once more on a state from the log (`doubt`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from kaicore.errors import KaiError, UnfoldableEvent
from kaicore.rules.events.envelope import Event

#: The meaning of the metric `kai_quarantined_events`.
QUARANTINED = "Events that cannot be decoded or folded and were not set aside; nothing is decided about their subjects"


class QuarantinedEvent(msgspec.Struct, frozen=True):
    """An event that could not be decoded, or that decodes and could not be folded.

    Attributes:
        error: what is wrong with its body.
        decoded: whether it could be decoded.
    """

    position: int
    stream: str
    type: str
    actor: str
    error: str
    decoded: bool = False


def quarantined(event: Event, error: str, *, decoded: bool = False) -> QuarantinedEvent:
    """Return the record of an event that says nothing.

    Args: see `QuarantinedEvent`.
    """
    return QuarantinedEvent(event.position, event.stream, event.type, event.actor, error, decoded)


def quarantine_text(events: Sequence[QuarantinedEvent], *, cluster: str = "") -> str:
    """Return what is wrong with quarantined events, and what to do; empty where there are none.

    Args:
        cluster: of the log, where the command needs it.
    """
    if not events:
        return ""
    first = events[0]
    others = f" and {len(events) - 1} more" if len(events) > 1 else ""
    flag = f" --cluster {cluster}" if cluster else ""
    return (
        f"event {first.position} ({first.type} on {first.stream}, by {first.actor}) cannot be "
        f"{'folded' if first.decoded else 'decoded'}{others}: {first.error}: nothing is decided about it until "
        f"`kai audit set-aside {first.position} --reason REASON{flag}`"
    )


def passed_over_text(events: Mapping[int, str]) -> str:
    """Return what a reader other than the state cannot fold: what is wrong, by position."""
    others = f" and {len(events) - 1} more" if len(events) > 1 else ""
    first = min(events)
    return f"{events[first]}{others}: it counts for nothing here"


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


def doubt(event: Event) -> None:
    """Forget that an event makes the fold raise: it may have been the state that was wrong, and the next fold shows."""
    _problems.pop(event.hash, None)


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
