"""Events have two faces: `v1` and `events.k8s.io/v1` are the same stored objects under different field names."""

from kai_apiserver.objects import Object

_CORE_TO_NEW = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_NEW_TO_CORE = {new: core for core, new in _CORE_TO_NEW.items()}


def to_core_event(event: Object) -> Object:
    """An `events.k8s.io/v1` event as it is stored: a core one."""
    core = {_NEW_TO_CORE.get(field, field): value for field, value in event.items()}
    for field, zero in (("involvedObject", {}), ("source", {}), ("reportingComponent", ""), ("reportingInstance", "")):
        core.setdefault(field, zero)
    for field in ("firstTimestamp", "lastTimestamp", "eventTime"):
        core.setdefault(field, None)
    return core


def from_core_event(event: Object) -> Object:
    """A stored event as `events.k8s.io/v1` shows it; what is empty there is left out."""
    shown = {_CORE_TO_NEW.get(field, field): value for field, value in event.items()}
    for field in ("regarding", "note", "reportingController", "reportingInstance"):
        if not shown.get(field):
            shown.pop(field, None)
    return shown
