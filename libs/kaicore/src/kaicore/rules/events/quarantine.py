"""Quarantined events cannot be decoded or folded, and say nothing until the owner sets them aside."""

from collections.abc import Mapping, Sequence

import msgspec

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

    Args:
        event: as it is in the log.
        error: what is wrong with its body.
        decoded: whether it could be decoded.
    """
    return QuarantinedEvent(event.position, event.stream, event.type, event.actor, error, decoded)


def quarantine_text(events: Sequence[QuarantinedEvent], *, cluster: str = "") -> str:
    """Return what is wrong with quarantined events, and what to do; empty where there are none.

    Args:
        events: by position.
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
