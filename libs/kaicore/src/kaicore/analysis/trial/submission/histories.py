"""Run times of the pods in logs: read once by event type, and then as the logs grow."""

from kaicore.analysis.replay.log_states import events_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.forecast.runs import RUN_EVENTS, RunHistory

#: How far back runs are looked for, in events of all types: some weeks of a busy cluster.
MOST_EVENTS = 500_000
#: And for an answer that is not to wait for that: less than a tenth of a second's.
_SOON_EVENTS = 10_000

_WHERE = Filter(types=RUN_EVENTS)


class RunHistories:
    """One for a process: what was read once is kept, by cluster."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: questions are about its clusters."""
        self._log = log
        self._kept: dict[str, RunHistory] = {}

    async def upto(self, cluster: str, position: int) -> RunHistory:
        """Return what a log up to a position tells of runs; the next call for the cluster may go on with it.

        Raises:
            LogUnavailable: the log does not answer.
        """
        kept = self._kept.get(cluster)
        history = kept if kept is not None and kept.position <= position else RunHistory()
        await self._read(cluster, history, position, MOST_EVENTS)
        if kept is None:
            self._kept[cluster] = history
        return history

    async def soon(self, cluster: str, position: int) -> RunHistory:
        """Return what `upto` does where little is to be read for it, else what the log's last events tell.

        Raises:
            LogUnavailable: the log does not answer.
        """
        kept = self._kept.get(cluster)
        if kept is not None and 0 <= position - kept.position <= _SOON_EVENTS:
            return await self.upto(cluster, position)
        history = RunHistory()
        await self._read(cluster, history, position, _SOON_EVENTS)
        return history

    async def read_ahead(self, cluster: str) -> None:
        """Read what a log tells of runs, unless that was read, so that questions need not.

        Raises:
            LogUnavailable: the log does not answer.
        """
        if cluster not in self._kept:
            history = RunHistory()
            await self._read(cluster, history, (await self._log.head(cluster)).position, MOST_EVENTS)
            self._kept.setdefault(cluster, history)

    async def _read(self, cluster: str, history: RunHistory, position: int, most: int) -> None:
        after = max(history.position, position - most, await self._log.retired(cluster))
        async for event in events_of(self._log, cluster, after=after, upto=position, where=_WHERE):
            history.take(event)
        history.position = max(history.position, position)
