"""A log for tests: payloads in, events out, without a server."""

from collections.abc import Iterator
from typing import Any

import msgspec
from kaicore.ledger.log.chain import GENESIS, event_hash
from kaicore.rules.events.codec import decode_payload, unhashed_event
from kaicore.rules.events.envelope import Event, NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Payload
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.pods.pod_entry import PodEntry

from tests.given.examples import FEW
from tests.given.logs.invariants import differences

#: After each so manieth event indexes are compared: what is wrong in one mostly stays so.
_COMPARED = 3 if FEW else 1


class Ledger:
    """Appends payloads one after another, each folded into `state` at once."""

    #: Whether the state's indexes are compared with its entries as events come.
    compares_indexes = False

    def __init__(self, cluster: str = "test", *, hashes: bool = False) -> None:
        self.cluster = cluster
        self.events: list[Event] = []
        self.state = ClusterState(cluster)
        self.now = 1_700_000_000_000_000
        #: Of each event that was appended with others, the recorded time that a log gives them all.
        self.appended_at: dict[int, int] = {}
        self._versions: dict[str, int] = {}
        self._hashes = hashes

    def record(self, stream: str, payload: Payload, *, subject: str = "") -> Event:
        number = len(self.events) + 1
        return self._append(
            NewEvent(
                id=derived_id(self.cluster, str(number)),
                stream=stream,
                payload=payload,
                actor="test",
                occurred_at=self.now,
                subject=subject,
            )
        )

    def partly_unknown(self, node: str) -> list[PodEntry]:
        """Return the pods on a node with zones that the log knows only in part."""
        return [entry for entry in self.state.charges.held_on(node) if self.state.charges.partly_unknown(entry)]

    def append(self, units: tuple[Unit, ...]) -> set[int]:
        """Append units as the log would, but for the stale ones and what follows them; return the numbers of those."""
        before, stale, at = dict(self._versions), set[int](), self.now + 1000
        for number, unit in enumerate(units):
            holds = all(before.get(stream, 0) == version for stream, version in unit.expect.items())
            if holds and stale.isdisjoint(unit.follows):
                for event in unit.events:
                    self.appended_at[self._append(event).position] = at
            else:
                stale.add(number)
        return stale

    def _append(self, new: NewEvent) -> Event:
        self.now += 1000
        version = self._versions[new.stream] = self._versions.get(new.stream, 0) + 1
        position = len(self.events) + 1
        event = unhashed_event(new, cluster=self.cluster, position=position, version=version, recorded_at=self.now)
        if self._hashes:
            previous = self.events[-1].hash if self.events else GENESIS
            event = msgspec.structs.replace(event, hash=event_hash(previous, event))
        self.events.append(event)
        self.state.fold(event)
        if self.compares_indexes and position % _COMPARED == 0:
            assert differences(self.state) == [], event
        return event

    def decoded(self, event: Event) -> Any:
        return decode_payload(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
