"""Replays, counted: those that callers ask for, and the API's own from time to time, so that a difference is noticed.

A difference means that the log does not say what was decided, that it was altered, or that the rules are not
deterministic. None of it shows by itself.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog
from kaicore.rules.hub.hub_state import without_hub
from prometheus_client import Counter

from kai_api.long_answers import Busy, LongAnswers, NoAnswer, Question

CYCLES = Counter("kai_api_replayed_cycles", "Recorded cycles that were run again", ["cluster"])
DIFFERENCES = Counter("kai_api_replay_differences", "Differences between the log and replays of it", ["cluster"])
FAILURES = Counter("kai_api_replays_failed", "Replays that the API began by itself and that did not end", ["cluster"])

#: Seconds until a replay is begun that others were answered before.
_BUSY_S = 60.0

#: Nothing was decided in the range.
_BAD_REQUEST = 400

_log = logging.getLogger(__name__)


class _Report(msgspec.Struct):
    cycles: int = 0
    kinds: Mapping[str, int] = {}


def count_replay(cluster: str, body: bytes) -> None:
    """Count what a replay's answer says."""
    report = msgspec.json.decode(body, type=_Report)
    CYCLES.labels(cluster).inc(report.cycles)
    DIFFERENCES.labels(cluster).inc(sum(report.kinds.values()))
    if report.kinds:
        _log.warning("cluster %s: a replay differs from the log: %s", cluster, report.kinds)


async def keep_replaying(
    log: EventLog, long_answers: LongAnswers, *, every_s: float, after: Mapping[str, int] | None = None
) -> None:
    """Run what every cluster's cycles decided since the last time again, every so often, each once; never ends.

    Args:
        log: that is read.
        long_answers: by which replays are run.
        every_s: seconds from the end of a round of replays to the next one.
        after: positions, by cluster, behind which to begin, and a log that is not named at its beginning; None for the
            ends of the logs as they are now.
    """
    replayed = None if after is None else dict(after)
    while True:
        try:
            heads = {name: (await log.head(name)).position for name in without_hub(await log.clusters())}
            if replayed is not None:
                for cluster, head in heads.items():
                    first = max(replayed.get(cluster, 0), await log.retired(cluster)) + 1
                    if first <= head:
                        await _replay(long_answers, cluster, {"from": str(first), "to": str(head)})
            replayed = heads
        except KaiError as error:
            _log.warning("the ends of logs cannot be read: %s", error)
        await asyncio.sleep(every_s)


async def _replay(long_answers: LongAnswers, cluster: str, positions: Mapping[str, str]) -> None:
    never = asyncio.get_running_loop().create_future()
    # As long as nothing was counted, a counter that has a label would not be there.
    DIFFERENCES.labels(cluster), FAILURES.labels(cluster)
    while True:
        try:
            count_replay(cluster, await long_answers.ask(Question.REPLAY, cluster, positions, gone=never))
        except Busy:
            await asyncio.sleep(_BUSY_S)
            continue
        except NoAnswer as error:
            if error.status != _BAD_REQUEST:
                FAILURES.labels(cluster).inc()
                _log.warning("cluster %s: cannot be replayed: %s", cluster, error)
        except KaiError as error:
            FAILURES.labels(cluster).inc()
            _log.warning("cluster %s: cannot be replayed: %s", cluster, error)
        return
