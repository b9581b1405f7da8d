"""Error answers of FastAPI applications in the form of all our servers, also from FastAPI itself or after a failure."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from kaicore.runtime.service.health import error_body
from kaicore.spelling import did_you_mean


def error_response(status: int, why: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer that says what is wrong."""
    return Response(error_body(why), status_code=status, headers=headers, media_type="application/json")


def add_error_handlers(app: FastAPI) -> None:
    """Have an application answer every error with `{"error": …}`."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return error_response(error.status_code, str(error.detail), error.headers)

    async def not_valid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_response(HTTPStatus.UNPROCESSABLE_ENTITY, _faults(error.errors()))

    async def gone(_: Request, __: Exception) -> Response:
        # Nobody reads it, and nothing failed here.
        return error_response(HTTPStatus.BAD_REQUEST, "the request did not come to its end")

    async def failed(_: Request, __: Exception) -> Response:
        return error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says how")

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, not_valid)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(Exception, failed)


async def only_known_parameters(request: Request) -> None:
    """Refuse a query with parameters that the route does not have: a filter that is misspelled lets all through.

    Raises HTTPException: 400, naming them and the valid ones.
    """
    dependant: Dependant = request.scope["route"].dependant
    of = (dependant, *dependant.dependencies)
    parameters = {parameter.alias for one in of for parameter in one.query_params}
    unknown = sorted(set(request.query_params) - parameters)
    if unknown:
        named = "; ".join(f"{name!r}{did_you_mean(name, parameters)}" for name in unknown)
        there_are = ", ".join(sorted(parameters)) or "none"
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"unknown query parameter {named} (there are: {there_are})")


def _faults(faults: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"{fault['loc'][-1]}: {fault['msg']}" for fault in faults)
