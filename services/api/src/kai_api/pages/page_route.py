"""Routes of pages: what goes wrong is a page too."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from kaicore.errors import EventsRetired, KaiError, LogUnavailable, UnknownMoment, UnknownSubject
from starlette.exceptions import HTTPException

from kai_api.pages.rendering import page

_STATUS: dict[type[KaiError], HTTPStatus] = {
    UnknownMoment: HTTPStatus.BAD_REQUEST,
    UnknownSubject: HTTPStatus.NOT_FOUND,
    LogUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    EventsRetired: HTTPStatus.GONE,
}


class PageRoute(APIRoute):
    """A route whose errors are read by people."""

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
                status = next((one for kind, one in _STATUS.items() if isinstance(error, kind)), None)
                if status is None:
                    raise
                return _error(request, status, str(error))

        return answer


def _error(request: Request, status: HTTPStatus, why: str) -> Response:
    cluster = request.path_params.get("cluster", "")
    return page(request, "error.html", status=status, title=status.phrase, why=why, cluster=cluster)
