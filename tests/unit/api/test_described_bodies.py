"""The bodies of requests in `/openapi.json`."""

from typing import Any

import msgspec
from fastapi import FastAPI, Request
from kai_api.answering import AnswerRouter, asking, describe


class _Thing(msgspec.Struct):
    name: str


def described(extra: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of a route that takes a body and answers with a thing."""
    app, router = FastAPI(), AnswerRouter()

    @router.post("/things", openapi_extra=extra)
    async def make(request: Request) -> _Thing:
        return msgspec.json.decode(await request.body(), type=_Thing)

    app.include_router(router)
    describe(app)
    operation: dict[str, Any] = app.openapi()["paths"]["/things"]["post"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == _REFERENCE
    return operation


_REFERENCE = {"$ref": "#/components/schemas/_Thing"}


def test_a_body_that_a_route_decodes_is_described_by_its_type_beside_the_answer() -> None:
    content = described(asking(_Thing))["requestBody"]["content"]
    assert content == {"application/json": {"schema": _REFERENCE}}


def test_a_body_that_a_route_describes_itself_is_described_beside_the_answer() -> None:
    body = {"required": True, "content": {"application/yaml": {"schema": {"type": "string"}}}}
    assert described({"requestBody": body})["requestBody"] == body


def test_a_route_without_a_body_has_none_described() -> None:
    assert "requestBody" not in described({})
