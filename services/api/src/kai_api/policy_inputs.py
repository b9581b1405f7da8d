"""Routes of facts from outside for policies: the only ones of the API that write to a log, as a role of their own."""

import msgspec
from fastapi import HTTPException, Request
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, PolicyInputRow, input_rows, record_input
from kaicore.analysis.ask.queries import Inquiry
from kaicore.errors import InvalidObject
from kaicore.ledger.log.port import EventLog
from kaicore.runtime.access.scopes import current_caller

from kai_api.answering import AnswerRouter
from kai_api.auth import for_recorders

_DESCRIBED = {
    "requestBody": {
        "required": True,
        "description": "name, value (null takes it away), node (none: the cluster), request (a name to repeat it by)",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def make_policy_inputs_router(inquiry: Inquiry, recording: EventLog | None) -> AnswerRouter:
    """Make the routes.

    Args:
        inquiry: answers from the log.
        recording: the log, as a role that may append such facts; None where nobody may.
    """
    router = AnswerRouter()

    @router.get("/v1/clusters/{cluster}/policy-inputs")
    async def inputs(cluster: str, *, at: str = "") -> list[PolicyInputRow]:
        """List the facts from outside that policies may look at."""
        return input_rows((await inquiry.state_at(cluster, at)).policy_inputs)

    @router.post("/v1/clusters/{cluster}/policy-inputs", openapi_extra=_DESCRIBED)
    @for_recorders
    async def record(cluster: str, request: Request) -> PolicyInputRow:
        """Record a fact from outside for policies; a request that names itself may come again."""
        if recording is None:
            raise HTTPException(501, "this API records nothing: it has no KAI_INPUTS_DATABASE_URL")
        body = await request.body()
        try:
            asked = msgspec.json.decode(body, type=PolicyInputRequest)
        except msgspec.DecodeError as error:
            raise InvalidObject("policy input", "body", body[:100].decode(errors="replace"), str(error)) from error
        known, by = (await inquiry.state_at(cluster)).policy_inputs, current_caller().name
        return await record_input(recording, cluster, asked, known, by=by, actor=f"caller/{by}")

    return router
