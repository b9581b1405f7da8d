"""Snapshots of the hub's state: a cache, as those of clusters' states are (`kaicore.ledger.log.state_snapshot`)."""

import msgspec

from kaicore.errors import CorruptLog, EventsRetired
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.ledger.log.snapshots import newest
from kaicore.rules.hub.hub_state import HUB, HubState

#: Raised with every change of what the hub's state consists of, or of how it is folded.
_SCHEMA = "hub-2"
_NAME = "hub"
#: Events read at once.
_PAGE = 2000
#: Events that a hub folds until it saves its state again: a few tenths of a second's folding.
KEEP_EVERY = 2000

_decoder = msgspec.msgpack.Decoder(HubState)


def take_hub(state: HubState) -> Snapshot:
    """Return a snapshot of the hub's state as it is now."""
    return Snapshot(_NAME, state.position, _SCHEMA, msgspec.msgpack.encode(state))


async def restored_hub(log: EventLog) -> HubState:
    """Return the newest state of the hub that was saved, else the empty one.

    Raises:
        EventsRetired: there is none, and the log's first events are gone.
        LogUnavailable: the log does not answer.
    """
    state = await newest(log, HUB, name=_NAME, schema=_SCHEMA, read=_read)
    if state is None and (position := await log.retired(HUB)):
        raise EventsRetired(HUB, position)
    return HubState() if state is None else state


async def folded_hub(log: EventLog, state: HubState) -> HubState:
    """Fold a state of the hub on to its log's end, and return it."""
    while page := await log.read(HUB, after=state.position, limit=_PAGE):
        for event in page:
            state.fold(event)
    return state


def _read(snapshot: Snapshot) -> HubState:
    state = _decoder.decode(snapshot.body)
    if state.position != snapshot.position:
        raise CorruptLog(f"cluster {HUB}: the snapshot at {snapshot.position} holds position {state.position}")
    return state
