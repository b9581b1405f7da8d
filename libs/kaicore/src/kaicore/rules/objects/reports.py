"""The answer of ingest to an exporter's report; `docs/explanation/exporter.md` describes both."""

import msgspec


class Unaccepted(msgspec.Struct, frozen=True):
    """A pod of a report that was not taken, and why."""

    namespace: str
    name: str
    detail: str


class ReportAnswer(msgspec.Struct, frozen=True):
    """The result of a report; pods in no list are recorded.

    Attributes:
        status: `taken`; `superseded` by a newer report of the node; or `refused`, then nothing of it was taken either.
        detail: why it was not taken.
        unknown: pods that are not known yet; to be sent again.
        refused: pods of which something impossible was said.
        again: pods that were recorded, but not as predicted; to be sent once more after the next look at the kubelet.
    """

    node: str
    status: str
    detail: str = ""
    unknown: tuple[Unaccepted, ...] = ()
    refused: tuple[Unaccepted, ...] = ()
    again: tuple[Unaccepted, ...] = ()
