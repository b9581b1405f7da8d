"""Lists that go on: printed once, and then what is new, has changed or is gone, as kubectl does."""

import asyncio
from collections.abc import Sequence

import msgspec
from kaicore.analysis.ask.answers import CycleRow, GroupRow, Listing, PodRow, Row, RowSelection

from kai_cli.answers import Answers
from kai_cli.printing import Output, print_data
from kai_cli.tables import rows_text

#: Seconds that one wait for news lasts.
_WAIT_S = 30.0


async def watch_listings(
    answers: Answers, clusters: Sequence[str], kind: str, wanted: RowSelection, *, output: Output
) -> None:
    """Print lists of clusters and what becomes of them, until cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for cluster in clusters:
                tasks.create_task(_watch(answers, cluster, kind, wanted, output=output, several=len(clusters) > 1))
    except ExceptionGroup as errors:
        # All ask the same, so one is as good as another.
        raise errors.exceptions[0] from None


async def _watch(
    answers: Answers, cluster: str, kind: str, wanted: RowSelection, *, output: Output, several: bool
) -> None:
    before: dict[str, Row] = {}
    while True:
        listing = await answers.listing(cluster, kind, wanted)
        now = {_key(row): row for row in listing.rows}
        changed = [row for key, row in now.items() if before.get(key) != row]
        gone = [row for key, row in before.items() if key not in now]
        if several and output == "table" and (changed or gone):
            print(f"cluster {cluster}:")
        _print(listing, changed, gone, output=output, first=not before)
        before = now
        while await answers.wait_beyond(cluster, listing.position, timeout_s=_WAIT_S) <= listing.position:
            pass


def _print(listing: Listing, changed: Sequence[Row], gone: Sequence[Row], *, output: Output, first: bool) -> None:
    if output != "table":
        for row in changed:
            print_data(row, output)
        for row in gone:
            print_data({**msgspec.to_builtins(row), "gone": True}, output)
        return
    if changed:
        text = rows_text(listing.kind, changed)
        print(text if first else text.partition("\n")[2], flush=True)
    for row in gone:
        print(f"{_key(row)} is gone from this list", flush=True)


def _key(row: Row) -> str:
    match row:
        case PodRow():
            return f"{row.namespace}/{row.name} {row.uid}"
        case GroupRow():
            return row.key
        case CycleRow():
            return f"{row.cycle} {row.position}"
        case _:
            return row.name
