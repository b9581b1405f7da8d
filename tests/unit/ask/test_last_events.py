"""The last events of a kind are read from the end backwards, each once, and no farther back than is needed."""

import pytest
from kaicore.analysis.replay import log_states as module
from kaicore.analysis.replay.log_states import last_events
from kaicore.ledger.log.port import Filter

from tests.given.doubles.counting_log import CountingLog
from tests.given.logs.new_events import new_event, unit

C = "c"
#: Of 400 events these are on the stream that is asked for.
ODD = [3, *range(20, 60, 2), 150, 300, 399]
MEANT = Filter(streams=("node/odd",))


@pytest.mark.parametrize("window", [1, 7, 400])
@pytest.mark.parametrize(("after", "upto", "enough"), [(0, 400, 1), (0, 400, 5), (0, 60, 4), (30, 400, 99), (9, 9, 1)])
async def test_the_last_ones_are_returned_and_each_is_read_once(
    monkeypatch: pytest.MonkeyPatch, window: int, after: int, upto: int, enough: int
) -> None:
    monkeypatch.setattr(module, "_WINDOW", window)
    monkeypatch.setattr(module, "_LAST_PAGE", 3)
    log = CountingLog(lambda: 1)
    await log.append(C, [unit(new_event("node/odd" if at in ODD else "node/even")) for at in range(1, 401)])
    events, begin = await last_events(log, C, MEANT, after=after, upto=upto, enough=enough)
    there_are = [at for at in ODD if after < at <= upto]
    assert [event.position for event in events] == [at for at in there_are if at > begin], "without a gap"
    assert len(events) >= min(enough, len(there_are))
    assert log.read_events == len(events)
    assert begin == after or len(events) >= enough
