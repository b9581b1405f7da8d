"""The page of `kai why`: first what is so and since when, then what is short, who is in the way, what would help."""

from collections.abc import Iterable, Iterator, Mapping
from textwrap import indent

from kaicore.analysis.ask.answers import Why
from kaicore.analysis.life.why_answers import (
    AttemptsAnswer,
    BlockerAnswer,
    NodeScore,
    NodeShortfall,
    PlacementAnswer,
    RemedyAnswer,
    SubGroupAnswer,
    TimelineStep,
)
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.model.quantity import readable_amount

from kai_cli.output import offer_lines, rows_text, shared_gpu_text, table, use_text

#: Changes of reasons, pods that would be evicted and domains that are printed; -o json has more.
_MOST_CHANGES, _MOST_EVICTED, _MOST_DOMAINS = 5, 3, 6


def why_text(why: Why) -> str:
    """Return an explanation."""
    return "\n".join(line for part in _parts(why) for line in part)


def _parts(why: Why) -> Iterator[list[str]]:
    yield _head(why)
    if why.dispatch is not None:
        yield [f"dispatch {why.dispatch.dispatch.name}: {why.dispatch.verdict}", *offer_lines(why.dispatch)]
    if why.attempts is not None:
        yield _attempts(why.attempts)
    yield list(_reasons(why))
    yield _short(why)
    if why.blockers:
        yield ["in the way:", *(f"  {line}" for one in why.blockers for line in _blocker(one))]
    yield list(_remedies(why))
    yield list(_start(why))
    yield [f"  ! {note}" for note in why.notes]
    if why.placement is not None:
        yield list(_placement(why.placement))
    yield list(_ends(why))
    if why.queue is not None:
        yield ["account:", indent(rows_text("queues", [why.queue]), "  ")]
    if why.node is not None and why.node.zones:
        yield [f"zones, predicted {why.node.kubelet}:"]
        yield [f"  {zone.name}: {use_text(zone.resources)}" for zone in why.node.zones]
    if why.node is not None and why.node.gpus:
        yield ["GPUs that are opened for sharing:", *(f"  {shared_gpu_text(gpu)}" for gpu in why.node.gpus)]
    if why.sub_groups:
        yield ["members:", indent(_sub_groups(why.sub_groups), "  ")]
    if why.pods:
        yield ["pods:", indent(rows_text("pods", why.pods), "  ")]
    if len(why.timeline) > 1:
        yield ["timeline:", *map(_step, why.timeline)]
    if why.story:
        yield ["story:", *(f"  {line.position:>8}  {line.text}" for line in why.story)]


def _head(why: Why) -> list[str]:
    name = f"{why.namespace}/{why.name}" if why.namespace else why.name
    subject = name if why.kind == "Pod" else f"{why.kind} {name}"
    since = why.attempts.since if why.attempts is not None else why.since
    lines = [f"{subject}: {why.verdict}" + (f", since {since}" if since else "")]
    if why.group is not None and why.kind != "Pod":
        lines.append(f"  group {why.group.key}: needs {why.group.minimum} at once, queue {why.group.queue or '-'}")
    return lines


# What waits.


def _attempts(attempts: AttemptsAnswer) -> list[str]:
    lines = [f"  {attempts.text}"]
    if not attempts.last_cycle:
        return lines
    lines.append(f"  last cycle: {attempts.last_cycle}, position {attempts.last_position}, {attempts.last_at}")
    changes = attempts.changes[-_MOST_CHANGES:]
    if len(attempts.changes) > 1:
        times = "once" if len(attempts.changes) == 2 else f"{len(attempts.changes) - 1} times"
        lines.append(f"  its reasons changed {times}; from position:")
        for one in changes:
            how = "not tried" if one.skipped else "tried"
            codes = ", ".join(dict.fromkeys(one.reasons)) or "none recorded"
            lines.append(f"    {one.position:>8}  {one.cycles} cycles, {how}: {codes}")
    return lines


def _reasons(why: Why) -> Iterator[str]:
    """Say each reason; what several of them have to say besides is said once."""
    said: set[str] = set()
    if why.reasons and why.reasons_position:
        yield f"  the last cycle found, at position {why.reasons_position}, when its turn came:"
    for reason in why.reasons:
        pods = "" if why.kind == "Pod" else f"{plural(reason.pods, 'pod')}: "
        more = [text for text in reason.details if text not in said]
        said.update(more)
        yield f"  - {pods}{reason.message}"
        yield from (f"      {text}" for text in more)


def _short(why: Why) -> list[str]:
    lines: list[str] = []
    if why.nodes:
        rows = [(one.node, _amounts(one.missing) or "-", _zones(one), "; ".join(one.reasons)) for one in why.nodes]
        lines += [
            f"closest nodes at position {why.position}:",
            indent(table(("NODE", "LACKS", "BY ZONE", "IN THE WAY"), rows), "  "),
        ]
        lines += [f"  zones of {nodes} predicted {text}" for text, nodes in _kubelets(why.nodes).items()]
    for domain in why.domains:
        name = f"{domain.level or 'topology'} {domain.domain or '(none)'}"
        lines.append(
            f"best domain: {name} of {domain.topology}: needed {domain.needed} {domain.unit}, has {domain.has}"
        )
    if why.queues:
        lines += ["queues:", indent(rows_text("queues", why.queues), "  ")]
    return lines


def _kubelets(nodes: Iterable[NodeShortfall]) -> dict[str, str]:
    """Return the nodes by the kubelet that predicts their zones."""
    names: dict[str, list[str]] = {}
    for one in nodes:
        if one.zones and one.kubelet:
            names.setdefault(one.kubelet, []).append(one.node)
    return {text: ", ".join(some) for text, some in names.items()}


def _zones(one: NodeShortfall) -> str:
    return ", ".join(
        f"{zone.zone} lacks {_amounts(zone.missing)}" if zone.missing else f"{zone.zone} has enough"
        for zone in one.zones
    )


def _amounts(amounts: Mapping[str, str]) -> str:
    return " ".join(f"{readable_amount(name, amount)} {name}" for name, amount in amounts.items())


def _blocker(one: BlockerAnswer) -> list[str]:
    pods = plural(one.pods, "pod")
    fits = "it fits without them" if one.suffices else "on the closest node"
    verdict = "; ".join(one.because)
    queue = f", queue {one.queue}" if one.queue else ""
    return [
        f"{one.group}: {pods} on {', '.join(one.nodes)}, {one.frees} (priority {one.priority}{queue}); {fits}",
        f"  {verdict if one.may_leave else f'may not be evicted for it: {verdict}'}",
    ]


def _start(why: Why) -> Iterator[str]:
    if why.start is not None:
        start = why.start.start
        forecast = start is not None and start.calibrated
        yield ("" if start is None else "forecast: " if forecast else "start: ") + why.start.text
        if forecast and why.calibration is not None:
            yield f"  {why.calibration.text}"


def _remedies(why: Why) -> Iterator[str]:
    """Say what would make it start; where nothing does, what would make room at least."""
    starts = why.starts_if
    room = [f"  + {remedy.message}" for remedy in why.schedulable_if]
    if starts is None:
        yield from room
        return
    if starts.next_cycle:
        yield f"  + the next cycle starts {starts.pod} on {starts.next_cycle}, as things are"
        return
    count = (
        f"{starts.tried} of {starts.tried + starts.untried} changes" if starts.untried else f"{starts.tried} changes"
    )
    if not starts.remedies:
        yield from room
        yield f"  + no single change makes {starts.pod} start: {count} were tried"
        return
    yield f"would make {starts.pod} start ({count} were tried, on a copy of the state):"
    yield from (f"  + {_remedy(one)}" for one in starts.remedies)


def _remedy(one: RemedyAnswer) -> str:
    until = f" (at {one.until})" if one.until else ""
    evicts = f", evicting {', '.join(one.evicts[:_MOST_EVICTED])}" if one.evicts else ""
    more = len(one.evicts) - _MOST_EVICTED
    return f"{one.message}{until}; then on {one.node}{evicts}{f' and {more} more' if more > 0 else ''}"


# What has, or had, a node.


def _placement(placed: PlacementAnswer) -> Iterator[str]:
    decider = f"cycle {placed.cycle}" if placed.cycle else "no cycle"
    yield f"placed on {placed.node} by {decider} (position {placed.position}, {placed.at}):"
    if placed.because:
        yield f"  {placed.because}"
    if placed.not_ranked:
        yield f"  why not elsewhere: {placed.not_ranked}"
    if placed.nodes:
        heads = ["", "NODE", "PREFERENCE", "SPARES DEVICES", "AVOIDED", "KEEPS POLICY", "ZONES", "IDLE DEVICES", "FULL"]
        rows = [_score(one) for one in placed.nodes]
        if any(one.room_taken for one in placed.nodes):
            heads.append("ROOM TAKEN")
            rows = [(*row, f"{one.room_taken / 100:.2f}") for row, one in zip(rows, placed.nodes, strict=True)]
        if any((one.choices, one.near, one.whole) != (0, -1, 100) for one in placed.nodes):
            heads += ["ALTERNATIVES", "NEAR", "WHOLE"]
            rows = [(*row, *_devices(one)) for row, one in zip(rows, placed.nodes, strict=True)]
        for policy in dict.fromkeys(name for one in placed.nodes for name in one.policies):
            heads.append(policy)
            rows = [(*row, str(one.policies.get(policy, 0))) for row, one in zip(rows, placed.nodes, strict=True)]
        yield indent(table(heads, rows), "  ")
        able = f"{plural(placed.able, 'node')} could take it"
        shown = f", of which these {len(placed.nodes)} are the best" if placed.able > len(placed.nodes) else ""
        yield f"  {able}{shown}; {placed.strategy}"
    yield from (f"  not: {text}" for text in placed.ruled_out)
    if placed.predicted:
        yield f"  predicted: {placed.predicted}" + (f", {placed.kubelet}" if placed.kubelet else "")
    if placed.observed:
        yield (
            f"  observed:  {placed.observed} ({placed.agreement})"
            if placed.agreement
            else f"  observed: {placed.observed}"
        )
    if placed.cause:
        yield f"  {placed.cause}"
    if placed.domains:
        rank = f", rank {placed.rank}" if placed.rank >= 0 else ""
        yield f"  domains: {', '.join(f'{level} {name}' for level, name in placed.domains.items())}{rank}"
    yield from (f"  holds {shared_gpu_text(gpu)}" for gpu in placed.gpus)


def _score(one: NodeScore) -> tuple[str, ...]:
    flags = (one.leaves_devices, one.avoided, one.keeps_policy)
    first, *others = ("yes" if flag else "no" for flag in flags)
    full = f"{one.full / 10:.1f} %"
    return (
        "*" if one.chosen else "",
        one.node,
        str(one.preference),
        first,
        *others,
        str(one.zones),
        str(one.idle_devices),
        full,
    )


def _devices(one: NodeScore) -> tuple[str, ...]:
    return str(one.choices), f"{one.near} %" if one.near >= 0 else "", f"{one.whole} %"


def _ends(why: Why) -> Iterator[str]:
    for one in why.evictions:
        preemptor = f" to make way for {one.made_way_for}" if one.made_way_for else ""
        queue = f" of queue {one.for_queue}" if one.for_queue else ""
        where = f"evicted from {one.node} by cycle {one.cycle} (position {one.position}, {one.at})"
        yield f"{where}: {one.reason}{preemptor}{queue}"
        if one.choice:
            yield f"  {one.choice}"
        if one.would_fit_on:
            yield f"  its successor fitted on {one.would_fit_on} then"
        yield from (f"  its owner made {text}" for text in one.successors)
    for rejection in why.rejections:
        yield (
            f"rejected by the kubelet of {rejection.node} (position {rejection.position}, {rejection.at}): "
            f"{rejection.reason}: {rejection.message}"
        )
        if rejection.predicted:
            yield f"  predicted: {rejection.predicted}"
        if rejection.learned:
            yield f"  {rejection.learned}"


def _step(step: TimelineStep) -> str:
    seconds = step.after_ms / 1000
    after = (
        f"+{seconds:.3f} s"
        if seconds < 60
        else f"+{seconds / 60:.1f} min"
        if seconds < 3600
        else f"+{seconds / 3600:.1f} h"
    )
    return f"  {step.position or '':>8}  {step.at}  {after:>10}  {step.what}"


# Groups.


def _sub_groups(sets: list[SubGroupAnswer]) -> str:
    heads = ("SUB-GROUP", "MINIMUM", "RUNNING", "WAITING", "LEAVING", "SUCCEEDED", "TOPOLOGY", "DOMAINS")
    return table(heads, [_sub_group(one) for one in sets])


def _sub_group(one: SubGroupAnswer) -> tuple[str, ...]:
    counts = (one.minimum, one.running, one.waiting, one.leaving, one.succeeded)
    domains = "; ".join(
        f"{level}: {', '.join(f'{name} {count}' for name, count in list(counted.items())[:_MOST_DOMAINS])}"
        for level, counted in one.domains.items()
    )
    return (one.name or "(all)", *map(str, counts), one.constraint or "-", domains)
