"""`kai why`, `kai replay` and `kai audit verify`: questions to the log, which need nothing but the log."""

import asyncio
import sys
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter
from kaicore.errors import ConfigurationError
from kaicore.inquiry import document, explain, replay_log
from kaicore.log.audit import verify
from kaicore.state.why import render_text

from kai_cli.asking import Source, open_log, the_cluster

Output = Literal["text", "json"]
OutputFlag = Annotated[Output, Parameter(name=["--output", "-o"])]
SourceFlags = Annotated[Source, Parameter(name="*")]

#: Events read at once.
_PAGE = 2000


def why(pod: str, /, *, source: SourceFlags | None = None, output: OutputFlag = "text") -> int:
    """Say why a pod is where it is, or why it is nowhere.

    Args:
        pod: NAMESPACE/NAME, or a name in the namespace default.
        source: where to ask.
        output: text or json.
    """
    namespace, _, name = pod.rpartition("/")
    return asyncio.run(_why(source or Source(), namespace or "default", name, output))


async def _why(source: Source, namespace: str, name: str, output: Output) -> int:
    async with open_log(source) as log:
        clusters = [await the_cluster(log, source)] if source.cluster else await log.clusters()
        found = [item for name_ in clusters if (item := await explain(log, name_, namespace, name)) is not None]
    if not found:
        raise ConfigurationError(f"the log has never heard of a pod {namespace}/{name}")
    if output == "json":
        print_json([document(item) for item in found] if len(found) > 1 else document(found[0]))
        return 0
    for item in found:
        if len(found) > 1:
            print(f"cluster {item.cluster}:")
        print(render_text(item))
    return 0


def replay(*, source: SourceFlags | None = None, output: OutputFlag = "text") -> int:
    """Fold the log again, run every recorded cycle again, and compare; exit 1 and print the first difference if any.

    Args:
        source: where to ask; without --cluster all clusters of the log.
        output: text or json.
    """
    return asyncio.run(_replay(source or Source(), output))


async def _replay(source: Source, output: Output) -> int:
    async with open_log(source) as log:
        clusters = [await the_cluster(log, source)] if source.cluster else await log.clusters()
        reports = [await replay_log(log, cluster) for cluster in clusters]
    if output == "json":
        print_json([msgspec.to_builtins(report) for report in reports])
    else:
        for report in reports:
            print(
                f"cluster {report.cluster}: {report.position} events, {report.cycles} cycles, "
                f"{report.decisions} decisions replayed, {report.late} more had come too late: "
                f"{len(report.differences)} differences"
            )
            if report.other_engine:
                print(f"  {report.other_engine} cycles were decided by another engine version")
            if report.differences:
                print(f"  first: {report.differences[0]}")
    return 1 if any(report.differences for report in reports) else 0


def audit_verify(*, source: SourceFlags | None = None, output: OutputFlag = "text") -> int:
    """Recompute the hash chain, and name the first broken position; exit 1 if there is one.

    Args:
        source: where to ask; without --cluster all clusters of the log.
        output: text or json.
    """
    return asyncio.run(_audit_verify(source or Source(), output))


async def _audit_verify(source: Source, output: Output) -> int:
    async with open_log(source) as log:
        clusters = [await the_cluster(log, source)] if source.cluster else await log.clusters()
        reports = [await verify(log, cluster) for cluster in clusters]
    if output == "json":
        print_json([{**msgspec.to_builtins(report), "ok": report.ok} for report in reports])
    else:
        for report in reports:
            print(report)
    return 0 if all(report.ok for report in reports) else 1


def print_json(document: object) -> None:
    """Print a document for machines; indented on a terminal."""
    body = msgspec.json.encode(document)
    print((msgspec.json.format(body, indent=2) if sys.stdout.isatty() else body).decode())
