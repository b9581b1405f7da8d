"""`kai audit verify`, `seal` and `set-aside`: whether the log still says what it said, and what is left out of it."""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.replay.audit import Audit, audit_answer, audit_log
from kaicore.analysis.replay.log_states import folded
from kaicore.errors import ConfigurationError
from kaicore.ledger.log.seals.anchors import Anchor, Key, anchor_line, hashes_of, read_anchors, read_file
from kaicore.ledger.log.seals.audit import verify
from kaicore.ledger.log.seals.deposits import Deposit, closing, open_deposit
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import EventSetAside, Undecodable
from kaicore.rules.state.promises import OverCommitOrigin, PromiseReport

from kai_cli.output.printing import Output, OutputFlag, print_answers
from kai_cli.sources.log_access import open_log, open_log_as_owner
from kai_cli.sources.source import LogSource, LogSourceFlags

Anchors = Mapping[str, Mapping[int, bytes]]

#: What it means that a fact brought more to a zone or node than it has.
_MEANINGS = {
    OverCommitOrigin.OBSERVED: "its kubelet gave the pod another pod's resources, mostly freed before the API said so",
    OverCommitOrigin.FOREIGN: "a pod came there without a decision",
    OverCommitOrigin.SHRUNK: "the node has less than before",
}


def audit_verify(
    *,
    against: Annotated[Sequence[str], Parameter(name="--against")] = (),
    key: Path | None = None,
    token_file: Path | None = None,
    chain_only: bool = False,
    source: LogSourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Recompute the hash chain, and check that nothing was promised twice; exit 1 if anything is broken.

    Args:
        against: a file or http(s):// address where seals were handed in, by `kai audit seal` or by the relay: what they
            vouch for must be in the log. May be given again.
        key: a file with the key that seals must be signed with: an Ed25519 key in PEM, or a secret.
        token_file: a file with the bearer token for http(s):// addresses.
        chain_only: leave out the check of decisions, which folds the whole log.
        source: where to ask; without --cluster all clusters of the log and of the seals.
        output: table, json or yaml.
    """
    deposits = [open_deposit(address, token=_token(token_file)) for address in against]
    return asyncio.run(_audit_verify(source or LogSource(), deposits, _key(key), output=output, chain_only=chain_only))


async def _audit_verify(
    source: LogSource, deposits: Sequence[Deposit], key: Key | None, *, output: Output, chain_only: bool
) -> int:
    anchors = await _anchors(deposits, key)
    async with open_log(source) as log:
        there_are = sorted({*await log.clusters(), *anchors})
        audits = [
            await audit_log(log, cluster, anchors=anchors.get(cluster, {}), chain_only=chain_only)
            for cluster in source.clusters(there_are)
        ]
    if output != "table":
        print_answers([audit_answer(one) for one in audits], output)
    else:
        if not audits:
            print("the log is empty")
        for one in audits:
            print(one.report)
            if lines := _left_out_lines(one):
                print("\n".join(lines))
            if one.promises is not None:
                print(_promises_text(one.promises))
    return 0 if all(one.ok for one in audits) else 1


def _left_out_lines(audit: Audit) -> list[str]:
    """Return the events that say nothing, and what cycles leave out, and why."""
    return [
        *(
            f"quarantined: event {event.position} ({event.type} on {event.stream}, by {event.actor}): {event.error}"
            for event in audit.quarantined
        ),
        *(f"set aside: event {event.position} (on {event.stream}): {event.reason}" for event in audit.set_aside),
        *(f"left out of cycles: {one}" for one in audit.left_out),
    ]


def _promises_text(promises: PromiseReport) -> str:
    counts = {str(origin): count for origin, count in sorted(promises.counts.items())}
    twice = counts.pop("promised", 0)
    lines = [f"{promises.decisions} decisions: {twice or 'nothing'} promised twice", *map(str, promises.twice)]
    if counts:
        facts = ", ".join(f"{origin} {count}" for origin, count in counts.items())
        lines.append(f"observed over-use, not caused by the scheduler: {facts}; such as")
        examples = {one.origin: one for one in reversed(promises.brought)}
        lines += [f"  {examples[origin]}: {meaning}" for origin, meaning in _MEANINGS.items() if origin in examples]
    return "\n".join(lines)


def audit_seal(
    address: str,
    /,
    *,
    key: Path | None = None,
    token_file: Path | None = None,
    source: LogSourceFlags | None = None,
) -> int:
    """Verify the log, and write down where it stands, to be compared later; exit 1 if it is broken.

    Keep what is written where the log's writers cannot write. A broken log is not written down.

    Args:
        address: a file, or the http(s):// address of a folder that takes PUT, to which a line per cluster is added;
            what is there already must be in the log.
        key: a file with the key to sign with: a private Ed25519 key in PEM, or a secret.
        token_file: a file with the bearer token for an http(s):// address.
        source: where to ask; without --cluster all clusters of the log.
    """
    deposit = open_deposit(address, token=_token(token_file))
    return asyncio.run(_audit_seal(source or LogSource(), deposit, _key(key)))


def audit_set_aside(position: int, /, *, reason: str, source: LogSourceFlags | None = None) -> int:
    """Set aside an event that cannot be decoded or folded: from then on it counts as if it said nothing.

    The event stays where it is, and an `EventSetAside` says which it was and why. Services decide about its node or pod
    again. The scheduler's /readyz and log say which events those are, and who appended them.

    Args:
        position: of the event.
        reason: why it is there and may be left out; it is recorded.
        source: which log; with --database-url, as the role that owns it (kai_migrate).
    """
    return asyncio.run(_set_aside(source or LogSource(), position, reason))


async def _set_aside(source: LogSource, position: int, reason: str) -> int:
    async with open_log_as_owner(source) as log:
        clusters = source.clusters(await log.clusters())
        if len(clusters) != 1:
            raise ConfigurationError(f"--cluster: which one? There are: {', '.join(clusters) or '-'}")
        (cluster,) = clusters
        events = await log.read(cluster, after=position - 1, upto=position, limit=1) if position > 0 else []
        if not events:
            raise ConfigurationError(f"cluster {cluster}: there is no event {position}")
        (event,) = events
        payload = decode_payload(event)
        if isinstance(payload, Undecodable):
            error = payload.error
        elif (found := (await folded(log, cluster)).quarantined.get(position)) is not None:
            error = found.error
        else:
            raise ConfigurationError(
                f"cluster {cluster}: event {position} ({event.type} on {event.stream}) can be decoded and folded: "
                "it stays what it is"
            )
        record = NewEvent(
            id=derived_id(cluster, "EventSetAside", str(position)),
            stream=f"quarantine/{position}",
            payload=EventSetAside(position, event.stream, event.hash.hex(), reason),
            actor="kai audit",
            occurred_at=time.time_ns() // 1000,
            subject=event.subject,
            cause=event.id,
        )
        (outcome,) = await log.append(cluster, [Unit((record,))])
    print(
        f"cluster {cluster}: event {position} ({event.type} on {event.stream}, by {event.actor}: {error}) "
        f"is set aside by event {outcome.positions[0]}"
    )
    return 0


async def _audit_seal(source: LogSource, deposit: Deposit, key: Key | None) -> int:
    async with closing(deposit):
        lines = await deposit.lines()
        anchors = hashes_of(read_anchors("\n".join(lines), name=deposit.address, key=key))
        async with open_log(source) as log:
            clusters = source.clusters(sorted({*await log.clusters(), *anchors}))
            reports = [await verify(log, cluster, anchors=anchors.get(cluster, {})) for cluster in clusters]
        if not all(report.ok for report in reports):
            for report in reports:
                print(report)
            sys.stderr.write(f"kai: nothing was written to {deposit.address}\n")
            return 1
        for report in reports:
            before = lines[-1] if lines else ""
            now = time.time_ns() // 1000
            line = anchor_line(report.cluster, report.head, seals=report.seals, sealed_at=now, before=before, key=key)
            await deposit.add(line, number=len(lines) + 1)
            lines.append(line)
            print(f"cluster {report.cluster}: sealed at {report.head.position} {report.head.hash.hex()}")
    return 0


async def _anchors(deposits: Sequence[Deposit], key: Key | None) -> Anchors:
    anchors: list[Anchor] = []
    for deposit in deposits:
        async with closing(deposit):
            lines = await deposit.lines()
        if not lines:
            raise ConfigurationError(f"{deposit.address}: holds no seals, or is not there")
        anchors += read_anchors("\n".join(lines), name=deposit.address, key=key)
    return hashes_of(anchors)


def _key(file: Path | None) -> Key | None:
    return None if file is None else Key.read(read_file(file), name=str(file))


def _token(file: Path | None) -> str:
    return "" if file is None else read_file(file).decode(errors="replace").strip()
