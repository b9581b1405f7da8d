"""HTTP answers: encoded objects, Statuses, warnings; and how they are sent."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass

from kai_apiserver.errors import StatusError
from kai_apiserver.http.request import Request
from kai_apiserver.objects import Object, encode_json
from kai_apiserver.rest.watch_stream import ConnectionDropped

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
