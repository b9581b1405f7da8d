"""`kai audit verify` and `kai audit seal`: whether the log still says what it said, and what shows it from outside."""

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from kaicore.analysis.inquiry.audit import audit_log
from kaicore.analysis.inquiry.reports import audit_answer
from kaicore.errors import ConfigurationError, InvalidObject
from kaicore.ledger.log.anchors import Key, anchor_line, hashes_of, read_anchors
from kaicore.ledger.log.audit import verify
from kaicore.rules.state.promises import PromiseReport

from kai_cli.log_access import open_log
from kai_cli.printing import Output, OutputFlag, print_answers
from kai_cli.source import LogSource, LogSourceFlags

Anchors = Mapping[str, Mapping[int, bytes]]


def audit_verify(
    *,
    against: Annotated[Sequence[Path], Parameter(name="--against")] = (),
    key: Path | None = None,
    chain_only: bool = False,
    source: LogSourceFlags | None = None,
    output: OutputFlag = "table",
) -> int:
    """Recompute the hash chain, and check that nothing was promised twice; exit 1 if anything is broken.

    Args:
        against: a file that `kai audit seal` wrote: what it vouches for must be in the log. May be given again.
        key: a file with the key that its lines must be signed with: an Ed25519 key in PEM, or a secret.
        chain_only: leave out the check of decisions, which folds the whole log.
        source: where to ask; without --cluster all clusters of the log and of the files.
        output: table, json or yaml.
    """
    anchors = _anchors(against, key)
    return asyncio.run(_audit_verify(source or LogSource(), anchors, output, chain_only=chain_only))


async def _audit_verify(source: LogSource, anchors: Anchors, output: Output, *, chain_only: bool) -> int:
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
            if one.promises is not None:
                print(_promises_text(one.promises))
    return 0 if all(one.ok for one in audits) else 1


def _promises_text(promises: PromiseReport) -> str:
    counts = {str(origin): count for origin, count in sorted(promises.counts.items())}
    twice = counts.pop("promised", 0)
    lines = [f"{promises.decisions} decisions: {twice or 'nothing'} promised twice", *map(str, promises.twice)]
    if counts:
        facts = ", ".join(f"{origin} {count}" for origin, count in counts.items())
        lines.append(
            f"facts after which a zone or node held more than it has, by cause (no decision promised it): {facts}"
        )
    return "\n".join(lines)


def audit_seal(
    file: Path,
    /,
    *,
    key: Path | None = None,
    source: LogSourceFlags | None = None,
) -> int:
    """Verify the log, and write down where it stands, to be compared later; exit 1 if it is broken.

    Keep the file where the log's writers cannot write. A broken log is not written down.

    Args:
        file: to which a line per cluster is added; what is there already must be in the log.
        key: a file with the key to sign with: a private Ed25519 key in PEM, or a secret.
        source: where to ask; without --cluster all clusters of the log.
    """
    text = _text(file) if file.exists() else ""
    signing = _key(key)
    anchors = hashes_of(read_anchors(text, name=str(file), key=signing))
    return asyncio.run(_audit_seal(source or LogSource(), file, text, anchors, signing))


async def _audit_seal(source: LogSource, file: Path, text: str, anchors: Anchors, key: Key | None) -> int:
    async with open_log(source) as log:
        clusters = source.clusters(sorted({*await log.clusters(), *anchors}))
        reports = [await verify(log, cluster, anchors=anchors.get(cluster, {})) for cluster in clusters]
    if not all(report.ok for report in reports):
        for report in reports:
            print(report)
        sys.stderr.write(f"kai: nothing was written to {file}\n")
        return 1
    lines = text.splitlines()
    for report in reports:
        before = lines[-1] if lines else ""
        now = time.time_ns() // 1000
        lines.append(
            anchor_line(report.cluster, report.head, seals=report.seals, sealed_at=now, before=before, key=key)
        )
        print(f"cluster {report.cluster}: sealed at {report.head.position} {report.head.hash.hex()}")
    _write(file, "".join(f"{line}\n" for line in lines))
    return 0


def _write(file: Path, text: str) -> None:
    """Replace a file as a whole: a seal that was cut off halfway would be taken for a forged one."""
    beside = file.with_name(f".{file.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        beside.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror}") from error


def _anchors(files: Sequence[Path], key: Path | None) -> Anchors:
    signed = _key(key)
    return hashes_of(anchor for file in files for anchor in read_anchors(_text(file), name=str(file), key=signed))


def _key(file: Path | None) -> Key | None:
    return None if file is None else Key.read(_bytes(file), name=str(file))


def _text(file: Path) -> str:
    try:
        return _bytes(file).decode()
    except UnicodeDecodeError as error:
        raise InvalidObject(str(file), "contents", str(error.object[:20]), "is no text") from error


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error
