"""A change that may make pods start: to the cluster, to a queue, or to the requests of the pods."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from kaicore.rules.events.payloads import Payload


class Effort(IntEnum):
    """The cost of a change for its maker; the cheapest changes are tried and shown first."""

    WAIT = 0
    EDIT_WORK = 1
    EDIT_QUEUE = 2
    TEND_NODE = 3
    MAKE_OBJECT = 4
    END_WORK = 5
    ADD_NODES = 6


@dataclass(frozen=True, slots=True)
class Amendment:
    """A change, as the facts that the watcher would report of it.

    Attributes:
        kind: what is done, in a word: `uncordon`, `raise-limit`, `request-less`, …
        message: what is to be done, with its object, place and amount.
        effort: what it costs.
        facts: what the watcher would then report.
        undo: the facts that take these back again; None where the rehearsal's state cannot be had back by facts.
        resource: that it is about; empty for none.
        amount: of the resource, or of pods or nodes, in the resource's unit; 0 where no amount is meant.
        place: node, queue, domain or object where it is to be done.
        evicts: whether it may start the pods by having others evicted.
        until: for a change that is only to wait, when it is tried again, microseconds since the epoch; 0 otherwise.
    """

    kind: str
    message: str
    effort: Effort
    facts: Sequence[Payload] = ()
    undo: Sequence[Payload] | None = ()
    resource: str = ""
    amount: int = 0
    place: str = ""
    evicts: bool = False
    until: int = 0
