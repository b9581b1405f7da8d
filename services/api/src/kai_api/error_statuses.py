"""HTTP statuses of the errors that the library raises."""

from kaicore.errors import (
    EventsRetired,
    InvalidObject,
    KaiError,
    LogUnavailable,
    TooManyQuestions,
    UnknownMoment,
    UnknownSubject,
)

_STATUS: dict[type[KaiError], int] = {
    InvalidObject: 400,
    UnknownMoment: 400,
    UnknownSubject: 404,
    EventsRetired: 410,
    TooManyQuestions: 429,
    LogUnavailable: 503,
}


def status_of(error: KaiError) -> int:
    """Return the status of an error; 500 for what nobody who asks can do anything about."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
