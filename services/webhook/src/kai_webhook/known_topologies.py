"""The topologies of a cluster, followed in the log."""

from kaicore.analysis.inquiry.log_states import restored
from kaicore.errors import KaiError
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.topology.book import EVENT_TYPES, TopologyBook
from kaicore.runtime.service import ServiceContext

_PAGE = 2000
#: Seconds that one wait for new events lasts, and until a log that failed is tried again.
_WAIT_S, _PAUSE_S = 30.0, 2.0


class KnownTopologies:
    """The topologies of a cluster."""

    def __init__(self, log: EventLog, cluster: str) -> None:
        """Args:
        log: that says it.
        cluster: whose.
        """
        self._log = log
        self._cluster = cluster
        self._position = 0
        #: None until they are known.
        self.book: TopologyBook | None = None

    async def follow(self, context: ServiceContext) -> None:
        """Follow the log until the service is to stop; a log that fails is tried again."""
        while not context.stopping.is_set():
            try:
                await self.catch_up()
                await self._log.wait_beyond(self._cluster, self._position, timeout_s=_WAIT_S)
            except KaiError as error:
                context.log.warning("topologies cannot be followed", error=str(error))
                await context.sleep(_PAUSE_S)

    async def catch_up(self) -> None:
        """Take in what the log has said since the last time.

        Raises:
            LogUnavailable: the log does not answer.
            EventsRetired: its first events have left it, and no snapshot stands for them.
            UnknownEvent: this program is too old for the log.
        """
        head = (await self._log.head(self._cluster)).position
        book = self.book
        if book is None:
            state = await restored(self._log, self._cluster)
            book, self._position = state.network_topologies, state.position
        where = Filter(types=EVENT_TYPES)
        while page := await self._log.read(self._cluster, after=self._position, upto=head, limit=_PAGE, where=where):
            for event in page:
                book.take(decode_payload(event))
                self._position = event.position
        self._position = max(self._position, head)
        # Not before: what is known by half would be told as missing.
        self.book = book
