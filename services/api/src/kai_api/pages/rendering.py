"""Pages of HTML from templates: one environment, and the headers that keep a page to itself.

What goes wrong is a page too. Bars are parts of a whole, as percentages that templates draw.
"""

import hashlib
import zlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from kaicore.analysis.ask.projections.capacity import Gpus
from kaicore.errors import KaiError
from kaicore.rules.model.gpu_share import gpus_text
from kaicore.rules.model.quantity import readable_amount
from starlette.exceptions import HTTPException

from kai_api.answering import error_text, status_of
from kai_api.pages.frame import clock, duration, pods_text, short_time

#: Nothing from elsewhere, and no script or style in the page itself.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Vary": "Cookie, Accept-Encoding",
}
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_THEMES = ("light", "dark")
#: Bytes from which on an answer is compressed.
_WORTH_COMPRESSING = 1400


def page(request: Request, template: str, *, status: int = 200, **model: object) -> Response:
    """Render a page."""
    theme = request.cookies.get("theme", "")
    text = _environment().get_template(template).render(theme=theme if theme in _THEMES else "", **model)
    return _answer(request, text.encode(), "text/html; charset=utf-8", _HEADERS, status=status)


def static_file(request: Request, name: str) -> Response | None:
    """Return a file that pages need; None if there is none of the name."""
    if name not in _static():
        return None
    body, media_type = _static()[name]
    # Its address has a digest of it.
    headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
    return _answer(request, body, media_type, headers)


def _answer(
    request: Request, body: bytes, media_type: str, headers: Mapping[str, str], *, status: int = 200
) -> Response:
    headers = dict(headers)
    if len(body) >= _WORTH_COMPRESSING and "gzip" in request.headers.get("accept-encoding", ""):
        packer = zlib.compressobj(5, zlib.DEFLATED, 31)
        body = packer.compress(body) + packer.flush()
        headers["Content-Encoding"] = "gzip"
    return Response(body, status_code=status, headers=headers, media_type=media_type)


@cache
def _static() -> dict[str, tuple[bytes, str]]:
    folder = files("kai_api.pages") / "static"
    return {
        one.name: (one.read_bytes(), _MEDIA_TYPES[one.name.rpartition(".")[2]])
        for one in folder.iterdir()
        if one.name.rpartition(".")[2] in _MEDIA_TYPES
    }


def _asset(name: str) -> str:
    return f"/static/{name}?v={hashlib.sha256(_static()[name][0]).hexdigest()[:12]}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("kai_api.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(asset=_asset, readable=readable_amount)
    environment.filters.update(when=short_time, clock=clock, duration=duration, pods=pods_text, gpus=gpus_text)
    return environment


class PageRoute(APIRoute):
    """A route with errors that people read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """See `APIRoute`."""
        handler = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except HTTPException as error:
                return _error(request, HTTPStatus(error.status_code), str(error.detail))
            except RequestValidationError as error:
                faults = "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in error.errors())
                return _error(request, HTTPStatus.BAD_REQUEST, faults)
            except KaiError as error:
                return _error(request, HTTPStatus(status_of(error)), error_text(error))

        return answer


def _error(request: Request, status: HTTPStatus, why: str) -> Response:
    # What leads to a cluster that there is not is no way on.
    cluster = "" if why.startswith("no cluster ") else request.path_params.get("cluster", "")
    return page(request, "error.html", status=status, title=status.phrase, why=why, cluster=cluster)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar.

    Attributes:
        kind: what it is, which is also its class in the style sheet.
        label: for people.
        amount: for people.
        start, width: in hundredths of the bar.
    """

    kind: str
    label: str
    amount: str
    start: float
    width: float


def parts(whole: float, amounts: Iterable[tuple[str, str, float, str]]) -> tuple[Part, ...]:
    """Lay parts out one after another.

    Args:
        whole: what the full bar stands for; parts beyond it are cut off.
        amounts: kind, label, amount and the amount's text of each; those of nothing are left out.
    """
    made, start = [], 0.0
    for kind, label, amount, text in amounts:
        width = min(100.0 * amount / whole, 100.0 - start) if whole > 0 else 0.0
        if amount > 0:
            made.append(Part(kind, label, text, round(start, 2), round(width, 2)))
            start += width
    return tuple(made)


def gpu_parts(gpus: Gpus) -> tuple[Part, ...]:
    """Return the bar of some nodes' GPUs."""
    kinds = (
        ("held", "held", gpus.held),
        ("releasing", "releasing", gpus.releasing),
        ("free", "free", gpus.free),
        ("stranded", "stranded", gpus.stranded),
        ("out", "out of service", gpus.out),
    )
    return parts(gpus.total, ((kind, label, amount, gpus_text(amount)) for kind, label, amount in kinds))
