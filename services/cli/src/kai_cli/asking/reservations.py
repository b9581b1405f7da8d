"""`kai reserve` and `kai reservations`: nodes that are for some work, or for maintenance, from when to when."""

import re
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import yaml
from icalendar import Calendar, Event, Timezone, TimezoneDaylight, TimezoneStandard, vRecur
from kaicore.analysis.ask.counterfactuals.drains import DrainPlan
from kaicore.analysis.ask.counterfactuals.reservations import (
    InTheWayRow,
    ReservationPlan,
    ReservationQuestion,
    ReservationRow,
    ReservationsAnswer,
)
from kaicore.analysis.trial.simulation.validation import is_dns_name
from kaicore.errors import ConfigurationError, InvalidObject
from kaicore.interpreter import version
from kaicore.kube.api.access import configured_access
from kaicore.kube.api.client import KubeClient
from kaicore.kube.normalize.reservation import zone_named, zone_offsets
from kaicore.rules.events.reasons.base import plural
from kaicore.rules.model.quantity import parse_duration

from kai_cli.asking.questions import time_of
from kai_cli.output import OutputFlag, print_answer, print_answers, table
from kai_cli.running.load import Loader
from kai_cli.sources.answers import ask_each, open_answers
from kai_cli.sources.source import ANY_ANSWER, AtFlag, SourceFlags, one_cluster

_AHEAD = re.compile(r"\+(.+)")


async def reserve(  # long: one flag for each part of a reservation
    name: str,
    /,
    *,
    start: str,
    end: str,
    queue: str = "",
    namespace: str = "",
    work: str = "",
    maintenance: bool = False,
    nodes: str = "",
    labels: str = "",
    gpus: int = 0,
    count: int = 0,
    within: str = "",
    repeat: str = "",
    time_zone: str = "",
    notice: str = "",
    make: bool = False,
    kubeconfig: Path | None = None,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> int:
    """Plan a reservation of nodes, for a queue, a namespace or maintenance: what it displaces; and make it.

    Nothing is made without --make: the plan and its manifest are printed. Exit 1 if it is refused.

    Args:
        name: of the reservation.
        start: of its first window: a time (2026-12-05T02:00:00Z), or so long from now (+2h).
        end: of its first window: a time, or so long after the start (+4h).
        queue: the queue that it is for, with the queues below it.
        namespace: the namespace that it is for.
        work: the work in that namespace that it is for, by the name of its Job, group or lone pod; by default all.
        maintenance: it is for nobody.
        nodes: names of the nodes, divided by commas.
        labels: of the nodes that are chosen from, as key=value, divided by commas.
        gpus: how many GPUs the chosen nodes have together, at least.
        count: how many nodes are chosen.
        within: a label; all chosen nodes are in one of its domains.
        repeat: when further windows begin, as RFC 5545 has it: FREQ=WEEKLY;BYDAY=SA.
        time_zone: by which they do, and times without a zone count: Europe/Berlin; by default UTC.
        notice: until so long before a window work without a limit may start there; by default 1h.
        make: make it on the cluster.
        kubeconfig: by which it is made; by default as kubectl finds it.
        output: of the plan: table, json or yaml.
    """
    if maintenance == bool(queue or namespace):
        raise ConfigurationError("reserve: name --queue or --namespace, or say --maintenance")
    zone = _zone(time_zone) if time_zone else None
    begins = _moment(start, datetime.now(UTC), "--start", zone)
    asked = ReservationQuestion(
        name=_checked(name),
        start=_text(begins),
        end=_text(_moment(end, begins, "--end", zone)),
        queue=queue,
        namespace=namespace,
        work=work,
        nodes=nodes,
        labels=labels,
        gpus=gpus,
        count=count,
        within=within,
        recurrence=repeat,
        time_zone=time_zone,
        notice=notice,
    )
    async with open_answers(source) as (answers, clusters):
        plan = await answers.planned_reservation(one_cluster(source, clusters), asked)
    print_answer(plan, output, lambda: plan_text(plan, made=make))
    return await _carried_out(name, plan, kubeconfig, make=make)


async def _carried_out(name: str, plan: ReservationPlan | DrainPlan, kubeconfig: Path | None, *, make: bool) -> int:
    if plan.refusal:
        return 1
    if make:
        async with KubeClient(configured_access(str(kubeconfig or ""))) as client:
            loaded = await Loader(client).create([plan.manifest])
        if loaded.refused:
            raise ConfigurationError(loaded.refused[0])
        undo = "to stop the drain, or to undo it" if isinstance(plan, DrainPlan) else "to take it back"
        sys.stderr.write(f"made: Reservation {name}; {undo}: kubectl delete reservation {name}\n")
    return 0


async def drain(
    nodes: str = "",
    /,
    *,
    by: str,
    until: str = "+24h",
    name: str = "",
    labels: str = "",
    make: bool = False,
    kubeconfig: Path | None = None,
    source: SourceFlags = ANY_ANSWER,
    output: OutputFlag = "table",
) -> int:
    """Plan a drain of nodes: the groups it touches, what each loses, where it goes on; and carry it out.

    From now on no work starts there. What can go on elsewhere is evicted, gang by gang, within disruption budgets; at
    the time of --by, all of it. To stop it, or take it back: kubectl delete reservation NAME. Exit 1 if it is refused.

    Args:
        nodes: names, divided by commas.
        by: when all work has left: a time, or so long from now (+2h).
        until: until when nothing starts there: a time, or so long after --by.
        name: of the reservation that it is; by default drain- and the first node.
        labels: of the nodes instead of names, as key=value, divided by commas: a rack, a domain.
        make: carry it out on the cluster.
        kubeconfig: by which it is made; by default as kubectl finds it.
        output: of the plan: table, json or yaml.
    """
    now = datetime.now(UTC)
    end = _moment(by, now, "--by")
    called = name or "drain-" + re.sub(r"[^a-z0-9.-]+", "-", (nodes or labels).partition(",")[0].lower()).strip("-.")
    asked = ReservationQuestion(
        name=_checked(called),
        start=_text(now),
        end=_text(_moment(until, end, "--until")),
        nodes=nodes,
        labels=labels,
        drain_by=_text(max(end, now)),
    )
    async with open_answers(source) as (answers, clusters):
        plan = await answers.planned_drain(one_cluster(source, clusters), asked)
    print_answer(plan, output, lambda: drain_text(plan, made=make))
    return await _carried_out(called, plan, kubeconfig, make=make)


def _checked(name: str) -> str:
    if not is_dns_name(name):
        raise ConfigurationError(f"reservation {name!r}: a name is of lower case letters, digits, - and .")
    return name


def drain_text(plan: DrainPlan, *, made: bool) -> str:
    """Return the plan of a drain for people."""
    if plan.refusal:
        return f"refused: {plan.refusal}"
    spec = plan.manifest["spec"]
    assert isinstance(spec, dict)
    until = f"empty by {spec['drainBy']}, and no work starts there until {spec['end']}"
    parts = [f"{plural(len(plan.nodes), 'node')}: {', '.join(plan.nodes)}\n{until}"]
    rows = [(row.group, row.queue or "-", str(row.pods), row.gpus, row.lost, row.goes_on) for row in plan.groups]
    head = ("GROUP", "QUEUE", "PODS", "GPUS", "LOSES", "GOES ON")
    parts.append(table(head, rows) if rows else "no work is on them")
    if plan.waits_longer:
        parts.append(f"waits longer: {', '.join(plan.waits_longer)}")
    if not made:
        parts.append(yaml.safe_dump(plan.manifest, sort_keys=False).rstrip())
    return "\n\n".join(parts)


def _zone(name: str) -> ZoneInfo:
    return zone_named(name, subject="reserve", field="--time-zone")


def _moment(text: str, base: datetime, flag: str, zone: tzinfo | None = None) -> datetime:
    try:
        if ahead := _AHEAD.fullmatch(text):
            return base + timedelta(microseconds=parse_duration(ahead[1], subject="reserve", field=flag))
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None and zone is not None:
            moment = moment.replace(tzinfo=zone)
        if moment.tzinfo is None:
            raise ConfigurationError(f"{flag}: needs a zone, such as Z or +01:00: {text!r}")
        return moment.astimezone(UTC)
    except (ValueError, OverflowError, InvalidObject) as error:
        raise ConfigurationError(f"{flag}: is no time such as 2026-12-05T02:00:00Z, and no +2h: {text!r}") from error


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def plan_text(plan: ReservationPlan, *, made: bool) -> str:
    """Return a plan for people."""
    if plan.refusal:
        return f"refused: {plan.refusal}"
    spec = plan.manifest["spec"]
    assert isinstance(spec, dict)
    later = ", ".join(one.start.replace(".000Z", "Z") for one in plan.windows[1:])
    rule = " in ".join(str(spec[part]) for part in ("recurrence", "timeZone") if part in spec)
    again = f", again {rule}{later and f': {later}, …'}" if "recurrence" in spec else ""
    about = f"{plural(len(plan.nodes), 'node')} with {plural(plan.gpus, 'GPU')}: {', '.join(plan.nodes)}"
    parts = [f"{about}\n{spec['start']} to {spec['end']}{again}", _in_the_way(plan.displaces)]
    if not made:
        parts.append(yaml.safe_dump(plan.manifest, sort_keys=False).rstrip())
    return "\n\n".join(parts)


def _in_the_way(rows: list[InTheWayRow]) -> str:
    if not rows:
        return "nothing is in its way"
    lines = [(row.node, row.namespace, row.name, row.queue or "-", row.gpus, row.ends_at or "no limit") for row in rows]
    return f"{plural(len(rows), 'pod')} there when its window begins, if not ended before:\n" + table(
        ("NODE", "NAMESPACE", "POD", "QUEUE", "GPUS", "ENDS"), lines
    )


async def reservations(
    *, at: AtFlag = "", ical: bool = False, source: SourceFlags = ANY_ANSWER, output: OutputFlag = "table"
) -> None:
    """List the reservations of nodes: when, for whom, and what is in their way.

    Args:
        ical: print them as a calendar (RFC 5545).
    """
    # A log may be silent while windows begin; a file goes on no more.
    now = time_of(source, at)
    answers = await ask_each(source, at, lambda one, cluster: one.reservations(cluster, at=at, now=now))
    if ical:
        print(calendar_text(answers), end="")
    else:
        print_answers(answers, output, lambda: "\n\n".join(map(reservations_text, answers)))


def reservations_text(answer: ReservationsAnswer) -> str:
    """Return reservations for people."""
    head = f"cluster {answer.cluster}: as of position {answer.position}, {answer.recorded_at}"
    if not answer.reservations:
        return f"{head}\n\nno reservations"
    lines = [_cells(row) for row in answer.reservations]
    columns = ("NAME", "STATE", "FOR", "FROM", "TO", "AGAIN", "NODES", "GPUS", "IN THE WAY")
    return f"{head}\n\n{table(columns, lines)}"


def _cells(row: ReservationRow) -> list[str]:
    listed = ", ".join(row.nodes[:2]) + (f" and {len(row.nodes) - 2} more" if len(row.nodes) > 2 else "")
    nodes = (listed or "none") + (f" ({len(row.missing)} not ready)" if row.missing else "")
    names = [f"{one.namespace}/{one.name}" for one in row.in_the_way]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    rule = f"{row.recurrence} {row.time_zone}".strip() if row.recurrence else "-"
    about = [row.name, row.state, row.whom, row.start, row.end, rule, nodes, str(row.gpus)]
    return [*about, f"{', '.join(names[:2])}{more}" if names else "-"]


def calendar_text(answers: list[ReservationsAnswer]) -> str:
    """Return reservations as an iCalendar."""
    calendar = Calendar()
    calendar.add("prodid", f"-//kai-ledger//{version()}//EN")
    calendar.add("version", "2.0")
    rows = sorted(
        (row for answer in answers for row in answer.reservations), key=lambda row: row.first.start, reverse=True
    )
    # By each zone's name, its first window.
    for name, first in sorted({row.time_zone: row.first.start for row in rows if row.time_zone}.items()):
        calendar.add_component(_calendar_zone(name, datetime.fromisoformat(first)))
    for answer in answers:
        for row in answer.reservations:
            event = Event()
            event.add("uid", f"{row.name}@{answer.cluster}.kai-ledger")
            event.add("dtstamp", datetime.fromisoformat(answer.recorded_at))
            # A rule's COUNT counts from the first window.
            window = row.first if row.recurrence else row
            zone = _zone(row.time_zone) if row.time_zone else UTC
            event.add("dtstart", datetime.fromisoformat(window.start).astimezone(zone))
            event.add("dtend", datetime.fromisoformat(window.end).astimezone(zone))
            event.add("summary", f"{row.name}: {plural(len(row.nodes), 'node')} for {row.whom}")
            event.add("description", ", ".join(row.nodes))
            if row.recurrence:
                event.add("rrule", vRecur.from_ical(row.recurrence))
            calendar.add_component(event)
    text: bytes = calendar.to_ical()
    return text.decode()


def _calendar_zone(name: str, begin: datetime) -> Timezone:
    """Return a zone as iCalendar has it: for each change of its clocks, when it comes by the clocks before."""
    zone, changes = Timezone(), dict[tuple[int, int], list[datetime]]()
    zone.add("tzid", name)
    offsets = zone_offsets(name, int(begin.timestamp()) * 1_000_000)
    for earlier, later in pairwise([offsets[0], *offsets]):
        clock = datetime.fromtimestamp(later.since // 1_000_000 + earlier.seconds, UTC).replace(tzinfo=None)
        changes.setdefault((earlier.seconds, later.seconds), []).append(clock)
    for (before, after), (first, *again) in changes.items():
        part = TimezoneDaylight() if after > before else TimezoneStandard()
        part.add("dtstart", first)
        part.add("tzoffsetfrom", timedelta(seconds=before))
        part.add("tzoffsetto", timedelta(seconds=after))
        if again:
            part.add("rdate", again)
        zone.add_component(part)
    return zone
