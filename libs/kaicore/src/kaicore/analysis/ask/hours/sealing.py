"""Sealed months: the account of a month that is over, recorded as an event, and counted again to be compared.

A seal has the digest of the account to the last microsecond, and its figures for people. It is an event, so the log's
chain and its seals protect it. What is sealed never changes: a correction is one more event. Both count the log itself,
not the hours that are kept beside it.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

import msgspec

from kaicore.analysis.ask.hours.account import ACCOUNT_SCHEMA
from kaicore.analysis.ask.hours.report import Accounted, account_digest, account_of, month_range
from kaicore.analysis.json_spelling import Answer, time_text
from kaicore.analysis.replay.log_states import events_of
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import MonthSealed

_SECOND_US = 1_000_000


class SealedFigure(Answer, frozen=True, kw_only=True):
    """A figure of a sealed month, in thousandths of GPU-seconds, as it was sealed and as it is counted now."""

    name: str
    sealed: int
    counted: int


class MonthCheck(Answer, frozen=True, kw_only=True):
    """A sealed month, compared with the log.

    Attributes:
        seal: position of the last seal of the month.
        same: whether the account is the same to the last microsecond.
    """

    cluster: str
    month: str
    seal: int
    seals: int
    same: bool
    figures: list[SealedFigure]


def seal_of(accounted: Accounted) -> MonthSealed:
    """Return the seal of a month's account, as a first one."""
    figures: Counter[str] = Counter()
    (period,) = accounted.periods
    for owner, held in period.owners.items():
        figures[f"queue/{owner.queue}"] += held.held[0]
        for name in ("held", "borrowed", "idle", "evicted", "failed"):
            figures[name] += getattr(held, name)[0]
    for model in period.models.values():
        figures["capacity"] += model.capacity[0]
        figures["free"] += model.capacity[0] - model.held[0] - model.out[0]
        figures["stranded"] += model.stranded
        figures["out_of_service"] += model.out[0]
    return MonthSealed(
        month=period.month,
        position=accounted.position,
        rules=ACCOUNT_SCHEMA,
        digest=account_digest(accounted),
        figures={name: amount // _SECOND_US for name, amount in sorted(figures.items())},
    )


async def seal_month(
    log: EventLog,
    cluster: str,
    month: str,
    *,
    now: int,
    reason: str = "",
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> tuple[MonthSealed, int]:
    """Seal a month that is over; return the seal and its position. An equal seal is not recorded twice.

    Args:
        now: microseconds since the epoch.
        reason: why an earlier seal is corrected; empty where there is none.

    Raises:
        InvalidObject: it is no month.
        ConfigurationError: it is not over, or it is sealed otherwise and no reason is given.
        UnknownMoment: the log has nothing of it.
        EventsRetired: it was retired.
    """
    counted = await _counted(log, cluster, month, progress)
    before = [(position, seal) async for position, seal in _seals(log, cluster, month)]
    if before:
        position, last = before[-1]
        if (last.digest, last.rules) == (counted.digest, counted.rules):
            return last, position
        if not reason:
            raise ConfigurationError(
                f"cluster {cluster}: {month} is sealed by event {position}, and is counted otherwise now: "
                "`kai report verify --month MONTH` shows it; --correct REASON records a correction"
            )
        counted = msgspec.structs.replace(counted, corrects=position, reason=reason)
    event = NewEvent(
        id=derived_id(cluster, "MonthSealed", month, counted.digest, str(counted.corrects)),
        stream=f"month/{month}",
        payload=counted,
        actor="owner",
        occurred_at=now,
        subject=month,
    )
    (outcome,) = await log.append(cluster, [Unit((event,))])
    return counted, outcome.positions[0]


async def verify_month(
    log: EventLog, cluster: str, month: str, *, progress: Callable[[int, int], None] = lambda _, __: None
) -> MonthCheck:
    """Count a sealed month again, and compare.

    Raises:
        ConfigurationError: it is not sealed, or was sealed by other rules.
        InvalidObject, UnknownMoment, EventsRetired: see `seal_month`.
    """
    month_range(month)
    seals = [(position, seal) async for position, seal in _seals(log, cluster, month)]
    if not seals:
        raise ConfigurationError(f"cluster {cluster}: {month} is not sealed")
    position, sealed = seals[-1]
    if sealed.rules != ACCOUNT_SCHEMA:
        raise ConfigurationError(
            f"cluster {cluster}: {month} was sealed by version {sealed.rules} of the account's rules; this is version "
            f"{ACCOUNT_SCHEMA}"
        )
    counted = await _counted(log, cluster, month, progress)
    names = sorted(sealed.figures.keys() | counted.figures.keys())
    return MonthCheck(
        cluster=cluster,
        month=month,
        seal=position,
        seals=len(seals),
        same=counted.digest == sealed.digest,
        figures=[
            SealedFigure(name=name, sealed=sealed.figures.get(name, 0), counted=counted.figures.get(name, 0))
            for name in names
        ],
    )


async def _counted(log: EventLog, cluster: str, month: str, progress: Callable[[int, int], None]) -> MonthSealed:
    begin, end = month_range(month)
    head = await log.head(cluster)
    if head.recorded_at < end:
        raise ConfigurationError(
            f"cluster {cluster}: {month} is not over: its log ends {time_text(head.recorded_at)}"
            if head.position
            else f"cluster {cluster}: its log is empty"
        )
    return seal_of(await account_of(log, cluster, begin, end, from_kept=False, progress=progress))


async def _seals(log: EventLog, cluster: str, month: str) -> AsyncIterator[tuple[int, MonthSealed]]:
    async with aclosing(events_of(log, cluster, where=Filter(types=(MonthSealed.__name__,)))) as events:
        async for event in events:
            payload = decode_payload(event)
            if isinstance(payload, MonthSealed) and payload.month == month:
                yield event.position, payload
