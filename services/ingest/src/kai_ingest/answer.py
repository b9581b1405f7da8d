"""Answers of ingest to reports."""

import msgspec


class Unaccepted(msgspec.Struct, frozen=True):
    """A pod of a report that was not taken, and why."""

    namespace: str
    name: str
    detail: str


class Answer(msgspec.Struct, frozen=True):
    """What became of a report.

    Attributes:
        status: `taken`, `superseded` or `refused`.
        detail: why it was not taken.
        unknown: pods that cannot be told yet; to be sent again.
        refused: pods of which something impossible was said.
        again: pods that were recorded, but not as predicted; to be sent once more after the next look at the kubelet.
    """

    node: str
    status: str = "taken"
    detail: str = ""
    unknown: tuple[Unaccepted, ...] = ()
    refused: tuple[Unaccepted, ...] = ()
    again: tuple[Unaccepted, ...] = ()
