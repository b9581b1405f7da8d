"""Reservations from the wire into the model.

Zones come from the wheel `tzdata`, as `requirements/` pins it, and not from the machine: all services of a release know
the same. What a reservation needs of its zone becomes part of the fact (`kaicore.rules.model.reservation`). A watcher
that knows newer zones records it anew as it starts; replay of what was decided before finds the former windows.
"""

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache, partial
from importlib.resources import files
from zoneinfo import ZoneInfo

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.normalize.fields import identity
from kaicore.kube.wire.resources import named_fields
from kaicore.rules.groups.dialects.dialect import duration
from kaicore.rules.model.reservation import NOTICE_US, NodeReservation, ZoneOffset, check_recurrence
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import PlainObject

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_US = 86_400_000_000
#: Changes of a zone's clocks are recorded for thirty years from the first window on.
_ZONE_US = 10_958 * _DAY_US
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) - _DAY_US


def normalize_reservation(wire: PlainObject, lost: Lost = unheard) -> NodeReservation:
    """Reduce a Reservation; a notice that says nothing counts as not there.

    Raises:
        InvalidObject: it has no times or nodes, its end is not after its start, its recurrence cannot be followed, or
            there is no such time zone.
    """
    spec = named_fields("Reservation", wire).inside("spec")
    start, end = _moment(spec, "start"), _moment(spec, "end")
    if end <= start:
        raise spec.error("end", "is not after spec.start")
    nodes, node_labels = spec.texts("nodes"), spec.text_by_name("nodeSelector")
    if not nodes and not node_labels:
        raise spec.error("nodes", "names no node, and nodeSelector no label")
    recurrence, zone = spec.text("recurrence"), spec.text("timeZone")
    if zone:
        zone_named(zone, subject=spec.subject, field="spec.timeZone")
    offsets = zone_offsets(zone, start) if zone and recurrence else ()
    if recurrence:
        check_recurrence(recurrence, start=start, offsets=offsets, subject=spec.subject, field="spec.recurrence")
    notice = duration(spec.text("notice"), subject=spec.subject, field="spec.notice", lost=lost)
    drain_by = 0 if spec.value.get("drainBy") is None else _moment(spec, "drainBy")
    if drain_by and (recurrence or not start <= drain_by <= end):
        raise spec.error("drainBy", "is for one window" if recurrence else "is not between spec.start and spec.end")
    reserved_for = spec.inside("for")
    if reserved_for.text("work") and not reserved_for.text("namespace"):
        raise reserved_for.error("work", "needs spec.for.namespace")
    return NodeReservation(
        **identity(wire.metadata),
        start=start,
        end=end,
        queue=reserved_for.text("queue"),
        namespace=reserved_for.text("namespace"),
        nodes=tuple(sorted(set(nodes))),
        node_labels=node_labels or None,
        recurrence=recurrence,
        notice_us=NOTICE_US if notice is None else max(notice, 0),
        drain_by=drain_by,
        work=reserved_for.text("work"),
        time_zone=zone,
        offsets=offsets,
    )


def zone_named(name: str, *, subject: str, field: str) -> ZoneInfo:
    """Return a zone by its IANA name. Raises InvalidObject: there is none."""
    if name not in _zones():
        raise InvalidObject(subject, field, name[:100], "is no time zone such as Europe/Berlin")
    return _zone(name)


@cache
def _zones() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text("utf-8").split())


@lru_cache(maxsize=64)
def _zone(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@lru_cache(maxsize=256)
def zone_offsets(name: str, start: int) -> tuple[ZoneOffset, ...]:
    """Return a zone's offset at a time, and those of the thirty years after it: no zone changes twice within a day."""
    zone = _zone(name)

    def seconds(us: int) -> int:
        offset = (_EPOCH + timedelta(microseconds=min(us, _LAST_US))).astimezone(zone).utcoffset()
        assert offset is not None
        return int(offset.total_seconds())

    found = [ZoneOffset(start, seconds(start))]
    for day in range(start, start + _ZONE_US, _DAY_US):
        before, after = found[-1].seconds, seconds(day + _DAY_US)
        if before != after:
            moments = range(day, day + _DAY_US, 1_000_000)
            changed = bisect_left(moments, True, key=partial(lambda before, us: seconds(us) != before, before))
            found.append(ZoneOffset(day + changed * 1_000_000, after))
    return tuple(found)


def _moment(spec: Fields, name: str) -> int:
    """Return a time in microseconds since the epoch, whole seconds as a rule of recurrence knows them."""
    time = spec.read(name, datetime)
    if time is None:
        raise spec.error(name, "is missing")
    if time.tzinfo is None:
        raise spec.error(name, "has no zone")
    us = (time - _EPOCH) // timedelta(seconds=1) * 1_000_000
    if us < 0:
        raise spec.error(name, "is before 1970")
    return us
