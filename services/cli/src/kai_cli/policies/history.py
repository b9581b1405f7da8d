"""`kai policy history`: when which policies went live, and back, as the cycles of a log have it.

`kai policy input`: facts from outside that policies look at, recorded and listed.
"""

import re
import urllib.parse
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, PolicyInputRow, input_rows, record_input
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.engine.policies.setting import PolicySetting
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted
from kaicore.rules.hub.hub_state import without_hub

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.api_requests import request_api
from kai_cli.sources.current_cluster import one_cluster
from kai_cli.sources.log_access import open_log
from kai_cli.sources.source import AnswerSource, LogSource, LogSourceFlags, SourceFlags


class PolicyStep(Answer, frozen=True, kw_only=True):
    """A change of the policies of a shard.

    Attributes:
        position: of the first cycle with them.
        at: when it was recorded, RFC 3339.
        shard: that decides by them.
        policies: name, version, digest of the source, and for which queues; empty after the way back.
        cycles: how many cycles ran with them.
        left_out: in how many of these each failed, by name.
    """

    position: int
    at: str
    shard: str
    policies: tuple[str, ...]
    cycles: int
    left_out: dict[str, int]


async def policy_steps(log: EventLog, cluster: str) -> list[PolicyStep]:
    """Return the changes of policies in what is left of a log; what a shard begins with is one, if it is any."""
    by_digest: dict[str, tuple[PolicySetting, ...]] = {}
    async for recorded in _payloads(log, cluster, ConfigRecorded.__name__):
        if isinstance(recorded[2], ConfigRecorded):
            by_digest[recorded[2].digest] = EngineConfig.recorded(recorded[2].config).policies
    steps: list[PolicyStep] = []
    last: dict[str, tuple[tuple[PolicySetting, ...], int]] = {}
    async for position, at, cycle in _payloads(log, cluster, CycleCompleted.__name__):
        if not isinstance(cycle, CycleCompleted):
            continue
        policies = by_digest.get(cycle.config_digest, ())
        known, place = last.get(cycle.shard, ((), -1))
        if policies != known:
            place = len(steps)
            texts = tuple(map(_text, policies))
            steps.append(
                PolicyStep(
                    position=position, at=time_text(at), shard=cycle.shard, policies=texts, cycles=0, left_out={}
                )
            )
        last[cycle.shard] = policies, place
        if place >= 0:
            step = steps[place]
            left_out = dict(step.left_out)
            for one in cycle.policies_left_out:
                left_out[one.policy] = left_out.get(one.policy, 0) + 1
            steps[place] = msgspec.structs.replace(step, cycles=step.cycles + 1, left_out=left_out)
    return steps


async def _payloads(log: EventLog, cluster: str, kind: str) -> AsyncIterator[tuple[int, int, object]]:
    async for event in events_of(log, cluster, where=Filter(types=(kind,))):
        yield event.position, event.recorded_at, decode_payload(event)


def _text(setting: PolicySetting) -> str:
    queues = f" for {', '.join(setting.queues)}" if setting.queues else ""
    return f"{setting.name} {setting.version} ({setting.digest[:12]}){queues}"


async def history(*, source: LogSourceFlags | None = None, output: OutputFlag = "table") -> int:
    """Say when policies went live in each shard, for which queues, and back, and in how many cycles each failed.

    Args:
        source: where to ask.
        output: table, json or yaml.
    """
    source = source or LogSource()
    async with open_log(source) as log:
        there_are = without_hub(await log.clusters())
        if not there_are:
            raise ConfigurationError("the log is empty: there is no history")
        steps = await policy_steps(log, one_cluster(source, there_are))
    print_answer(steps, output, lambda: steps_text(steps))
    return 0


def steps_text(steps: list[PolicyStep]) -> str:
    """Return the steps for people."""
    if not steps:
        return "no cycle was decided with policies"
    rows = [
        (
            str(step.position),
            step.at,
            step.shard,
            ", ".join(step.policies) or "none",
            str(step.cycles),
            ", ".join(f"{name} {count}" for name, count in step.left_out.items()) or "-",
        )
        for step in steps
    ]
    return table(("POSITION", "SINCE", "SHARD", "POLICIES", "CYCLES", "LEFT OUT"), rows)


_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
#: Who records where nobody else is named: whoever runs `kai`.
_BY = "kai"


async def policy_input(
    name: str = "",
    value: Annotated[str, Parameter(allow_leading_hyphen=True)] = "",
    /,
    *,
    node: str = "",
    remove: bool = False,
    request: str = "",
    source: SourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Record a fact from outside for policies, or list them.

    Args:
        name: of the fact, as policies declare it.
        value: a whole number, or a short text.
        node: that it is about; by default the whole cluster.
        remove: take the fact away.
        request: a name of this request, under which it may be sent again without being recorded twice.
        source: where to record and to ask: the log, or the API of --api-url.
        output: of the list: table, json or yaml.
    """
    source = source or AnswerSource()
    if not name:
        rows = await _listed(source)
        print_answer(rows, output, lambda: listing_text(rows))
        return 0
    if bool(value) == remove:
        raise ConfigurationError(f"policy input {name}: give a value, or --remove")
    given = None if remove else int(value) if _NUMBER.fullmatch(value) else value
    asked = PolicyInputRequest(name=name, value=given, node=node, request=request)
    cluster = await _record(source, asked)
    where = f" of node {node}" if node else ""
    print(f"cluster {cluster}: {name}{where}: {'taken away' if given is None else given}")
    return 0


def listing_text(rows: list[PolicyInputRow]) -> str:
    """Return facts for people."""
    if not rows:
        return "no policy inputs"
    lines = [(row.name, row.node or "-", str(row.value), row.by, row.recorded_at) for row in rows]
    return table(("NAME", "NODE", "VALUE", "BY", "RECORDED"), lines)


async def _listed(source: AnswerSource) -> list[PolicyInputRow]:
    if url := _address(source):
        return msgspec.json.decode(request_api(url, source.api_token()), type=list[PolicyInputRow])
    async with open_log(source) as log:
        inquiry = Inquiry(log)
        cluster = one_cluster(source, [row.name for row in await inquiry.clusters()])
        return input_rows((await inquiry.state_at(cluster)).policy_inputs)


async def _record(source: AnswerSource, asked: PolicyInputRequest) -> str:
    if url := _address(source):
        request_api(url, source.api_token(), method="POST", body=msgspec.json.encode(asked))
        return source.cluster or ""
    async with open_log(source) as log:
        inquiry = Inquiry(log)
        cluster = one_cluster(source, [row.name for row in await inquiry.clusters()])
        known = (await inquiry.state_at(cluster)).policy_inputs
        await record_input(log, cluster, asked, known, by=_BY, actor=_BY)
        return cluster


def _address(source: AnswerSource) -> str:
    """Return where the API that is named has the facts; empty where none is."""
    address = source.api() if source.api_named else None
    if address is None:
        return ""
    if source.cluster is None:
        raise ConfigurationError("--cluster: name it; whoever records may not ask an API which clusters there are")
    return f"{address.rstrip('/')}/v1/clusters/{urllib.parse.quote(source.cluster, safe='')}/policy-inputs"
