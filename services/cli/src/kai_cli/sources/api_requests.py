"""Requests to an API over HTTP, and what its statuses mean for a command."""

import urllib.error
import urllib.request

import msgspec
from kaicore.errors import ConfigurationError, KaiError, UnknownSubject

#: Seconds that an answer may take, besides what the question itself wants to wait.
ANSWER_S = 120.0
#: The same for a question that a process of its own computes on: longer than an API lets it.
LONG_ANSWER_S = 3600.0
#: Statuses that blame the question, or who asks it.
_BAD_QUESTION = frozenset({400, 401, 403, 409, 413, 414, 422, 431})

#: What an API says that has no log yet, or a proxy in front of one that is away.
_NOT_THERE = (502, 503, 504)


class ApiUnreachable(KaiError):
    """No API answers at an address."""


class _Problem(msgspec.Struct):
    """The problem that an API reports."""

    error: str


class _LoginToken(msgspec.Struct):
    path: str


def request_api(
    url: str, token: str, *, method: str = "GET", body: bytes | None = None, answer_s: float = ANSWER_S
) -> bytes:
    """Send a request, and return the answer's body.

    Args:
        token: a key or a token; empty for none.
        body: JSON to send; None for an empty body.

    Raises:
        ConfigurationError: the question makes no sense, or may not be asked.
        UnknownSubject: there is no such thing.
        ApiUnreachable: no API answers there.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{url.partition('/v1/')[0]}: is no address of an API: http://HOST:PORT")
    try:
        request = urllib.request.Request(url, data=body, method=method)  # noqa: S310  # checked above
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if token:
            # Not sent on to where an answer redirects to.
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=answer_s) as response:  # noqa: S310  # checked above
            answer: bytes = response.read()
            return answer
    except urllib.error.HTTPError as error:
        content = error.read()
        try:
            detail = msgspec.json.decode(content, type=_Problem).error
        except msgspec.DecodeError:
            detail = content.decode(errors="replace").strip()
        if error.code == 404:
            raise UnknownSubject(detail) from error
        if error.code == 401:
            raise ConfigurationError(f"{url.partition('/v1/')[0]}: {detail}; --token or $KAI_API_TOKEN") from error
        if error.code in _BAD_QUESTION:
            raise ConfigurationError(detail or error.reason) from error
        if error.code in _NOT_THERE:
            raise ApiUnreachable(f"{url}: {error.code} {detail or error.reason}") from error
        raise KaiError(f"{url}: {error.code} {detail or error.reason}") from error
    except (OSError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        why = getattr(reason, "strerror", None) or reason
        raise ApiUnreachable(f"the API at {url.partition('/v1/')[0]} does not answer: {why}") from error


def login_address(url: str, token: str) -> str:
    """Return the address at which a browser is logged in as the holder of a key, once.

    Raises KaiError: as `request_api`.
    """
    answer = request_api(f"{url.rstrip('/')}/v1/login-tokens", token, method="POST")
    return url.rstrip("/") + msgspec.json.decode(answer, type=_LoginToken).path
