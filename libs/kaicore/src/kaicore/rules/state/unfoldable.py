"""Events that decode and that no state can take in, such as an amount that does not fit into 64 bits.

Such an event makes the fold raise in the middle, which leaves a state half changed. That state is thrown away, and the
states before are folded again. This time the event is quarantined instead of folded, as one that cannot be decoded is.

Whether the fold raises depends on the event and on the events before it, and on nothing else. An event's hash covers
all of them. So what was learned of a hash holds for every state of this program, live or replayed.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kaicore.errors import UnfoldableEvent
from kaicore.rules.events.envelope import Event

#: By the hash of an event that makes the fold raise, what is wrong with it.
_problems: dict[bytes, str] = {}

_INT64 = range(-(2**63), 2**63)


def known_problem(event: Event) -> str:
    """Return why an event cannot be folded; empty where that is not known, or it can."""
    return _problems.get(event.hash, "") if _problems else ""


def learn(event: Event, error: Exception) -> UnfoldableEvent:
    """Take note that an event makes the fold raise, and return the error that says so."""
    problem = _problems[event.hash] = _problem(event, error)
    return UnfoldableEvent(event.cluster, event.position, f"{event.type} on {event.stream}: {problem}")


def _problem(event: Event, error: Exception) -> str:
    """Return field and value that no state can hold where there is one, else what the fold raised."""
    for field, value in _numbers(msgspec.json.decode(event.body), ""):
        if value not in _INT64:
            return f"{field}: does not fit into 64 bits: {value}"
    return f"{type(error).__name__}: {error}"


def _numbers(document: Any, field: str) -> Iterator[tuple[str, int]]:
    match document:
        case dict():
            for name, value in document.items():
                yield from _numbers(value, f"{field}.{name}" if field else name)
        case list():
            for index, value in enumerate(document):
                yield from _numbers(value, f"{field}[{index}]")
        case int():
            yield field, document
