"""How long the pods of logs have run: read by the type of events, once, and then as the logs grow."""

from kaicore.analysis.inquiry.log_states import events_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.forecast.runs import RUN_EVENTS, RunHistory

#: How far back runs are looked for, in events of all types: some weeks of a busy cluster.
MOST_EVENTS = 500_000

_WHERE = Filter(types=RUN_EVENTS)


class RunHistories:
    """One for a process: what was read once is kept, by cluster."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: whose clusters are asked about."""
        self._log = log
        self._kept: dict[str, RunHistory] = {}

    async def upto(self, cluster: str, position: int) -> RunHistory:
        """Return what a log up to a position tells of runs; the next call for the cluster may go on with it.

        Raises:
            LogUnavailable: the log does not answer.
        """
        kept = self._kept.get(cluster)
        history = kept if kept is not None and kept.position <= position else RunHistory()
        after = max(history.position, position - MOST_EVENTS)
        async for event in events_of(self._log, cluster, after=after, upto=position, where=_WHERE):
            history.take(event)
        history.position = max(history.position, position)
        if kept is None:
            self._kept[cluster] = history
        return history
