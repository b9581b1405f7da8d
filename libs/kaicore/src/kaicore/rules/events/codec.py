"""Payloads to bytes and back; old ones are upcast as they are read, never rewritten.

An event type has a current schema version (1 unless listed in `_SCHEMAS`). For each older version an upcaster turns
that version's document into the next one's. A type that was renamed is read under its former name as well
(`FORMER_NAMES`).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from kaicore.errors import CorruptLog, UnknownEvent
from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import Event, NewEvent
from kaicore.rules.events.payloads import Payload, payload_types

Document = dict[str, Any]
Upcaster = Callable[[Document], Document]

_PARTS = (
    payloads.AlonePending,
    payloads.ClassPending,
    payloads.GroupPending,
    payloads.PolicyLeftOut,
    payloads.QueueFigures,
    payloads.Undecodable,
    payloads.WaitingPod,
)

#: The names of renamed types in older logs, and their names now. A name is part of an event's hash, so it stays there.
FORMER_NAMES = {"HealRequested": "RepairRequested"}
_FIRST_NAMES = {name: former for former, name in FORMER_NAMES.items()}

#: Current schema versions, where not 1.
_SCHEMAS: dict[str, int] = {"PodPlaced": 2, "CycleCompleted": 10}

#: `(type, version)` to the function that makes a document of `version + 1` of it.
_UPCASTERS: dict[tuple[str, int], Upcaster] = {
    # Until then volumes made beforehand were left to others: no claim was given one.
    ("PodPlaced", 1): lambda document: {**document, "volumes": {}},
    # What came with each version; of older documents nothing changes. 2: a digest over payloads; one over structures
    # of the engine cannot be compared any more. As reasons, 3: nodes that were asked for, 4: resource claims, 5: room
    # kept for others, 6: room promised to a group, 8: shares of GPUs, 9: policies, 10: nodes reserved or suspect.
    # 7: the work that evictions lose.
    **{("CycleCompleted", version): lambda document: document for version in range(1, 10)},
}

#: Fields of newer versions that a reader of decisions goes on without: reasons, perhaps in words that it does not know.
_REASONS = {"CycleCompleted": ("pending", "groups", "policies_left_out")}

_TYPES: dict[str, type[Payload]] = {cls.__name__: cls for cls in payload_types() if cls not in _PARTS}
#: By the name that an event has in its log: its name now, its decoder, and its current schema version.
_READERS = {
    name: (name_now, msgspec.json.Decoder(_TYPES[name_now]), _SCHEMAS.get(name_now, 1))
    for name, name_now in ({name: name for name in _TYPES} | FORMER_NAMES).items()
}
#: Makes all digits alike: a number of 64 bits or more has 19 of them in a row. A pattern takes ten times as long.
_ALIKE = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else 0 for byte in range(256))
_LONG_NUMBER = b"0" * 19
_encoder = msgspec.json.Encoder(order="deterministic")
_envelope_decoder = msgspec.json.Decoder(Event)


def event_types() -> tuple[str, ...]:
    """Return the names of all event types."""
    return tuple(sorted(_TYPES))


def schema_version(event_type: str) -> int:
    """Return the current schema version of an event type."""
    return _SCHEMAS.get(event_type, 1)


def names_in_logs(types: Iterable[str]) -> tuple[str, ...]:
    """Return the names under which logs have events of some types: their own and the former ones, sorted."""
    names = set(types)
    return tuple(sorted(names | {_FIRST_NAMES[name] for name in names & _FIRST_NAMES.keys()}))


def first_name(payload_type: type[Payload]) -> str:
    """Return the name that an event type had first: it stays the same, so digests are taken over it."""
    return _FIRST_NAMES.get(payload_type.__name__, payload_type.__name__)


def encode_payload(payload: Payload) -> bytes:
    """Encode a payload; equal payloads give equal bytes on every machine."""
    return _encoder.encode(payload)


def recorded_event(
    new: NewEvent, body: bytes, *, cluster: str, position: int, version: int, recorded_at: int, event_hash: bytes = b""
) -> Event:
    """Return an event as a log records it."""
    name = type(new.payload).__name__
    return Event(
        cluster=cluster,
        position=position,
        stream=new.stream,
        version=version,
        type=name,
        schema=schema_version(name),
        id=new.id,
        actor=new.actor,
        occurred_at=new.occurred_at,
        recorded_at=recorded_at,
        body=msgspec.Raw(body),
        hash=event_hash,
        subject=new.subject,
        cause=new.cause,
        correlation=new.correlation,
    )


def unhashed_event(new: NewEvent, *, cluster: str, position: int, version: int, recorded_at: int) -> Event:
    """Return an event as a log would record it, but without its hash: for states that no log is behind.

    Args:
        position: its place among the cluster's events.
        recorded_at: microseconds since the epoch.
    """
    body = encode_payload(new.payload)
    return recorded_event(new, body, cluster=cluster, position=position, version=version, recorded_at=recorded_at)


def decode_payload(event: Event) -> Payload:
    """Decode an event's payload, upcasting it to the current schema version.

    A body that is not what its type and version say gives an `Undecodable`: whoever wrote it shall stop nobody. So does
    a number of 64 bits or more, which no snapshot and no column holds.

    Raises:
        UnknownEvent: the type, or the schema version, is newer than this program.
    """
    reader = _READERS.get(event.type)
    if reader is None or event.schema > reader[2]:
        raise UnknownEvent(
            f"cluster {event.cluster}: event {event.position}: type {event.type} schema {event.schema} "
            "was written by a newer kai-ledger"
        )
    name, decoder, current = reader
    try:
        if _LONG_NUMBER in bytes(event.body).translate(_ALIKE) and (problem := _beyond_64_bits(event.body)):
            return payloads.Undecodable(error=problem)
        if event.schema == current:
            payload: Payload = decoder.decode(event.body)
            return payload
        document: Document = msgspec.json.decode(event.body)
        for version in range(event.schema, current):
            document = _UPCASTERS[name, version](document)
        return msgspec.convert(document, _TYPES[name])
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        return payloads.Undecodable(error=str(error))


def decode_decision(event: Event) -> Payload:
    """Decode an event for whoever carries out decisions, as `decode_payload` does; but a newer one without its reasons.

    While services are replaced, an older binder so goes on beside a newer scheduler.

    Raises:
        UnknownEvent: the type, or the schema version, is newer than this program.
    """
    current = schema_version(event.type)
    if event.type in _REASONS and event.schema > current and isinstance(body := msgspec.json.decode(event.body), dict):
        known = {name: value for name, value in body.items() if name not in _REASONS[event.type]}
        event = msgspec.structs.replace(event, schema=current, body=msgspec.Raw(_encoder.encode(known)))
    return decode_payload(event)


def _beyond_64_bits(body: bytes) -> str:
    """Return the field and the value of the first number that does not fit into 64 bits with its sign; else nothing."""
    for field, value in _numbers(msgspec.json.decode(body), ""):
        if abs(value) >= 2**63:
            return f"{field}: does not fit into 64 bits: {value}"
    return ""


def _numbers(document: Any, field: str) -> Iterator[tuple[str, int]]:
    match document:
        case dict():
            for name, value in document.items():
                yield from _numbers(value, f"{field}.{name}" if field else name)
        case list():
            for index, value in enumerate(document):
                yield from _numbers(value, f"{field}[{index}]")
        case int():
            yield field, document
        case _:
            pass


def encode_event(event: Event) -> bytes:
    """Encode an event, envelope and all, as the bus carries it."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> Event:
    """Decode an event from the bus. Raises CorruptLog: when it is no event."""
    try:
        return _envelope_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptLog(f"bus message is no event: {error}") from error
