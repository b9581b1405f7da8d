"""Failure responses of an API server, and their errors. Imports little, because exporters use it too."""

import msgspec

from kaicore.errors import ApiStatus, ClusterError, ClusterUnavailable
from kaicore.rules.objects.wire import Wire

_TOO_MANY_REQUESTS = 429


class StatusDetails(Wire):
    """Details of a failure."""

    retry_after_seconds: int | None = None


class Status(Wire):
    """An API server's report of a failure."""

    code: int | None = None
    reason: str | None = None
    message: str | None = None
    details: StatusDetails | None = None


_status_decoder = msgspec.json.Decoder(Status)


def error_of(method: str, path: str, code: int, retry_after: str, body: bytes) -> ClusterError:
    """Return the error that a bad response stands for.

    Args:
        method: of the request, for the message.
        path: of the request, for the message.
        code: HTTP status of the response.
        retry_after: its `Retry-After`, empty without one.
        body: usually a Status.
    """
    try:
        status = _status_decoder.decode(body)
    except msgspec.DecodeError:
        status = Status(message=body[:200].decode(errors="replace"))
    if code != _TOO_MANY_REQUESTS and code < 500:
        return ApiStatus(code, status.reason or "Unknown", status.message or "no message")
    wait_s = int(retry_after) if retry_after.isdecimal() else None
    if wait_s is None and status.details is not None:
        wait_s = status.details.retry_after_seconds
    message = f"{code} {method} {path}: {status.message or 'no message'}"
    return ClusterUnavailable(message, code=code, reason=status.reason or "", retry_after_s=wait_s)
