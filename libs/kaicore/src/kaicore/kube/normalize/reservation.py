"""Reservations from the wire into the model."""

from datetime import UTC, datetime, timedelta

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.wire.custom_resources import ReservationObject, ReservedFor
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model.quantity import parse_duration
from kaicore.rules.model.reservation import NOTICE_US, NodeReservation, check_recurrence

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def normalize_reservation(wire: ReservationObject, lost: Lost = unheard) -> NodeReservation:
    """Reduce a Reservation; a notice that says nothing counts as not there.

    Raises:
        InvalidObject: it has no times or nodes, its end is not after its start, or its recurrence cannot be followed.
    """
    spec, subject = wire.spec, named_subject("Reservation", wire)
    start = _moment(spec.start, subject=subject, field="spec.start")
    end = _moment(spec.end, subject=subject, field="spec.end")
    if end <= start:
        raise InvalidObject(subject, "spec.end", str(spec.end), "is not after spec.start")
    if not spec.nodes and not spec.node_selector:
        raise InvalidObject(subject, "spec.nodes", spec.nodes, "names no node, and nodeSelector no label")
    recurrence = spec.recurrence or ""
    if recurrence:
        check_recurrence(recurrence, start=start, subject=subject, field="spec.recurrence")
    notice = NOTICE_US
    try:
        if spec.notice:
            notice = max(parse_duration(spec.notice, subject=subject, field="spec.notice"), 0)
    except InvalidObject as error:
        lost(error)
    drain_by = 0 if spec.drain_by is None else _moment(spec.drain_by, subject=subject, field="spec.drainBy")
    if drain_by and (recurrence or not start <= drain_by <= end):
        problem = "is for one window" if recurrence else "is not between spec.start and spec.end"
        raise InvalidObject(subject, "spec.drainBy", str(spec.drain_by), problem)
    reserved_for = spec.reserved_for or ReservedFor()
    if reserved_for.work and not reserved_for.namespace:
        raise InvalidObject(subject, "spec.for.work", reserved_for.work, "needs spec.for.namespace")
    return NodeReservation(
        uid=wire.metadata.uid,
        name=wire.metadata.name,
        resource_version=wire.metadata.resource_version,
        start=start,
        end=end,
        queue=reserved_for.queue or "",
        namespace=reserved_for.namespace or "",
        nodes=tuple(sorted(set(spec.nodes or ()))),
        node_labels=spec.node_selector or None,
        recurrence=recurrence,
        notice_us=notice,
        drain_by=drain_by,
        work=reserved_for.work or "",
    )


def _moment(time: datetime | None, *, subject: str, field: str) -> int:
    if time is None:
        raise InvalidObject(subject, field, None, "is missing")
    if time.tzinfo is None:
        raise InvalidObject(subject, field, str(time), "has no zone")
    # A rule of recurrence knows whole seconds.
    us = (time - _EPOCH) // timedelta(seconds=1) * 1_000_000
    if us < 0:
        raise InvalidObject(subject, field, str(time), "is before 1970")
    return us
