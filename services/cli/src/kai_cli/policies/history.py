"""`kai policy history`: when which policies went live, and back, as the cycles of a log have it."""

from collections.abc import AsyncIterator

import msgspec
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.engine.config import EngineConfig, PolicySetting
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import ConfigRecorded, CycleCompleted

from kai_cli.output import OutputFlag, print_answer, table
from kai_cli.sources.log_access import open_cluster_log
from kai_cli.sources.source import ANY_LOG, LogSourceFlags


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
