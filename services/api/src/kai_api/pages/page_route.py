"""Routes of pages: what goes wrong is a page too."""

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from kaicore.errors import KaiError
from starlette.exceptions import HTTPException

from kai_api.answering import error_text
from kai_api.error_statuses import status_of
from kai_api.pages.rendering import page


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
                return _error(request, HTTPStatus(status_of(error)), error_text(error))

        return answer


def _error(request: Request, status: HTTPStatus, why: str) -> Response:
    # What leads to a cluster that there is not is no way on.
    cluster = "" if why.startswith("no cluster ") else request.path_params.get("cluster", "")
    return page(request, "error.html", status=status, title=status.phrase, why=why, cluster=cluster)
