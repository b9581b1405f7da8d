"""The report as ingest reads it, and ingest's answer; `docs/explanation/exporter.md` describes the format."""

from collections.abc import Sequence

import msgspec

from kai_exporter.holdings import PodHoldings
from kai_exporter.node_pods import Outgoing

#: Version of the report's format.
VERSION = 1


class Report(msgspec.Struct, frozen=True):
    """One exporter's observations of its node; see `docs/explanation/exporter.md`."""

    version: int
    node: str
    instance: str
    sequence: int
    observed_at: int
    full: bool
    pods: tuple[PodHoldings, ...]


class Reports(msgspec.Struct, frozen=True):
    """Reports of several nodes of a cluster."""

    reports: tuple[Report, ...]


class Unaccepted(msgspec.Struct, frozen=True):
    """A pod that ingest did not take, and why."""

    namespace: str
    name: str
    detail: str


class Answer(msgspec.Struct, frozen=True):
    """The result of a report at ingest; pods in neither list are recorded.

    Attributes:
        status: `taken`; `superseded` by a newer report of the node; or `refused`, then nothing of it was taken either.
        detail: why it was not taken.
        unknown: pods that ingest cannot place yet.
        refused: pods of which something impossible was said.
        again: pods that are recorded, and that ingest wants to hear of once more.
    """

    node: str
    status: str
    detail: str = ""
    unknown: tuple[Unaccepted, ...] = ()
    refused: tuple[Unaccepted, ...] = ()
    again: tuple[Unaccepted, ...] = ()


class Answers(msgspec.Struct, frozen=True):
    """The results of several reports at ingest, in their order."""

    answers: tuple[Answer, ...]


_encoder = msgspec.json.Encoder()


def encode_report(outgoing: Outgoing, *, instance: str) -> bytes:
    """Encode one node's report; `instance` is the exporter's, new with each start."""
    return _encoder.encode(_report(outgoing, instance))


def encode_reports(outgoing: Sequence[Outgoing], *, instance: str) -> bytes:
    """Encode several nodes' reports."""
    return _encoder.encode(Reports(tuple(_report(one, instance) for one in outgoing)))


def _report(one: Outgoing, instance: str) -> Report:
    return Report(VERSION, one.node, instance, one.sequence, one.observed_at, one.full, one.pods)
