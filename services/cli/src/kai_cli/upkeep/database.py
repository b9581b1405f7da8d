"""Commands that keep a log's database: its schema, its read models, its oldest months, and pods' texts taken out."""

import os
import zlib
from contextlib import suppress
from pathlib import Path

from kaicore.analysis.ask.hours.kept import keep_hours
from kaicore.analysis.ask.projections.building import Builder
from kaicore.analysis.ask.projections.store import ViewStore
from kaicore.errors import ConfigurationError, EventsRetired, UnknownMoment
from kaicore.ledger.log.migrate import admit_roles, upgrade
from kaicore.ledger.log.partitions import Month
from kaicore.ledger.log.port import Seal
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.postgres.erasing import ErasureReport, ErasureRequest
from kaicore.ledger.log.snapshots import STATE_SNAPSHOT
from kaicore.rules.hub.hub_state import HUB, without_hub

from kai_cli.output import Progress
from kai_cli.sources.log_access import open_log_as_owner, opened_source
from kai_cli.sources.source import ANY_LOG, LogSourceFlags


async def retire(
    month: str, /, *, to: Path | None = None, dry_run: bool = False, source: LogSourceFlags = ANY_LOG
) -> None:
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
    if source.cluster is not None:
        raise ConfigurationError("--cluster: a month is retired of all clusters at once")
    oldest = Month.parse(month)
    async with open_log_as_owner(source) as log:
        seals = await log.month_seals(oldest)
        if seals and to is None:
            raise ConfigurationError(
                f"month {month} is retired already; its table {oldest.table} is still there: --to DIR puts it away"
            )
        if not seals:
            await _leave_states(log, oldest)
            seals = await log.detach_month(oldest, dry_run=dry_run)
        for seal in seals:
            print(await _summary(log, seal, dry_run=dry_run))
        if not seals:
            print(f"month {month}: no events")
        if dry_run:
            put_away = "left in the database" if to is None else f"written to {to} and dropped"
            print(f"would be sealed and detached, and table {oldest.table} {put_away}; nothing was changed")
        elif to is None:
            print(f"sealed and detached; its events are in table {oldest.table}")
        else:
            for file in await log.put_away_month(oldest, seals, to):
                print(f"written and read back: {file}")
            print(f"sealed and detached; table {oldest.table} is dropped")


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


async def project(*, rebuild: bool = False, source: LogSourceFlags = ANY_LOG) -> None:
    """Bring the read models up to the log's end; `kai-projector` does so all the time.

    Args:
        rebuild: make them from the log's first event on, beside those that are read; they take their place when they
            have caught up.
        source: which log; with --database-url, as the role kai_project.
    """
    if source.file is not None:
        raise ConfigurationError("--file: read models are kept in the database of a log, and a file has none")
    async with opened_source(source, role="kai_project") as opened:
        url = opened.database()
        assert url is not None
        async with (
            await PostgresLog.open(url, application="kai-project") as log,
            await ViewStore.open(url, application="kai-project") as store,
        ):
            for cluster in source.clusters(without_hub(await log.clusters())):
                begin = Builder.anew if rebuild else Builder.resume
                builder = await begin(log, store, cluster)
                with Progress(f"{cluster}: read models") as progress:
                    await builder.catch_up(progress=progress)
                with Progress(f"{cluster}: hours of the account") as progress:
                    await keep_hours(log, cluster, anew=rebuild, progress=progress)
                print(f"cluster {cluster}: read models as of position {builder.generation.position}")


def migrate(*, database_url: str | None = None) -> None:
    """Migrate a database and admit the roles of services; harmless when both is done already.

    Args:
        database_url: postgresql://… of the event log; by default $KAI_DATABASE_URL, which shows no password to a user
            who lists processes.
    """
    url = database_url or os.environ.get("KAI_DATABASE_URL")
    if not url:
        raise ConfigurationError("migrate what? Name --database-url, or set $KAI_DATABASE_URL")
    upgrade(url)
    admit_roles(url)


#: Positions that are printed.
_MOST_SHOWN = 20


async def erase_pod(
    pod: str,
    /,
    *,
    reason: str = "",
    all_labels: bool = False,
    dry_run: bool = False,
    source: LogSourceFlags = ANY_LOG,
) -> None:
    """Take a pod's name, labels and annotations out of the log, for good; what is left can be verified as before.

    A pseudonym takes the name's place wherever it stands, also in events about others. The erasure itself is recorded.

    Args:
        pod: NAMESPACE/NAME, or the uid of one; all pods that ever had the name are meant, and none may be there now.
        reason: why, such as a ticket; it is recorded, so name nobody in it.
        all_labels: erase labels and annotations, too, that name queues, groups and policies; cycles that went by them
            are then decided otherwise in a replay.
        dry_run: only say what would be done, or why it cannot be.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    if pod.count("/") > 1 or not pod.strip("/") or pod.startswith("/") or pod.endswith("/"):
        raise ConfigurationError(f"{pod!r}: is not a pod: write NAMESPACE/NAME, or a uid")
    request = ErasureRequest(pod, all_labels=all_labels, reason=reason, dry_run=dry_run)
    async with open_log_as_owner(source) as log:
        clusters = source.clusters(without_hub(await log.clusters()))
        if len(clusters) != 1:
            raise ConfigurationError(
                f"--cluster: which one? An erasure cannot be undone. There are: {', '.join(clusters) or '-'}"
            )
        report = await log.erase(clusters[0], request)
    print(_text(report, dry_run=dry_run))


def _text(report: ErasureReport, *, dry_run: bool) -> str:
    done = "would be erased" if dry_run else "erased"
    lines = [
        f"cluster {report.cluster}: {len(report.uids)} pods, {len(report.positions)} events: {done}; "
        f"called {report.pseudonym} from now on",
    ]
    if report.recorded and not dry_run:
        lines.append(f"recorded at {_positions(report.recorded)}")
    if report.left:
        lines.append(f"the name remains in {len(report.left)} events about others: {_positions(report.left)}")
    if report.retired:
        lines.append(f"events up to {report.retired} are in files of retired months, which were not touched")
    if dry_run:
        lines.append("nothing was changed")
    else:
        lines.append(
            "snapshots were deleted, and the relay makes the bus's stream anew; exports, backups, and the memory of "
            "services that run still hold the name: see docs/how-to/audit.md"
        )
    return "\n".join(lines)


def _positions(positions: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, positions[:_MOST_SHOWN]))
    return shown if len(positions) <= _MOST_SHOWN else f"{shown}, …"
