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


async def keep_replaying(log: EventLog, long_answers: LongAnswers, *, every_s: float) -> None:
    """Run the cycles of the last `every_s` seconds again, every so often, of every cluster; never ends."""
    while True:
        await asyncio.sleep(every_s)
        try:
            clusters = without_hub(await log.clusters())
        except KaiError as error:
            _log.warning("the log's clusters cannot be listed: %s", error)
            continue
        for cluster in clusters:
            await _replay(long_answers, cluster, every_s)


async def _replay(long_answers: LongAnswers, cluster: str, last_s: float) -> None:
    never = asyncio.get_running_loop().create_future()
    while True:
        try:
            count_replay(
                cluster, await long_answers.ask(Question.REPLAY, cluster, {"from": f"-{last_s:.0f}s"}, gone=never)
            )
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
