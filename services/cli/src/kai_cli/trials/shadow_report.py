"""`kai shadow`: what a shadow's decisions come to, beside what the other scheduler did; and who of the two decides."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from kaicore.analysis.replay.log_states import folded
from kaicore.analysis.trial.shadow import ShadowReport, page, shadow_report
from kaicore.analysis.trial.simulation.kubelets import find_kubelets
from kaicore.errors import ConfigurationError
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import ReplicasChanged
from kaicore.rules.hub.hub_state import without_hub
from kaicore.rules.model.replicas import promoted_shadow, replicas_stream
from kaicore.spelling import did_you_mean

from kai_cli.output import OutputFlag, Progress, print_answer, table, warn
from kai_cli.sources.answers import named_api
from kai_cli.sources.log_access import open_log, open_log_as_owner
from kai_cli.sources.policies import book_of
from kai_cli.sources.source import (
    ANY_ANSWER,
    ANY_LOG,
    AnswerSource,
    FromFlag,
    LogSource,
    LogSourceFlags,
    SourceFlags,
    ToFlag,
    one_cluster,
)
from kai_cli.trials.what_if_history import comparison_text, write_page

#: Rejected pods in the table.
_MOST_PODS = 20


def report(
    scheduler: str = "",
    /,
    *,
    since: FromFlag = "",
    until: ToFlag = "",
    simulate: bool = True,
    policy: tuple[str, ...] = (),
    html: Path | None = None,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> None:
    """Compare what a shadow decided with what the other scheduler did, pod by pod, and with the window simulated.

    Args:
        scheduler: the scheduler of the pods; may be left out where there is one shadow.
        since: the window's first event: a position, a time, or a time before the log's end, such as -6h; by default
            where the shadow began.
        until: its last event; by default the log's last one.
        simulate: simulate the window as well, as the shadow would have gone on; it takes most of the time.
        policy: a policy of the shadow, or of the scheduler: its file, or its entry point; may be given several times.
        html: write a report to this file, too: one file without scripts.
    """
    if html is not None and not simulate:
        raise ConfigurationError("--html: shows the simulated window; leave out --no-simulate")
    answer = asyncio.run(_report(source, scheduler, since, until, policy, simulate=simulate))
    warn(() if answer.trajectory is None else answer.trajectory.notes)
    if html is not None and answer.trajectory is not None:
        write_page(html, page(answer, answer.trajectory))
    print_answer(answer, output, lambda: report_text(answer))


async def _report(
    source: AnswerSource, scheduler: str, since: str, until: str, policy: Sequence[str], *, simulate: bool
) -> ShadowReport:
    if source.api_named:
        api, clusters = await named_api(source)
        asked = {"scheduler": scheduler, "from": since, "to": until, "simulate": "" if simulate else "false"}
        return await api.shadow_report(_cluster(source, clusters), **asked)
    book = book_of(policy)
    async with open_log(source) as log:
        cluster = _cluster(source, without_hub(await log.clusters()))
        with Progress("comparing") as progress:
            return await shadow_report(
                log,
                cluster,
                find_kubelets,
                scheduler=scheduler,
                since=since,
                until=until,
                simulate=simulate,
                policies=book,
                progress=progress,
            )


async def promote(shard: str = "default", /, *, source: LogSourceFlags = ANY_LOG) -> None:
    """Have a shard's shadow decide, and its scheduler stand by.

    If the shadow ends, the scheduler takes over.

    Args:
        shard: the shard; its shadow is a `kai-scheduler` with `KAI_SHADOW` naming its own scheduler.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    await _list(source, shard, ("shadow",))


async def back(shard: str = "default", /, *, source: LogSourceFlags = ANY_LOG) -> None:
    """Have the scheduler of a shard decide again.

    Its promoted shadow is a shadow again.

    Args:
        shard: the shard.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    await _list(source, shard, ())


async def _list(source: LogSource, shard: str, replicas: tuple[str, ...]) -> None:
    async with open_log_as_owner(source) as log:
        cluster = _cluster(source, without_hub(await log.clusters()))
        state = await folded(log, cluster)
        if state.replicas.get(shard):
            raise ConfigurationError(f"shard {shard}: its replicas decide together; a shadow takes over from one alone")
        if shard not in state.last_cycles:
            close = did_you_mean(shard, state.last_cycles)
            raise ConfigurationError(f"shard {shard}: no scheduler has decided in it{close}")
        name = promoted_shadow(shard)
        decides = f"the {'shadow of the ' if replicas else ''}scheduler of shard {shard}"
        if state.replicas.get(name, ()) == replicas:
            print(f"cluster {cluster}: {decides} decides already")
            return
        stream = replicas_stream(name)
        version = state.versions.get(stream, 0)
        event = NewEvent(
            id=derived_id(cluster, stream, str(version)),
            stream=stream,
            payload=ReplicasChanged(shard=name, replicas=replicas),
            actor="kai",
            occurred_at=time.time_ns() // 1000,
            subject=name,
        )
        (outcome,) = await log.append(cluster, [Unit((event,))], expect={stream: version})
        print(f"cluster {cluster}: {decides} decides from event {outcome.positions[0]} on")
        return


def _cluster(source: LogSource, there_are: list[str]) -> str:
    if not there_are:
        raise ConfigurationError("the log is empty: there is no shadow")
    return one_cluster(source, there_are)


def report_text(answer: ShadowReport) -> str:
    """Return the report for people."""
    parts = [_head(answer), *_parts(answer), _rejected(answer)]
    if answer.trajectory is not None:
        parts.append(comparison_text(answer.trajectory))
    parts.append("what this cannot know:\n" + "\n".join(f"- {note}" for note in answer.notes))
    return "\n\n".join(filter(None, parts))


def _head(answer: ShadowReport) -> str:
    rejections, predictions = answer.rejections, answer.predictions
    lines = [
        f"cluster {answer.cluster}: {answer.begin} to {answer.end}, shadow of {answer.scheduler}",
        f"{answer.scheduler} bound {answer.pods} pods; the shadow: "
        + ", ".join(f"{count} {choice}" for choice, count in answer.choices.items() if count),
        f"kubelets rejected {rejections.observed}"
        + (
            f" ({', '.join(f'{count} {reason}' for reason, count in rejections.by_reason.items())})"
            if rejections.observed
            else ""
        ),
        f"of these the shadow avoids {rejections.avoided}, would wait with {rejections.waits}, "
        f"did not foresee {rejections.not_foreseen}"
        + (f", was away for {rejections.not_decided}" if rejections.not_decided else ""),
        f"what kubelets would do was predicted for {answer.scheduler}'s own nodes: "
        f"{predictions.rejected_rightly + predictions.admitted_rightly} right, {predictions.missed} rejections missed, "
        f"{predictions.false_alarms} false alarms",
    ]
    if answer.zones is not None and answer.chosen_zones is not None:
        lines.append(f"NUMA zones per pod: {answer.zones:.2f}; the shadow's: {answer.chosen_zones:.2f}")
    if answer.would_start:
        lines.append(f"{answer.would_start} pods wait that the shadow would start")
    return "\n".join(lines)


def _parts(answer: ShadowReport) -> list[str]:
    parts = []
    for name, some in (
        ("DAY", [(one.day, one) for one in answer.days]),
        ("QUEUE", [(one.queue, one) for one in answer.queues]),
    ):
        rows = [
            (key, *map(str, (one.pods, one.same_node, one.other_node, one.would_wait, one.rejections, one.avoided)))
            for key, one in some
        ]
        head = (name, "PODS", "SAME NODE", "OTHER NODE", "WOULD WAIT", "REJECTED", "AVOIDED")
        parts.append(table(head, rows) if rows else "")
    return parts


def _rejected(answer: ShadowReport) -> str:
    rows = [
        (
            f"{one.namespace}/{one.name}",
            one.node,
            one.reason,
            "yes" if one.predicted else "no",
            one.chosen or one.choice,
        )
        for one in answer.rejected[:_MOST_PODS]
    ]
    more = len(answer.rejected) - len(rows)
    if not rows:
        return ""
    shown = table(("REJECTED POD", "NODE", "REASON", "FORESEEN", "SHADOW"), rows)
    return shown + (f"\nand {more} more (-o json)" if more > 0 else "")
