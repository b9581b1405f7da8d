"""Pages of HTML from templates: one environment, and the headers that keep a page to itself."""

import hashlib
import zlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from fastapi import Request
from fastapi.responses import Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from kaicore.rules.model.quantity import readable_amount

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
    environment.filters.update(when=short_time, clock=clock, duration=duration, pods=pods_text)
    return environment
