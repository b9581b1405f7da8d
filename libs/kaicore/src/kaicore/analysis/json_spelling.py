"""The JSON form of all answers: names in camelCase, hashes in hexadecimal, times in RFC 3339.

The log itself has another form, because its bytes are hashed. Keys that people chose, such as names of labels and
resources, are left unchanged. `Answer` is the base of all answers.
"""

import dataclasses
import enum
from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self, TypedDict
from uuid import UUID

import msgspec

if TYPE_CHECKING:
    from kaicore.rules.state.views import LogView


class Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that is answered."""

    @classmethod
    def copied(cls, source: object, **others: object) -> Self:
        """Return an answer with the fields that an object has by the same names, and with the others as given."""
        names = [name for name in cls.__struct_fields__ if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


class AsOf(Answer, frozen=True, kw_only=True):
    """An answer from a cluster's log up to the event at `position`."""

    cluster: str
    position: int
    recorded_at: str


class LogPlace(TypedDict):
    """The fields of an answer that say how far it knows a cluster's log."""

    cluster: str
    position: int
    recorded_at: str


def place_of(state: "LogView") -> LogPlace:
    """Return how far a state knows its cluster's log."""
    return {"cluster": state.cluster, "position": state.position, "recorded_at": recorded_text(state.recorded_at)}


def spelled(value: object) -> object:
    """Return structs and dataclasses as dictionaries with camelCase keys, and all else as JSON can have it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, msgspec.Struct):
        return {camel(name): spelled(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {camel(field.name): spelled(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): spelled(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted((spelled(item) for item in value), key=str)
    if isinstance(value, list | tuple):
        return [spelled(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return str(value) if isinstance(value, UUID) else value


def camel(name: str) -> str:
    """Return a name of ours in camelCase."""
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


#: The first and the last second that RFC 3339 can write.
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799


def time_text(microseconds: int) -> str:
    """Write a time of the log as RFC 3339; of one before the year 1 or after 9999 the nearest that there is."""
    seconds = min(max(microseconds / 1e6, _FIRST_S), _LAST_S)
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def recorded_text(microseconds: int) -> str:
    """Write when the last event of a moment was recorded; nothing before the first one."""
    return time_text(microseconds) if microseconds else ""


def duration_text(seconds: float) -> str:
    """Write a duration in its two largest units: `2 h 10 min`."""
    left, amounts = max(0, int(seconds)), list[tuple[int, str]]()
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, left = divmod(left, size)
        amounts.append((amount, unit))
    first = next((place for place, (amount, _) in enumerate(amounts) if amount), 0)
    return " ".join(f"{amount} {unit}" for amount, unit in amounts[first : first + 2] if amount) or "0 s"
