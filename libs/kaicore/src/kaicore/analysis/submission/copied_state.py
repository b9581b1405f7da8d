"""A state to try things on: a copy, to which events are folded that no log ever sees."""

from collections.abc import Iterable

import msgspec

from kaicore.rules.events.codec import encode_payload, schema_version
from kaicore.rules.events.envelope import Event, NewEvent, Unit
from kaicore.rules.state.snapshot import decode_state


class CopiedState:
    """A copy of a state.

    Attributes:
        state: the copy.
        now: recorded time of what is folded to it, microseconds since the epoch.
    """

    def __init__(self, body: bytes, *, now: int) -> None:
        """Args:
        body: the state as `encode_state` has it.
        now: see above; not before the state's last event.
        """
        self.state = decode_state(body)
        self.now = max(now, self.state.recorded_at)

    def record(self, units: Iterable[Unit | None]) -> None:
        """Fold units as if they had been appended."""
        for unit in units:
            for event in unit.events if unit is not None else ():
                self.state.fold(self._event(event))

    def _event(self, new: NewEvent) -> Event:
        state, name = self.state, type(new.payload).__name__
        return Event(
            cluster=state.cluster,
            position=state.position + 1,
            stream=new.stream,
            version=state.versions.get(new.stream, 0) + 1,
            type=name,
            schema=schema_version(name),
            id=new.id,
            actor=new.actor,
            occurred_at=new.occurred_at,
            recorded_at=self.now,
            body=msgspec.Raw(encode_payload(new.payload)),
            hash=b"",
            subject=new.subject,
            cause=new.cause,
            correlation=new.correlation,
        )
