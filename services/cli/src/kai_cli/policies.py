"""`kai policy`: the score table with the policies of a shard, when which went live, and the facts that they look at.

A trial of a policy is in `kai_cli.trials.policy_trials`.
"""

import re
import urllib.parse
from collections.abc import AsyncIterator, Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import indent
from typing import Annotated

import msgspec
from cyclopts import Parameter
from kaicore.analysis.ask.policy_inputs import PolicyInputRequest, PolicyInputRow, input_rows, record_input
from kaicore.analysis.ask.queries import Inquiry
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.policy import MOST, Point, Policy, PolicyBand
from kaicore.rules.engine.config import EngineConfig, PolicySetting
from kaicore.rules.engine.placement.node_score import BANDS, score_range
from kaicore.rules.engine.policies.book import PolicyBook
from kaicore.rules.engine.policies.builtin import BUILT_IN
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted
from kaicore.runtime.policies.loading import GROUP, load_policy
from kaicore.runtime.shard_settings import read_shard_settings

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.api_requests import request_api
from kai_cli.sources.log_access import open_cluster_log
from kai_cli.sources.source import ANY_ANSWER, ANY_LOG, AnswerSource, LogSourceFlags, SourceFlags

#: The mark of the rules of the score table that are the program's own.
BUILT_IN_MARK = "built-in"
_Loaded = tuple[PolicySetting, Policy]

#: No policy is asked for it: the pods' own preferences come before all bands.
_OWN = "preferences of the pod itself"


class BandRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A band of the score table, the most important first.

    Attributes:
        least: score of a policy there; `most` likewise.
        filled_by: names of policies; of built-in rules where none of the settings fills it.
        built_in: names of the built-in rules of the band.
    """

    band: str
    least: int
    most: int
    filled_by: tuple[str, ...]
    built_in: tuple[str, ...]


class ArgumentRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An argument of a policy, with its value in the setting and its meaning in the policy's model."""

    name: str
    value: object
    default: object
    meaning: str


class PolicyRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A policy.

    Attributes:
        queues: for which it decides; empty for all.
        band: that it fills; empty where it scores no nodes.
        live: whether it is asked again after charges.
        built_in: whether it is a rule of the score table that comes with the program.
        meaning: first line of its docstring.
        arguments: in the model's order.
    """

    name: str
    version: str
    digest: str
    points: tuple[str, ...]
    queues: tuple[str, ...]
    live: bool
    meaning: str
    band: str = ""
    built_in: bool = False
    arguments: tuple[ArgumentRow, ...] = ()


class PolicyListing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer; `installed` are those of packages that the settings do not name, `built_in` rules of the table."""

    bands: tuple[BandRow, ...]
    policies: tuple[PolicyRow, ...]
    installed: tuple[PolicyRow, ...]
    built_in: tuple[PolicyRow, ...] = ()


def list_policies(*, scheduler_config: Path | None = None, output: OutputFlag = "table") -> None:
    """List the bands of the score table with what fills each, and the policies of a shard with their arguments.

    Args:
        scheduler_config: the shard's settings, the YAML file that kai-scheduler takes; by default no policies.
    """
    book = PolicyBook()
    config = read_shard_settings(scheduler_config, book)
    loaded = [[load_policy(one) for one in names] for names in ([e.name for e in entry_points(group=GROUP)], BUILT_IN)]
    for one in (one for some in loaded for one in some):
        book.add(one.kind, one.setting.digest)
    installed, built_in = ([one.setting for one in some] for some in loaded)
    listing = listing_of(book.policies(config.policies), book.policies(installed), book.policies(built_in))
    print_answer(listing, output, lambda: listing_text(listing))


def listing_of(
    configured: Sequence[_Loaded], installed: Sequence[_Loaded], built_in: Sequence[_Loaded] = ()
) -> PolicyListing:
    """Return the listing of policies that settings name, of those that packages have, and of the built-in ones."""
    digests = {setting.digest for setting, _ in configured}
    return PolicyListing(
        bands=tuple(_bands(configured, built_in)),
        policies=tuple(map(_row, configured)),
        installed=tuple(_row(one) for one in installed if one[0].digest not in digests),
        built_in=tuple(_row(one, built_in=True) for one in built_in),
    )


def _bands(configured: Sequence[_Loaded], built_in: Sequence[_Loaded]) -> Iterator[BandRow]:
    filled, own = _by_band(configured), _by_band(built_in)
    preferred, name = PolicyBand.PREFERRED.value, [*BANDS][-1]
    yield BandRow(band=preferred, least=0, most=MOST, filled_by=filled.get(preferred, ()), built_in=())
    for band in BANDS.values():
        rules = own.get(band.name, ())
        by = filled.get(band.name, rules) if band.name != name else (name,)
        least, most = score_range(band.name) if rules else (band.least, band.most)
        yield BandRow(band=band.name, least=least, most=most, filled_by=by, built_in=rules)


def _by_band(policies: Sequence[_Loaded]) -> dict[str, tuple[str, ...]]:
    by_band: dict[str, tuple[str, ...]] = {}
    for setting, policy in policies:
        if band := _band(policy):
            by_band[band] = *by_band.get(band, ()), setting.name
    return by_band


def _band(policy: Policy) -> str:
    return PolicyBand(policy.band).value if Point.SCORE in policy.points() else ""


def _row(one: _Loaded, *, built_in: bool = False) -> PolicyRow:
    setting, policy = one
    fields = type(policy).Arguments.model_fields
    return PolicyRow(
        name=setting.name,
        version=setting.version,
        digest=setting.digest,
        points=setting.points,
        queues=setting.queues,
        live=policy.live,
        band=_band(policy),
        built_in=built_in,
        meaning=(policy.__doc__ or "").partition("\n")[0],
        arguments=tuple(
            ArgumentRow(
                name=name,
                value=setting.arguments[name],
                default=None if field.is_required() else field.get_default(call_default_factory=True),
                meaning=field.description or "",
            )
            for name, field in fields.items()
        ),
    )


def listing_text(listing: PolicyListing) -> str:
    """Return the listing for people."""
    bands = [
        (row.band, f"{row.least} to {row.most}", _filled_by(row), ", ".join(row.built_in) or "-")
        for row in listing.bands
    ]
    parts = [f"the score of a node, the most important first, after {_OWN}:"]
    parts[0] += "\n" + table(("BAND", "SCORES", "FILLED BY", "BUILT-IN RULES"), bands)
    for head, rows in (
        ("policies of this shard", listing.policies),
        ("policies of packages", listing.installed),
        ("built-in rules, which are policies too", listing.built_in),
    ):
        if rows:
            parts.append(f"{head}:\n\n" + "\n\n".join(map(_policy_text, rows)))
    if not listing.policies:
        parts.append("no policies in the settings (--scheduler-config)")
    return "\n\n".join(parts)


def _filled_by(row: BandRow) -> str:
    names, own = ", ".join(row.filled_by) or "-", {*row.built_in, "name"}
    return f"{names} ({BUILT_IN_MARK})" if row.filled_by and own.issuperset(row.filled_by) else names


def _policy_text(row: PolicyRow) -> str:
    queues = ", ".join(row.queues) or "all queues"
    band = f", band {row.band}" if row.band else ""
    again = ", asked again after charges" if row.live else ""
    mark = f"; {BUILT_IN_MARK}" if row.built_in else ""
    lines = [
        f"{row.name} {row.version}" + (f": {row.meaning}" if row.meaning else ""),
        f"  {', '.join(row.points)}{band}{again}; for {queues}; digest {row.digest[:12]}{mark}",
    ]
    if row.arguments:
        arguments = [(one.name, str(one.value), str(one.default), one.meaning) for one in row.arguments]
        lines.append(indent(table(("ARGUMENT", "VALUE", "DEFAULT", "MEANING"), arguments), "  "))
    return "\n".join(lines)


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
        print_answer(rows, output, lambda: inputs_text(rows))
        return
    if bool(value) == remove:
        raise ConfigurationError(f"policy input {name}: give a value, or --remove")
    given = None if remove else int(value) if _NUMBER.fullmatch(value) else value
    asked = PolicyInputRequest(name=name, value=given, node=node, request=request)
    cluster = await _record(source, asked)
    where = f" of node {node}" if node else ""
    print(f"cluster {cluster}: {name}{where}: {'taken away' if given is None else given}")


def inputs_text(rows: list[PolicyInputRow]) -> str:
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
            texts = tuple(map(_setting_text, policies))
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


def _setting_text(setting: PolicySetting) -> str:
    queues = f" for {', '.join(setting.queues)}" if setting.queues else ""
    return f"{setting.name} {setting.version} ({setting.digest[:12]}){queues}"


async def history(*, source: LogSourceFlags = ANY_LOG, output: OutputFlag = "table") -> None:
    """Say when policies went live in each shard, for which queues, and back, and in how many cycles each failed."""
    async with open_cluster_log(source) as (log, cluster):
        steps = await policy_steps(log, cluster)
    print_answer(steps, output, lambda: steps_text(steps))


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
