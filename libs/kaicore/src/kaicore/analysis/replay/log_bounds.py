"""The first and last position of a log, for questions about positions that it does not have."""

from kaicore.analysis.json_spelling import time_text
from kaicore.errors import UnknownMoment
from kaicore.ledger.log.port import Head


def check_position(cluster: str, position: int, head: Head) -> None:
    """Raise UnknownMoment unless a log that ends at `head` has a position; 0 is before its first event."""
    if position < 0:
        raise UnknownMoment(f"cluster {cluster}: position {position} is before the log begins: the first event is 1")
    if position > head.position:
        raise UnknownMoment(f"cluster {cluster}: position {position} is beyond the log's end, {end_text(head)}")


def end_text(head: Head) -> str:
    """Return where a log ends, in words."""
    return f"position {head.position}, recorded at {time_text(head.recorded_at)}" if head.position else "position 0"
