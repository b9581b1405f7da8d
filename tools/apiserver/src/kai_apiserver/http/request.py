"""One HTTP request, as ASGI hands it over, what its method and path ask for, and its answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

from kaicore.runtime.service.http_limits import CONNECTION

from kai_apiserver.errors import StatusError, method_not_allowed, request_too_large
from kai_apiserver.objects import Object, encode_json, is_true
from kai_apiserver.rest.watch_stream import ConnectionDropped

#: Largest request body, in bytes: the real server's limit.
MAX_BODY_BYTES = 3 * 1024 * 1024

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "POST": "create"}
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


@dataclass(slots=True)
class RequestPath:
    """The subject of a request.

    Attributes:
        verb: Kubernetes' verb for a resource, the lower-case method for any other path.
        path: the decoded path.
        query: the query's parameters; of repeated ones the first.
        group: API group; empty for core.
        version: API version; empty if the path is no resource's.
        plural: the resource; empty if the path is none.
        namespace: namespace, or empty.
        name: object name, or empty.
        subresource: subresource, or empty.
    """

    verb: str
    path: str
    query: dict[str, str]
    group: str = ""
    version: str = ""
    plural: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


def read_request_path(method: str, raw_path: str) -> RequestPath:
    """Read a method and an undecoded path with query. Raises StatusError: 405, the method does not go with the path."""
    raw, _, raw_query = raw_path.partition("?")
    query: dict[str, str] = {}
    if raw_query:
        for key, value in parse_qsl(raw_query, keep_blank_values=True):
            query.setdefault(key, value)
    parts = [unquote(part) if "%" in part else part for part in raw.split("/")[1:] if part]
    request = RequestPath(method.lower(), unquote(raw), query)
    if not parts:
        return request
    if parts[0] == "api" and len(parts) >= 3:
        request.version, rest = parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) >= 4:
        request.group, request.version, rest = parts[1], parts[2], parts[3:]
    else:
        return request
    _read_resource(request, rest)
    verbs = _OBJECT_VERBS if request.name else _COLLECTION_VERBS
    verb = verbs.get(method)
    if verb is None:
        raise method_not_allowed()
    if verb == "list" and is_true(query.get("watch")):
        verb = "watch"
    request.verb = verb
    return request


def _read_resource(request: RequestPath, rest: list[str]) -> None:
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES):
        request.namespace, rest = rest[1], rest[2:]
    elif rest[0] == "namespaces" and len(rest) > 1 and not request.group:
        request.namespace = rest[1]  # a namespace is in itself
    request.plural = rest[0]
    if len(rest) > 1:
        request.name = rest[1]
    if len(rest) > 2:
        request.subresource = "/".join(rest[2:])


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Request:
    """A request, its body, and the connection it came by.

    Attributes:
        target: path and query, not decoded.
        lost: a fault rule wants the client to get no answer, or not its end.
        half: a fault rule wants the client to get half of the answer's first piece, and no more.
    """

    __slots__ = ("_body", "_headers", "_receive", "_scope", "_send", "half", "lost", "method", "target")

    def __init__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        target: bytes = scope["raw_path"]
        if scope["query_string"]:
            target = b"%b?%b" % (target, scope["query_string"])
        self.target = _text(target)
        self.lost = self.half = False
        self._scope, self._receive, self._send = scope, receive, send
        # Of a header that comes twice, the first counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        self._body: bytes | None = None

    def header(self, name: bytes) -> str:
        """Return the value of a header, by its name in lower case; empty if it is not there."""
        return _text(self._headers.get(name, b""))

    @property
    def content_type(self) -> str:
        """The body's media type, without parameters."""
        return self.header(b"content-type").partition(";")[0].strip().lower() or "application/octet-stream"

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            StatusError: 413, it is too large.
            ConnectionError: the client has gone before its end.
        """
        if self._body is not None:
            return self._body
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ConnectionResetError
            parts.append(message["body"])
            size += len(parts[-1])
            if size > MAX_BODY_BYTES:
                raise request_too_large(MAX_BODY_BYTES)
            more = message["more_body"]
        self._body = parts[0] if len(parts) == 1 else b"".join(parts)
        return self._body

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the answer's status and headers."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool) -> None:
        """Send a part of the answer's body, the last one if there is no more."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def until_gone(self) -> None:
        """Wait until the client has gone or has the whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def cut(self) -> None:
        """Cut the connection without a word; what was written may be lost."""
        self._transport.abort()
        await self.until_gone()

    async def close(self) -> None:
        """Close the connection: what was written still arrives, the end of the answer does not."""
        self._transport.close()
        await self.until_gone()

    @property
    def _transport(self) -> asyncio.Transport:
        transport: asyncio.Transport = self._scope["extensions"][CONNECTION]["transport"]
        return transport


def _text(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


JSON = "application/json"

#: Characters of all warnings about a request, and of each where that is not enough.
_MOST_WARNED, _MOST_OF_ONE = 4096, 256


@dataclass(slots=True)
class Answer:
    """One answer.

    Attributes:
        status: the HTTP code.
        headers: other than those of length and encoding.
        body: all of it, or nothing where it is a stream.
        stream: the body piece by piece; it is closed whatever becomes of the answer.
    """

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    stream: AsyncGenerator[bytes] | None = None


async def send_answer(http: Request, answer: Answer) -> None:
    """Send an answer, or as much of it as the client waits for and fault rules let through."""
    if answer.stream is not None:
        await _send_stream(http, answer, answer.stream)
    elif http.lost:
        await http.cut()
    else:
        answer.headers.append((b"content-length", b"%d" % len(answer.body)))
        await http.begin(answer.status, answer.headers)
        if http.half:
            await http.write(answer.body[: len(answer.body) // 2], more=True)
            await http.close()
        else:
            await http.write(answer.body, more=False)


async def _send_stream(http: Request, answer: Answer, stream: AsyncGenerator[bytes]) -> None:
    sending = asyncio.ensure_future(_send_pieces(http, answer, stream))
    gone = asyncio.ensure_future(http.until_gone())
    try:
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            sending.result()
    except ConnectionDropped:
        gone.cancel()
        await http.close()
    finally:
        sending.cancel()
        gone.cancel()
        await asyncio.wait({sending, gone})
        await stream.aclose()


async def _send_pieces(http: Request, answer: Answer, stream: AsyncGenerator[bytes]) -> None:
    await http.begin(answer.status, answer.headers)
    async for piece in stream:
        if http.half:
            await http.write(piece[: len(piece) // 2], more=True)
            raise ConnectionDropped
        await http.write(piece, more=True)
    if http.lost:
        raise ConnectionDropped
    await http.write(b"", more=False)


def stream_answer(stream: AsyncGenerator[bytes]) -> Answer:
    """An answer of JSON that comes piece by piece."""
    return Answer(200, [(b"content-type", JSON.encode())], stream=stream)


def json_answer(body: bytes, status: int = 200, *, warnings: Iterable[str] = (), content_type: str = JSON) -> Answer:
    """An answer of encoded JSON."""
    headers = [(b"content-type", content_type.encode())]
    headers += [
        (b"warning", f'299 - "{_quoted(warning)}"'.encode(errors="surrogateescape"))
        for warning in _short(list(warnings))
    ]
    return Answer(status, headers, body)


def _short(warnings: list[str]) -> Iterable[str]:
    """As many of the warnings, as long, as the real server sends; too many are cut, and those beyond left out."""
    if sum(map(len, warnings)) <= _MOST_WARNED:
        return warnings
    return [warning[:_MOST_OF_ONE] for warning in warnings[: _MOST_WARNED // _MOST_OF_ONE]]


def _quoted(text: str) -> str:
    """A text as a header may carry it within quotes: what cannot be printed is shown by its number."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped)


def object_answer(obj: Object, status: int = 200, *, warnings: Iterable[str] = ()) -> Answer:
    """An answer of an object that is not encoded yet."""
    return json_answer(encode_json(obj), status, warnings=warnings)


def error_answer(error: StatusError, *, warnings: Iterable[str] = ()) -> Answer:
    """The Status of a failure."""
    answer = json_answer(encode_json(error.body), error.code, warnings=warnings)
    if error.retry_after_s is not None:
        answer.headers.append((b"retry-after", str(error.retry_after_s).encode()))
    return answer


def text_answer(text: str, status: int = 200) -> Answer:
    """Plain text."""
    return json_answer(text.encode(), status, content_type="text/plain; charset=utf-8")


def success(code: int = 0, *, details: Object | None = None) -> Object:
    """A Status of success."""
    status: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        status["details"] = details
    if code:
        status["code"] = code
    return status
