"""The observer of a feed: the reports that a feed makes while it works."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from kaicore.rules.events.envelope import Event


class EventSource(StrEnum):
    """Where events came from."""

    LOG = "log"
    BUS = "bus"


class Fallback(StrEnum):
    """Why a feed went back from the bus to the log.

    Attributes:
        GAP: a message is missing.
        FOREIGN: a message does not continue what the log says, or the bus says more than the log.
        LARGE: an event is too large for the bus.
        LAG: an event has been in the log for a while, and the bus does not bring it.
        ENDED: the connection broke, or the stream was deleted.
    """

    GAP = "gap"
    FOREIGN = "foreign"
    LARGE = "large"
    LAG = "lag"
    ENDED = "ended"


class FeedObserver(Protocol):
    """Gets told; must be quick and must not raise."""

    def delivered(self, source: EventSource, events: Sequence[Event]) -> None:
        """Events are about to be handed to the reader."""
        ...

    def fell_back(self, reason: Fallback) -> None:
        """The feed reads from the log again."""
        ...
