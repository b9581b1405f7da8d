"""Facts from outside for policies: listed from a state, and recorded in a cluster's log.

A request that names itself is recorded once, however often it comes. The same name for another fact is refused.
"""

import time
from uuid import uuid4

import msgspec

from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.errors import IdempotencyConflict, InvalidObject
from kaicore.ledger.log.port import EventLog
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import PolicyInputRecorded
from kaicore.rules.state.registries.policy_inputs import PolicyInputs, check_input

_LONGEST_REQUEST = 100


class PolicyInputRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request to record a fact.

    Attributes:
        node: that it is about; empty for the whole cluster.
        value: a number or a text; null takes the fact away.
        request: a name of the request, under which it may come again; empty for one that comes once.
    """

    name: str
    value: int | str | None
    node: str = ""
    request: str = ""


class PolicyInputRow(Answer, frozen=True, kw_only=True):
    """A fact as it was recorded last (`recorded_at`: when; empty for one that was recorded just now)."""

    name: str
    node: str
    value: int | str | None
    by: str
    recorded_at: str = ""


def input_rows(inputs: PolicyInputs) -> list[PolicyInputRow]:
    """Return all facts, by name and node."""
    return [PolicyInputRow.copied(one, recorded_at=time_text(one.recorded_at)) for one in inputs.record()]


async def record_input(
    log: EventLog, cluster: str, asked: PolicyInputRequest, known: PolicyInputs, *, by: str, actor: str
) -> PolicyInputRow:
    """Record a fact in a cluster's log, once for each named request.

    Args:
        log: as a role that may append such events.

    Raises:
        InvalidObject: the fact cannot be, there are too many, or the request's name was used for another one.
        LogUnavailable: it is not known whether it was recorded; do the same again.
    """
    given = PolicyInputRecorded(asked.name, asked.node, asked.value, by)
    about = f"policy input {asked.name[:64]}"
    if len(asked.request) > _LONGEST_REQUEST:
        raise InvalidObject(about, "request", asked.request[:200], f"has {_LONGEST_REQUEST} characters at most")
    check_input(given, known)
    event = NewEvent(
        id=derived_id(cluster, type(given).__name__, actor, asked.request or uuid4().hex),
        stream=f"policy-input/{asked.name}",
        payload=given,
        actor=actor,
        occurred_at=time.time_ns() // 1000,
        subject=asked.name,
        correlation=f"policy-input/{asked.name}",
    )
    another = InvalidObject(about, "request", asked.request, "was used for another input; name it otherwise")
    try:
        (outcome,) = await log.append(cluster, [Unit((event,))])
    except IdempotencyConflict as error:
        raise another from error
    if outcome.duplicate:
        (recorded,) = await log.read(cluster, after=outcome.positions[0] - 1, limit=1)
        if decode_payload(recorded) != given:
            raise another
    return PolicyInputRow.copied(given)
