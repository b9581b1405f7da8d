"""Small facts about API objects that hold for every kind: times, names, metadata access, encoding."""

import random
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

#: An API object or a part of one, as JSON knows it.
Object = dict[str, Any]

encode_json = msgspec.json.Encoder().encode
decode_json = msgspec.json.Decoder().decode

DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # no vowels and no look-alikes, as generated names have it
_MAX_GENERATED_BASE = 58


def timestamp(moment: datetime) -> str:
    """A `metav1.Time`: UTC, whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(moment: datetime) -> str:
    """A `metav1.MicroTime`: UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> datetime:
    """Read a time as the API writes it. Raises ValueError: if it is none."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def is_true(text: str | None) -> bool:
    """True if a query parameter means yes, in any of the spellings that Go accepts."""
    return text in ("1", "t", "T", "true", "TRUE", "True")


def new_uid(chance: random.Random | None = None) -> str:
    """A fresh `metadata.uid`, from a source of chance of one's own where one is given."""
    return str(uuid.uuid4() if chance is None else uuid.UUID(int=chance.getrandbits(128), version=4))


def generated_name(base: str, chance: random.Random | None = None) -> str:
    """`base` with five random characters behind it."""
    choices = random.choices if chance is None else chance.choices
    return base[:_MAX_GENERATED_BASE] + "".join(choices(_SUFFIX_ALPHABET, k=5))


def age(since: str | None, now: datetime) -> str:
    """A duration as tables show it: `3s`, `5m3s`, `2h`, `6d22h`, `<unknown>`."""
    if not since:
        return "<unknown>"
    return short_duration(now - parse_time(since))


def short_duration(duration: timedelta) -> str:
    """The two or so leading units of a duration, as `kubectl` shows ages."""
    seconds = int(duration.total_seconds())
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        rest = seconds % 60
        return f"{minutes}m{rest}s" if rest else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        rest = minutes % 60
        return f"{hours}h{rest}m" if rest else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        rest = hours % 24
        return f"{days}d{rest}h" if rest else f"{days}d"
    if days < 730:
        return f"{days}d"
    years, rest = days // 365, days % 365
    return f"{years}y{rest}d" if days < 365 * 8 and rest else f"{years}y"


def split_path(path: str) -> tuple[str, ...]:
    """`spec.nodeName` as its parts."""
    return tuple(path.split("."))


def at(value: Any, path: tuple[str, ...]) -> Any:
    """The value at `path`, or None."""
    for part in path:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def is_qualified_name(text: str) -> bool:
    """True if this can be the key of a label, annotation, taint or resource."""
    prefix, slash, name = text.rpartition("/")
    if slash and not (0 < len(prefix) <= 253 and DNS_SUBDOMAIN.fullmatch(prefix)):
        return False
    return len(name) <= 63 and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """True if this can be the value of a label."""
    return len(text) <= 63 and (not text or _QUALIFIED.fullmatch(text) is not None)


def replace_condition(conditions: list[Object], condition: Object, now: str) -> bool:
    """Set one condition by type; `lastTransitionTime` moves only with the status. Return whether anything changed."""
    for index, present in enumerate(conditions):
        if present["type"] != condition["type"]:
            continue
        moved = present.get("status") != condition["status"]
        replaced = condition | {"lastTransitionTime": now if moved else present.get("lastTransitionTime")}
        conditions[index] = replaced
        return bool(replaced != present)
    conditions.append(condition | {"lastTransitionTime": now})
    return True


def find_condition(obj: Object, kind: str) -> Object:
    """The condition of that type in `status.conditions`, or an empty one."""
    conditions: list[Object] = (obj.get("status") or {}).get("conditions") or []
    for condition in conditions:
        if condition.get("type") == kind:
            return condition
    return {}


def holds(obj: Object, kind: str) -> bool:
    """True if the condition of that type is true."""
    return find_condition(obj, kind).get("status") == "True"


def key_of(obj: Object) -> str:
    """The key of a namespaced object in its collection."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def copy_field(field: str, source: Object, target: Object) -> None:
    """Give a field the value that it has in `source`, or take it away where it has none."""
    if field in source:
        target[field] = source[field]
    else:
        target.pop(field, None)
