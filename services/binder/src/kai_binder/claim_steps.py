"""Steps that make the claims of a decision ready, one after the other."""

from dataclasses import dataclass
from enum import StrEnum


class Next(StrEnum):
    """What to do about a claim."""

    SELECT = "select"
    WAIT = "wait"
    DONE = "done"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """A claim cannot get ready, and its pod is given back."""

    reason: str
    message: str
    code: int = 0
