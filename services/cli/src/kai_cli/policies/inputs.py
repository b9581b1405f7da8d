"""`kai policy input`: facts from outside that policies look at, recorded and listed."""

import re
import urllib.parse
from typing import Annotated

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, PolicyInputRow, input_rows, record_input
from kaicore.analysis.ask.queries import Inquiry
from kaicore.errors import ConfigurationError

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.api_requests import request_api
from kai_cli.sources.log_access import open_cluster_log
from kai_cli.sources.source import ANY_ANSWER, AnswerSource, SourceFlags

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
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
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
    if not name:
        rows = await _listed(source)
        print_answer(rows, output, lambda: listing_text(rows))
        return
    if bool(value) == remove:
        raise ConfigurationError(f"policy input {name}: give a value, or --remove")
    given = None if remove else int(value) if _NUMBER.fullmatch(value) else value
    asked = PolicyInputRequest(name=name, value=given, node=node, request=request)
    cluster = await _record(source, asked)
    where = f" of node {node}" if node else ""
    print(f"cluster {cluster}: {name}{where}: {'taken away' if given is None else given}")


def listing_text(rows: list[PolicyInputRow]) -> str:
    """Return facts for people."""
    if not rows:
        return "no policy inputs"
    lines = [(row.name, row.node or "-", str(row.value), row.by, row.recorded_at) for row in rows]
    return table(("NAME", "NODE", "VALUE", "BY", "RECORDED"), lines)


async def _listed(source: AnswerSource) -> list[PolicyInputRow]:
    if url := _address(source):
        return msgspec.json.decode(request_api(url, source.api_token()), type=list[PolicyInputRow])
    async with open_cluster_log(source) as (log, cluster):
        return input_rows((await Inquiry(log).state_at(cluster)).policy_inputs)


async def _record(source: AnswerSource, asked: PolicyInputRequest) -> str:
    if url := _address(source):
        request_api(url, source.api_token(), method="POST", body=msgspec.json.encode(asked))
        return source.cluster or ""
    async with open_cluster_log(source) as (log, cluster):
        known = (await Inquiry(log).state_at(cluster)).policy_inputs
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
