"""The effect of an append on a cluster's log: the rule that every implementation of the port shares.

`draft` does everything that needs no knowledge of the log (encoding, checking, most of the hashing), before any lock is
held. `Tail.take` then gives each unit its place or its refusal. Neither does any I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from uuid import UUID

import msgspec

from kaicore.errors import IdempotencyConflict, InvalidObject, StaleExpectation
from kaicore.ledger.log.chain import content, link
from kaicore.ledger.log.port import Head
from kaicore.rules.events.codec import encode_payload, recorded_event, schema_version
from kaicore.rules.events.envelope import Event, NewEvent, Stale, Unit, UnitOutcome

#: Largest body, bytes. What the log takes, the bus must be able to carry, and its messages end at 8 MiB.
MAX_BODY = 8 * 1024 * 1024 - 64 * 1024

#: Most bytes of bodies in one append of several units: a busy server takes 7 MB/s, and has 10 s for its answer.
MAX_APPEND = 64 * 1024 * 1024

#: Longest name of a cluster, stream, subject, actor or correlation, bytes; an index entry of Postgres ends at 2,704.
MAX_TEXT = 1024

#: Stands for the outcome of a unit that is taken, until its events are recorded.
_NEW = UnitOutcome()


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A new event without its place in the log; a struct, because that is made five times as fast as a dataclass."""

    new: NewEvent
    type: str
    body: bytes
    content: bytes


class DraftUnit(msgspec.Struct, frozen=True, gc=False):
    """A unit of drafts; `expect` and `follows` as in `Unit`."""

    drafts: tuple[Draft, ...]
    expect: Mapping[str, int]
    follows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of `EventLog.append`, as far as it can be prepared without the log."""

    units: tuple[DraftUnit, ...]
    expect: Mapping[str, int]

    @property
    def size(self) -> int:
        """The number of events that it wants to append."""
        return sum(len(unit.drafts) for unit in self.units)

    @property
    def body_bytes(self) -> int:
        """The size of all bodies that it wants to append."""
        return sum(len(draft.body) for unit in self.units for draft in unit.drafts)

    def ids(self) -> list[UUID]:
        """Return the ids of all its events."""
        return [draft.new.id for unit in self.units for draft in unit.drafts]

    def streams(self) -> set[str]:
        """Return the streams that it appends to or expects something of."""
        expected = {stream for unit in self.units for stream in unit.expect}
        return expected.union(self.expect, (draft.new.stream for unit in self.units for draft in unit.drafts))


class Known(msgspec.Struct, frozen=True, gc=False):
    """The log's record of an event's id: the event's position and the fingerprint of its contents."""

    position: int
    fingerprint: bytes


class Taken(msgspec.Struct, frozen=True, gc=False):
    """An event that was just taken: like `Known`, but its fingerprint is only worked out when it is asked for."""

    position: int
    stream: str
    type: str

    @property
    def fingerprint(self) -> bytes:
        """As in `Known`."""
        return fingerprint(self.stream, self.type)


def fingerprint(stream: str, event_type: str) -> bytes:
    """Return what tells an event that is appended again from another event under the same id.

    The body does not count: a newer version of kai may say more about the same fact.
    """
    return sha256(f"{stream}\n{event_type}".encode()).digest()[:8]


def draft(cluster: str, units: Sequence[Unit], *, expect: Mapping[str, int] | None = None) -> Call:
    """Encode and check what is to be appended.

    Raises:
        InvalidObject: something that cannot be recorded: a NUL in a name, a name or body that is too long, a payload
            that cannot be encoded, more units than one append takes.
        IdempotencyConflict: an id twice in one unit.
    """
    checked = {cluster}
    _check_text("append", "cluster", cluster)
    if not cluster:
        raise InvalidObject("append", "cluster", cluster, "is empty")
    made = list[DraftUnit]()
    for unit in units:
        drafts = tuple(_draft(cluster, new, checked) for new in unit.events)
        if len({one.new.id for one in drafts}) != len(drafts):
            raise IdempotencyConflict(f"cluster {cluster}: a unit has two events of the same id")
        if any(not 0 <= number < len(made) for number in unit.follows):
            raise InvalidObject("append", f"units[{len(made)}].follows", unit.follows, "names no earlier unit")
        made.append(DraftUnit(drafts, unit.expect, unit.follows))
    call = Call(tuple(made), expect or {})
    if len(made) > 1 and call.body_bytes > MAX_APPEND:
        raise InvalidObject("append", "units", len(made), f"have {call.body_bytes} bytes, more than {MAX_APPEND}")
    return call


def _draft(cluster: str, new: NewEvent, checked: set[str]) -> Draft:
    about = f"event {new.id}"
    for name, text in (
        ("stream", new.stream),
        ("actor", new.actor),
        ("subject", new.subject),
        ("correlation", new.correlation),
    ):
        if text not in checked:
            _check_text(about, name, text)
            checked.add(text)
    if not -(2**63) <= new.occurred_at < 2**63:
        raise InvalidObject(about, "occurred_at", new.occurred_at, "is no time")
    name = type(new.payload).__name__
    try:
        body = encode_payload(new.payload)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise InvalidObject(about, "payload", name, f"cannot be encoded: {error}") from error
    if len(body) > MAX_BODY:
        raise InvalidObject(about, "payload", name, f"has {len(body)} bytes, more than {MAX_BODY}")
    return Draft(new, name, body, content(new, cluster=cluster, event_type=name, body=body))


def _check_text(about: str, field: str, text: str) -> None:
    if "\0" in text:
        raise InvalidObject(about, field, text, "has a NUL in it")
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidObject(about, field, text, "is no Unicode text") from error
    if length > MAX_TEXT:
        raise InvalidObject(about, field, text[:40] + "…", f"has {length} bytes, more than {MAX_TEXT}")


@dataclass(slots=True)
class Tail:
    """The end of a cluster's log, and what it says of the ids and streams that an append names.

    Attributes:
        head: the last event's place.
        versions: by stream; a stream that is not there has no event.
        by_id: events by their id; an id that is not there is new.
    """

    cluster: str
    head: Head
    versions: dict[str, int]
    by_id: dict[UUID, Known | Taken]

    def take(self, call: Call, *, now: int) -> tuple[list[UnitOutcome], list[Event]]:
        """Append a call's units; return their outcomes, and the events that are new.

        When it raises, nothing has changed.

        Args:
            now: the log's clock, microseconds since the epoch.

        Raises:
            StaleExpectation: the call's own expectation does not hold, and no unit of it is in the log already.
            IdempotencyConflict: a unit is in the log in part, or an id stands for another event.
        """
        positions_by_unit = [self._find(unit, self.by_id) for unit in call.units]
        late = self._late(call.expect)
        if late and call.units and not any(positions_by_unit):
            raise StaleExpectation(self.cluster, late.stream, expected=late.expected, actual=late.actual)
        outcomes: list[UnitOutcome] = []
        position = self.head.position
        taken: dict[UUID, Known | Taken] = {}
        accepted: list[Draft] = []
        new: list[int] = []
        for unit, positions in zip(call.units, positions_by_unit, strict=True):
            if again := positions or self._find(unit, taken):
                outcomes.append(UnitOutcome(again, duplicate=True))
                continue
            # `versions` stays as it was before this call until all of the call is decided.
            if stale := late or self._late(unit.expect) or _stale_of(outcomes, unit.follows):
                outcomes.append(UnitOutcome(stale=stale))
                continue
            for one in unit.drafts:
                position += 1
                taken[one.new.id] = Taken(position, one.new.stream, one.type)
            accepted += unit.drafts
            new.append(len(outcomes))
            outcomes.append(_NEW)
        self.by_id.update(taken)
        events = self._record(accepted, max(now, self.head.recorded_at))
        recorded = iter(events)
        for index in new:
            mine = tuple(islice(recorded, len(call.units[index].drafts)))
            outcomes[index] = UnitOutcome(tuple(event.position for event in mine), events=mine)
        return outcomes, events

    def _find(self, unit: DraftUnit, by_id: Mapping[UUID, Known | Taken]) -> tuple[int, ...]:
        """Return the positions of a unit that is there already; nothing when none of it is."""
        if not by_id:
            return ()
        matches = [by_id.get(one.new.id) for one in unit.drafts]
        if not any(matches):
            return ()
        for one, event in zip(unit.drafts, matches, strict=True):
            if event is None:
                raise IdempotencyConflict(
                    f"cluster {self.cluster}: of the unit with event {one.new.id} ({one.type} on {one.new.stream}) "
                    "only a part is in the log"
                )
            if event.fingerprint != fingerprint(one.new.stream, one.type):
                raise IdempotencyConflict(
                    f"cluster {self.cluster}: event {one.new.id} is in the log at {event.position}, "
                    f"but not as {one.type} on {one.new.stream}"
                )
        return tuple(event.position for event in matches if event)

    def _late(self, expect: Mapping[str, int]) -> Stale | None:
        for stream, expected in expect.items():
            actual = self.versions.get(stream, 0)
            if actual != expected:
                return Stale(stream, expected, actual)
        return None

    def _record(self, drafts: Sequence[Draft], recorded_at: int) -> list[Event]:
        events = []
        position, hash_ = self.head.position, self.head.hash
        for one in drafts:
            new = one.new
            position += 1
            version = self.versions.get(new.stream, 0) + 1
            self.versions[new.stream] = version
            place = {"position": position, "version": version, "recorded_at": recorded_at}
            schema = schema_version(one.type)
            hash_ = link(hash_, **place, schema=schema, occurred_at=new.occurred_at, content=one.content)
            events.append(recorded_event(new, one.body, cluster=self.cluster, **place, event_hash=hash_))
        if events:
            self.head = Head(position, hash_, recorded_at)
        return events


def _stale_of(outcomes: Sequence[UnitOutcome], follows: tuple[int, ...]) -> Stale | None:
    """Return why the first stale one of some units is stale."""
    return next((stale for number in follows if (stale := outcomes[number].stale)), None)
