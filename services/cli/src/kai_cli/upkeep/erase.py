"""`kai erase pod`: take a pod's name, labels and annotations out of the log; the chain can be verified as before."""

import asyncio

from kaicore.errors import ConfigurationError
from kaicore.ledger.log.postgres.erasing import ErasureReport, ErasureRequest
from kaicore.rules.hub.hub_state import without_hub

from kai_cli.sources.log_access import open_log_as_owner
from kai_cli.sources.source import LogSource, LogSourceFlags

#: Positions that are printed.
_MOST_SHOWN = 20


def erase_pod(
    pod: str,
    /,
    *,
    reason: str = "",
    all_labels: bool = False,
    dry_run: bool = False,
    source: LogSourceFlags | None = None,
) -> int:
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
    return asyncio.run(_erase(source or LogSource(), request))


async def _erase(source: LogSource, request: ErasureRequest) -> int:
    async with open_log_as_owner(source) as log:
        clusters = source.clusters(without_hub(await log.clusters()))
        if len(clusters) != 1:
            raise ConfigurationError(
                f"--cluster: which one? An erasure cannot be undone. There are: {', '.join(clusters) or '-'}"
            )
        report = await log.erase(clusters[0], request)
    print(_text(report, dry_run=request.dry_run))
    return 0


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
