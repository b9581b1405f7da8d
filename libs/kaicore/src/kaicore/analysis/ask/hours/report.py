"""The report of GPU-hours: an account of a range of a log in hours, by who held what, with money where it has a price.

The account itself is in integers; a report has hours: of GPUs, of CPU cores, and of GiB of memory.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

import msgspec

from kaicore.analysis.ask.hours import account
from kaicore.analysis.ask.hours.kept import counted_hours, kept_hours_of
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.life.waits import Waits, waits_of
from kaicore.analysis.replay.moments import parse_moment, time_of
from kaicore.analysis.replay.past_states import PastStates
from kaicore.errors import EventsRetired, InvalidObject, UnknownMoment
from kaicore.ledger.log.port import EventLog, Filter

#: By what owners are distinguished; beside these `label:KEY`.
DIMENSIONS = ("team", "user", "namespace", "queue", "model")
LABEL = "label:"
#: The price of models that have none of their own.
ANY_MODEL = "*"

_HOUR_US = 3_600_000_000
#: So much of a resource, in the account's units, is one of it in the report.
_UNITS = (1000, 1000, 1 << 30)


class HeldHours(Answer, frozen=True, kw_only=True):
    """Hours of one resource that were held.

    Attributes:
        held: all of them: by right or borrowed.
        idle: of these, before their pods ran.
        evicted: work that evictions lost.
        failed: work that failures lost.
    """

    held: float
    by_right: float
    borrowed: float
    idle: float
    evicted: float
    failed: float


class OwnerRow(Answer, frozen=True, kw_only=True):
    """The hours that one owner held in a month.

    Attributes:
        name: the owner's; empty for what has none.
        waits: seconds until pods ran.
        cost: money for held GPU-hours; None without prices, or where a model has none.
    """

    month: str
    name: str
    gpu: HeldHours
    cpu: HeldHours
    memory: HeldHours
    waits: Waits
    cost: float | None = None


class CapacityHours(Answer, frozen=True, kw_only=True):
    """Hours of one resource: held, free and out of service are together the capacity; stranded ones are free."""

    capacity: float
    held: float
    free: float
    stranded: float
    out_of_service: float


class ModelRow(Answer, frozen=True, kw_only=True):
    """The hours of nodes with one model of GPUs in a month; the name is empty where their labels do not tell it."""

    month: str
    model: str
    gpu: CapacityHours
    cpu: CapacityHours
    memory: CapacityHours


class UsageReport(Answer, frozen=True, kw_only=True):
    """GPU-hours of a range of a cluster's log.

    Attributes:
        begin, end: of the range as far as the log has it.
        position: of the last event that counts.
        by: by what owners are distinguished.
        unpriced: models of GPUs that were held and have no price, where there are prices.
    """

    cluster: str
    begin: str
    end: str
    position: int
    by: str
    owners: list[OwnerRow]
    models: list[ModelRow]
    unpriced: list[str] = msgspec.field(default_factory=list)


class ReportQuestion(msgspec.Struct, frozen=True):
    """A report that is asked for.

    Attributes:
        by: one of `DIMENSIONS`, or `label:KEY`.
        month: as `2026-11`; empty for `since` and `until`, which are moments, by default the log's ends.
        prices: of a GPU-hour, by model of GPU; `*` for all others.
    """

    by: str = "queue"
    month: str = ""
    since: str = ""
    until: str = ""
    prices: Mapping[str, Decimal] = {}

    def check(self) -> None:
        """Raise InvalidObject unless it makes sense."""
        known = self.by in DIMENSIONS or (self.by.startswith(LABEL) and len(self.by) > len(LABEL))
        if not known:
            problem = f"owners are distinguished by {', '.join(DIMENSIONS)} or label:KEY"
            raise InvalidObject("report", "by", self.by[:100], problem)
        if self.month and (self.since or self.until):
            raise InvalidObject("report", "month", self.month[:100], "a month goes without from and to")


def read_prices(pairs: Sequence[tuple[str, str]]) -> dict[str, Decimal]:
    """Return prices by model from pairs of texts.

    Raises InvalidObject: a price is no number, is negative, or a model has two.
    """
    prices: dict[str, Decimal] = {}
    for model, text in pairs:
        try:
            price = Decimal(text.strip())
        except InvalidOperation:
            price = Decimal(-1)
        if not price.is_finite() or price < 0 or model in prices:
            problem = "has two prices" if model in prices else "is no number from 0 on"
            raise InvalidObject("report", f"price of {model[:100]!r}", text[:100], problem)
        prices[model] = price
    return prices


@dataclass(frozen=True, slots=True)
class Accounted:
    """An account, and the range of the log that it is of; times in microseconds since the epoch."""

    cluster: str
    begin: int
    end: int
    position: int
    periods: list[account.Period]


async def account_of(
    log: EventLog,
    cluster: str,
    begin: int,
    end: int,
    *,
    labels: tuple[str, ...] = (),
    from_kept: bool = True,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Accounted:
    """Return the account of what was recorded from `begin` on and before `end`, as far as the log has it.

    Args:
        log: the cluster's.
        begin, end: microseconds since the epoch.
        labels: of pods, by which owners are distinguished besides.
        from_kept: sum the hours that are kept beside the log, and count only the others.

    Raises:
        UnknownMoment: the log has nothing of it.
        EventsRetired: it begins in a month that was retired.
        LogUnavailable: the log does not answer.
    """
    head = await log.head(cluster)
    end = min(end, head.recorded_at)
    later = await log.read(cluster, limit=1, where=Filter(since=begin)) if head.position else []
    position = later[0].position - 1 if later else head.position
    retired = await log.retired(cluster)
    if later and (
        position < retired
        or (retired == position > 0 and account.month_of(begin) != account.month_of(later[0].recorded_at))
    ):
        raise EventsRetired(cluster, retired)
    begin = max(begin, later[0].recorded_at) if later and not position else begin
    if begin >= end or not later:
        there = f"it ends {time_text(head.recorded_at)}" if head.position else "it is empty"
        raise UnknownMoment(f"cluster {cluster}: its log has nothing of that time; {there}")
    kept = kept_hours_of(log) if from_kept else None
    hours: list[account.Period] = []

    async def count(since: int, until: int) -> None:
        if since >= until:
            return
        at = position
        if since > begin:
            next_ = await log.read(cluster, limit=1, where=Filter(since=since))
            at = next_[0].position - 1 if next_ else head.position
        state = await PastStates(log, cluster, once=True, progress=progress).at(at)
        counting = counted_hours(log, state, since, until, labels=labels, progress=progress)
        async with aclosing(counting) as counted:
            hours.extend([hour async for hour in counted])

    reached = begin
    for hour in [] if kept is None else await kept.read(cluster, begin, end, labels=labels):
        await count(reached, hour.begin)
        hours.append(hour)
        reached = hour.end
    await count(reached, end)
    return Accounted(cluster, begin, end, hours[-1].position, account.by_month(hours))


async def usage_report(
    log: EventLog,
    cluster: str,
    question: ReportQuestion,
    *,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> UsageReport:
    """Return the report of a range of a cluster's log.

    Raises:
        InvalidObject: the question makes no sense.
        UnknownMoment: the log has nothing of the range.
        EventsRetired: it begins in a month that was retired.
        LogUnavailable: the log does not answer.
    """
    question.check()
    begin, end = await _range(log, cluster, question)
    labels = (question.by.removeprefix(LABEL),) if question.by.startswith(LABEL) else ()
    accounted = await account_of(log, cluster, begin, end, labels=labels, progress=progress)
    return report_of(accounted, by=question.by, prices=question.prices)


def report_of(accounted: Accounted, *, by: str = "queue", prices: Mapping[str, Decimal] | None = None) -> UsageReport:
    """Return the report of an account; see `ReportQuestion`."""
    prices = prices or {}
    held = {owner.model for period in accounted.periods for owner, row in period.owners.items() if row.held[0]}
    unpriced = sorted(held - prices.keys()) if prices and ANY_MODEL not in prices else []
    return UsageReport(
        cluster=accounted.cluster,
        begin=time_text(accounted.begin),
        end=time_text(accounted.end),
        position=accounted.position,
        by=by,
        owners=[row for period in accounted.periods for row in _owners(period, by, prices)],
        models=[
            _model(period.month, model, counted)
            for period in accounted.periods
            for model, counted in sorted(period.models.items())
        ],
        unpriced=unpriced,
    )


def month_range(month: str) -> tuple[int, int]:
    """Return where a month as `2026-11` begins and ends, microseconds since the epoch.

    Raises InvalidObject: it is no month.
    """
    try:
        return account.month_bounds(month)
    except ValueError:
        raise InvalidObject("report", "month", month[:100], "a month is a year and a month, such as 2026-11") from None


async def _range(log: EventLog, cluster: str, question: ReportQuestion) -> tuple[int, int]:
    if question.month:
        return month_range(question.month)
    head = await log.head(cluster)
    begin = await time_of(log, cluster, parse_moment(question.since)) if question.since else 0
    end = await time_of(log, cluster, parse_moment(question.until)) if question.until else head.recorded_at
    if not question.since:
        after = await log.retired(cluster)
        first = await log.read(cluster, after=after, limit=1)
        begin = first[0].recorded_at if first else 0
    return begin, end


def _owners(period: account.Period, by: str, prices: Mapping[str, Decimal]) -> list[OwnerRow]:
    by_name: dict[str, list[tuple[account.HourOwner, account.Held]]] = {}
    for owner, held in period.owners.items():
        name = owner.labels[0] if by.startswith(LABEL) else getattr(owner, by)
        by_name.setdefault(name, []).append((owner, held))
    return [_owner(period.month, name, by_name[name], prices) for name in sorted(by_name)]


def _owner(
    month: str, name: str, rows: Sequence[tuple[account.HourOwner, account.Held]], prices: Mapping[str, Decimal]
) -> OwnerRow:
    hours = [_held([held for _, held in rows], resource) for resource in range(len(_UNITS))]
    cost: Decimal | None = Decimal(0) if prices else None
    for owner, held in rows:
        price = prices.get(owner.model, prices.get(ANY_MODEL))
        if cost is not None and held.held[0]:
            cost = None if price is None else cost + price * held.held[0] / (_UNITS[0] * _HOUR_US)
    waits = [wait / 1e6 for _, held in rows for wait in (*held.waits, *held.waiting)]
    money = None if cost is None else float(round(cost, 2))
    return OwnerRow(
        month=month, name=name, gpu=hours[0], cpu=hours[1], memory=hours[2], waits=waits_of(waits), cost=money
    )


def _held(rows: Sequence[account.Held], resource: int) -> HeldHours:
    def hours(figure: str) -> int:
        return sum(getattr(row, figure)[resource] for row in rows)

    held, borrowed = hours("held"), hours("borrowed")
    others = {name: in_hours(hours(name), resource) for name in ("idle", "evicted", "failed")}
    by_right = in_hours(held - borrowed, resource)
    return HeldHours(held=in_hours(held, resource), by_right=by_right, borrowed=in_hours(borrowed, resource), **others)


def _model(month: str, model: str, counted: account.ModelCapacity) -> ModelRow:
    gpu, cpu, memory = (
        CapacityHours(
            capacity=in_hours(counted.capacity[resource], resource),
            held=in_hours(counted.held[resource], resource),
            free=in_hours(counted.capacity[resource] - counted.held[resource] - counted.out[resource], resource),
            stranded=in_hours(0 if resource else counted.stranded, resource),
            out_of_service=in_hours(counted.out[resource], resource),
        )
        for resource in range(len(_UNITS))
    )
    return ModelRow(month=month, model=model, gpu=gpu, cpu=cpu, memory=memory)


def in_hours(amount: int, resource: int) -> float:
    """Return an amount of the account in hours of a resource, which is given by its place."""
    return amount / (_UNITS[resource] * _HOUR_US)


def account_digest(accounted: Accounted) -> str:
    """Return the SHA-256 of an account in hexadecimal; equal accounts have equal ones."""
    periods = [
        [
            *(period.month, period.begin, period.end),
            [
                [
                    owner,
                    held.held,
                    held.borrowed,
                    held.idle,
                    held.evicted,
                    held.failed,
                    sorted(held.waits + held.waiting),
                ]
                for owner, held in sorted(period.owners.items(), key=lambda item: item[0])
            ],
            [[model, one.capacity, one.held, one.out, one.stranded] for model, one in sorted(period.models.items())],
        ]
        for period in accounted.periods
    ]
    document = [account.ACCOUNT_SCHEMA, accounted.cluster, accounted.begin, accounted.end, accounted.position, periods]
    # Sums over a month may have more than 64 bits, which msgspec does not encode.
    return hashlib.sha256(json.dumps(document, separators=(",", ":")).encode()).hexdigest()
