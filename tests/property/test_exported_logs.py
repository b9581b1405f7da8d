"""Exported, imported and exported again, a log is the same to the byte, whatever is in it and whichever part it is."""

import asyncio
import filecmp
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from kaicore.analysis.replay.moments import Moment
from kaicore.ledger.log.memory import MemoryLog
from kaicore.ledger.log.postgres import PostgresLog
from kaicore.ledger.log.seals.audit import verify
from kaicore.rules.events.payloads import NodeDeleted

from tests.given.examples import examples
from tests.given.logs.exported import export_to, import_to
from tests.given.logs.new_events import new_event, unit

_names = itertools.count()

text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
events = st.builds(
    lambda stream, subject, body: new_event(f"node/{stream}", subject=subject, payload=NodeDeleted(uid="u", name=body)),
    st.sampled_from("abc"),
    text,
    text,
)


@settings(max_examples=examples(25))
@given(units=st.lists(st.lists(events, min_size=1, max_size=4), min_size=1, max_size=8), data=st.data())
def test_export_import_export_gives_the_same_bytes(
    module_database_url: str, units: list[list[object]], data: st.DataObject
) -> None:
    count = sum(map(len, units))
    first = data.draw(st.integers(1, count), label="first")
    last = data.draw(st.integers(first, count), label="last")
    asyncio.run(_there_and_back(module_database_url, units, first, last))


async def _there_and_back(url: str, units: list[list[object]], first: int, last: int) -> None:
    cluster = f"c{next(_names)}"
    log = MemoryLog(clock=itertools.count(1_700_000_000_000_000, 500_000_000_000).__next__)
    for one in units:
        await log.append(cluster, [unit(*one)])  # type: ignore[arg-type]
    with TemporaryDirectory() as directory:
        there, back = Path(directory, "there.gz"), Path(directory, "back.gz")
        await export_to(there, log, cluster, since=Moment(position=first), until=Moment(position=last))
        assert await import_to(url, there) == last - first + 1
        async with await PostgresLog.open(url) as copy:
            assert await copy.read(cluster, after=first - 1) == await log.read(cluster, after=first - 1, upto=last)
            assert (await verify(copy, cluster)).findings == ()
            await export_to(back, copy, cluster)
        assert filecmp.cmp(back, there, shallow=False)
