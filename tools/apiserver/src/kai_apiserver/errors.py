"""Every error that the simulated API server raises on purpose.

```
KaiError
├── StatusError       an answer that is a Kubernetes Status of failure; clients see code, reason, message and details
└── CorruptJournal    the data directory contradicts itself somewhere else than in a torn last line
```

The functions below build the answers of a kube-apiserver, to the letter: clients match on reasons, people on messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Protocol

import msgspec
from kaicore.errors import KaiError

FieldProblem = Literal[
    "FieldValueInvalid",
    "FieldValueRequired",
    "FieldValueForbidden",
    "FieldValueNotSupported",
    "FieldValueDuplicate",
    "FieldValueNotFound",
    "FieldValueTypeInvalid",
    "FieldValueTooLong",
    "FieldValueTooMany",
]


class CorruptJournal(KaiError):
    """The data directory contradicts itself."""


class StatusError(KaiError):
    """A request failed in a way that Kubernetes has a Status for."""

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        continue_token: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.continue_token = continue_token
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, Any]:
        """The Status object."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {"continue": self.continue_token} if self.continue_token else {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
        }
        details = dict(self.details) if self.details is not None else None
        if self.retry_after_s is not None:
            details = (details or {}) | {"retryAfterSeconds": self.retry_after_s}
        if details is not None:
            status["details"] = details
        status["code"] = self.code
        return status


class Verbatim(str):
    """A value that a message shows as it is, without quotes."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class NamedResource:
    """A resource as errors speak of it; a `ResourceType` will do, too."""

    plural: str
    group: str = ""
    kind: str = ""


class _Resource(Protocol):
    @property
    def plural(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def kind(self) -> str: ...


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with one field of an object.

    Attributes:
        problem: the machine-readable cause.
        field: path as in `spec.containers[0].name`.
        detail: what is wrong, in the API server's words; for `FieldValueNotSupported` left empty.
        value: the offending value.
        supported: for `FieldValueNotSupported`, what would do.
    """

    problem: FieldProblem
    field: str
    _: KW_ONLY
    detail: str = ""
    value: Any = None
    supported: tuple[str, ...] = ()

    @classmethod
    def invalid(cls, field: str, value: Any, detail: str) -> "FieldError":
        """A value that makes no sense; these are named as in `k8s.io/apimachinery/pkg/util/validation/field`."""
        return cls("FieldValueInvalid", field, detail=detail, value=value)

    @classmethod
    def required(cls, field: str, detail: str = "") -> "FieldError":
        """A value that is missing."""
        return cls("FieldValueRequired", field, detail=detail)

    @classmethod
    def forbidden(cls, field: str, detail: str) -> "FieldError":
        """A value that may not be there."""
        return cls("FieldValueForbidden", field, detail=detail)

    @classmethod
    def not_supported(cls, field: str, value: Any, supported: tuple[str, ...]) -> "FieldError":
        """A value that is none of those that would do."""
        return cls("FieldValueNotSupported", field, value=value, supported=supported)

    @property
    def message(self) -> str:
        """The cause's message, without the field."""
        if isinstance(self.value, Verbatim):
            shown: str = self.value
        elif isinstance(self.value, str):
            shown = f'"{self.value}"'
        else:
            shown = msgspec.json.encode(self.value).decode()
        tail = f": {self.detail}" if self.detail else ""
        match self.problem:
            case "FieldValueRequired":
                return f"Required value{tail}"
            case "FieldValueForbidden":
                return f"Forbidden{tail}"
            case "FieldValueNotSupported":
                return f"Unsupported value: {shown}: supported values: " + ", ".join(f'"{s}"' for s in self.supported)
            case "FieldValueDuplicate":
                return f"Duplicate value: {shown}"
            case "FieldValueNotFound":
                return f"Not found: {shown}"
            case "FieldValueTooLong":
                return f"Too long{tail}"
            case "FieldValueTooMany":
                return f"Too many: {shown}{tail}"
            case _:
                return f"Invalid value: {shown}{tail}"


def _details(resource: _Resource, *, name: str, kind: str = "") -> dict[str, Any]:
    given = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in given.items() if value}


def _qualified(name: str, group: str) -> str:
    return f"{name}.{group}" if group else name


def _subject(resource: _Resource, name: str) -> str:
    return f'{_qualified(resource.plural, resource.group)} "{name}"'


def not_found(resource: _Resource, name: str) -> StatusError:
    """No such object."""
    return StatusError(404, "NotFound", f"{_subject(resource, name)} not found", details=_details(resource, name=name))


def path_not_found() -> StatusError:
    """No such resource: the path leads nowhere."""
    return StatusError(404, "NotFound", "the server could not find the requested resource", details={})


def already_exists(resource: _Resource, name: str) -> StatusError:
    """An object of that name is there already."""
    return StatusError(
        409, "AlreadyExists", f"{_subject(resource, name)} already exists", details=_details(resource, name=name)
    )


def conflict(resource: _Resource, name: str, *, why: str) -> StatusError:
    """The operation was meant for another state of the object."""
    return StatusError(
        409,
        "Conflict",
        f"Operation cannot be fulfilled on {_subject(resource, name)}: {why}",
        details=_details(resource, name=name),
    )


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def bad_request(message: str) -> StatusError:
    """The request itself makes no sense."""
    return StatusError(400, "BadRequest", message)


def undecodable(kind: str, version: str, *, why: str) -> StatusError:
    """The body is no object of that kind."""
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {why}')


def forbidden(resource: _Resource, name: str, *, why: str) -> StatusError:
    """Admission or authorization said no."""
    subject = _subject(resource, name) if name else _qualified(resource.plural, resource.group)
    return StatusError(403, "Forbidden", f"{subject} is forbidden: {why}", details=_details(resource, name=name))


def unauthorized() -> StatusError:
    """The token is not one of ours."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def method_not_allowed() -> StatusError:
    """The resource is there, but not this verb."""
    return StatusError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        details={},
    )


def invalid(resource: _Resource, name: str, *, errors: Sequence[FieldError]) -> StatusError:
    """The object is well-formed but says something impossible."""
    messages = [f"{error.field}: {error.message}" for error in errors]
    summary = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    details = _details(resource, name=name, kind=resource.kind)
    details["causes"] = [{"reason": error.problem, "message": error.message, "field": error.field} for error in errors]
    kind = _qualified(resource.kind, resource.group)
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {summary}', details=details)


def precondition_failed(resource: _Resource, name: str, *, wanted_uid: str, actual_uid: str) -> StatusError:
    """The object is another one than the client means."""
    why = f"Precondition failed: UID in precondition: {wanted_uid}, UID in object meta: {actual_uid}"
    return conflict(resource, name, why=why)


def unsupported_media_type(accepted: Iterable[str] = ()) -> StatusError:
    """No such patch type: for built-in types the bare words, for custom ones the accepted types."""
    accepted = tuple(accepted)
    if not accepted:
        return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted),
    )


def expired_continue(fresh: str) -> StatusError:
    """A continue token is older than what is remembered; `fresh` continues inconsistently."""
    return StatusError(
        410,
        "Expired",
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter, or use the continue token in this response to retrieve the remainder of the "
        "results. Continuing with the provided token results in an inconsistent list - objects that were created, "
        "modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        continue_token=fresh,
    )


def expired_list() -> StatusError:
    """An exact resourceVersion was asked for that is no longer remembered."""
    return StatusError(410, "Expired", "The resourceVersion for the provided list is too old.")


def expired_watch(asked: int, oldest: int) -> StatusError:
    """A watch wants events from before what is remembered."""
    return StatusError(410, "Expired", f"too old resource version: {asked} ({oldest})")


def too_large_version(asked: int, current: int) -> StatusError:
    """A list wants a resourceVersion that is not there yet."""
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]},
        retry_after_s=1,
    )


def too_many_requests(message: str, *, retry_after_s: int | None = None, details: Any = None) -> StatusError:
    """Not now."""
    return StatusError(429, "TooManyRequests", message, details=details, retry_after_s=retry_after_s)


def request_too_large(limit: int) -> StatusError:
    """The body is larger than `limit` bytes."""
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}", details={})


def internal_error(message: str) -> StatusError:
    """The server's own fault."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        details={"causes": [{"message": message}]},
    )
