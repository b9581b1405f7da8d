"""HTTP answers: encoded objects, Statuses, warnings."""

from collections.abc import Iterable

from aiohttp import web
from multidict import CIMultiDict

from kai_apiserver.errors import StatusError
from kai_apiserver.objects import Object, encode_json

JSON = "application/json"

#: Characters of all warnings about a request, and of each where that is not enough.
_MOST_WARNED, _MOST_OF_ONE = 4096, 256


def json_answer(
    body: bytes, status: int = 200, *, warnings: Iterable[str] = (), content_type: str = JSON
) -> web.Response:
    """An answer of encoded JSON."""
    headers: CIMultiDict[str] = CIMultiDict({"Content-Type": content_type})
    for warning in _short(list(warnings)):
        headers.add("Warning", f'299 - "{_quoted(warning)}"')
    return web.Response(body=body, status=status, headers=headers)


def _short(warnings: list[str]) -> Iterable[str]:
    """As many of the warnings, as long, as the real server sends; too many are cut, and those beyond left out."""
    if sum(map(len, warnings)) <= _MOST_WARNED:
        return warnings
    return [warning[:_MOST_OF_ONE] for warning in warnings[: _MOST_WARNED // _MOST_OF_ONE]]


def _quoted(text: str) -> str:
    """A text as a header may carry it within quotes: what cannot be printed is told by its number."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def object_answer(obj: Object, status: int = 200, *, warnings: Iterable[str] = ()) -> web.Response:
    """An answer of an object that is not encoded yet."""
    return json_answer(encode_json(obj), status, warnings=warnings)


def error_answer(error: StatusError, *, warnings: Iterable[str] = ()) -> web.Response:
    """The Status of a failure."""
    answer = json_answer(encode_json(error.body), error.code, warnings=warnings)
    if error.retry_after_s is not None:
        answer.headers["Retry-After"] = str(error.retry_after_s)
    return answer


def text_answer(text: str, status: int = 200) -> web.Response:
    """Plain text."""
    return web.Response(text=text, status=status)


def success(code: int = 0, *, details: Object | None = None) -> Object:
    """A Status of success."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code:
        status["code"] = code
    return status
