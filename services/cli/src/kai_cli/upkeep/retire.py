"""`kai retire`: take the oldest month out of the log, sealed, and put it away."""

import asyncio
import zlib
from contextlib import suppress
from pathlib import Path

from kaicore.errors import ConfigurationError, EventsRetired, UnknownMoment
from kaicore.ledger.log.partitions import Month, Seal
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.hub.hub_state import HUB

from kai_cli.sources.log_access import open_log_as_owner
from kai_cli.sources.source import LogSource, LogSourceFlags


def retire(
    month: str, /, *, to: Path | None = None, dry_run: bool = False, source: LogSourceFlags | None = None
) -> int:
    """Take the oldest month out of the log, and seal it; refused where the rest could not start without it.

    It needs, for each service, a sound snapshot at or after the month's last event, which is kept: services save one as
    they end. The state at the month's end is folded and kept by itself: what reads the log starts there from then on.

    Args:
        month: such as 2026-01; over for a day, and the oldest that there is.
        to: write the events, and what was kept, into files in this directory, read them back, and drop the table.
            Without it the table stays in the database, beside the log.
        dry_run: only say what would be done, or why it cannot be.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    source = source or LogSource()
    if source.cluster is not None:
        raise ConfigurationError("--cluster: a month is retired of all clusters at once")
    return asyncio.run(_retire(source, Month.parse(month), to, dry_run=dry_run))


async def _retire(source: LogSource, month: Month, to: Path | None, *, dry_run: bool) -> int:
    async with open_log_as_owner(source) as log:
        seals = await log.month_seals(month)
        if seals and to is None:
            raise ConfigurationError(
                f"month {month} is retired already; its table {month.table} is still there: --to DIR puts it away"
            )
        if not seals:
            await _leave_states(log, month)
            seals = await log.detach_month(month, dry_run=dry_run)
        for seal in seals:
            print(await _summary(log, seal, dry_run=dry_run))
        if not seals:
            print(f"month {month}: no events")
        if dry_run:
            put_away = "left in the database" if to is None else f"written to {to} and dropped"
            print(f"would be sealed and detached, and table {month.table} {put_away}; nothing was changed")
        elif to is None:
            print(f"sealed and detached; its events are in table {month.table}")
        else:
            for file in await log.put_away_month(month, seals, to):
                print(f"written and read back: {file}")
            print(f"sealed and detached; table {month.table} is dropped")
    return 0


async def _leave_states(log: PostgresLog, month: Month) -> None:
    """Leave each cluster's state at the month's end on its trail: then all that is left can be shown and replayed."""
    # Folding needs the engine and NumPy, which a refusal does not.
    from kaicore.analysis.replay.moments import Moment, position_of, state_at  # noqa: PLC0415
    from kaicore.ledger.log.snapshots import folded_hub, restored_hub, take_hub, take_state  # noqa: PLC0415

    for cluster in await log.clusters():
        # A cluster without events in the month, or without its first ones, is left as it is.
        with suppress(UnknownMoment, EventsRetired):
            end = min((month + 1).start - 1, (await log.head(cluster)).recorded_at)
            last = await position_of(log, cluster, Moment(time=end))
            snapshot = take_state(await state_at(log, cluster, last))
            await log.trail.save(cluster, snapshot, zlib.compress(snapshot.body))
            if cluster == HUB:
                await log.save_snapshot(HUB, take_hub(await folded_hub(log, await restored_hub(log))))


async def _summary(log: PostgresLog, seal: Seal, *, dry_run: bool) -> str:
    count = seal.position - seal.first_position + 1
    line = f"cluster {seal.cluster}: {count} events, {seal.first_position} to {seal.position}, hash {seal.hash.hex()}"
    kept = [] if dry_run else await log.kept_snapshots(seal.cluster, name=STATE_SNAPSHOT)
    return f"{line}; what reads it starts at {kept[-1].position}" if kept else line
