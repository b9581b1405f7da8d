"""Snapshots, which are a cache. A snapshot that is altered or unreadable is deleted, and this is reported.

A digest over cluster, name, schema, position and body is stored with each. A log returns a snapshot only if its digest
fits. `newest` returns the decoded snapshot, or nothing, and then the reader reads the log from further back. Where that
part is gone with retired months, the snapshots that were kept with them replace it.

Prometheus metrics of reading a log.

Snapshots of the hub's state: a cache, as those of clusters' states are (`kaicore.ledger.log.snapshots`).

Snapshots of the state: how they are taken and verified.
"""

import logging
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar

import msgspec
from prometheus_client import Counter

from kaicore.errors import CorruptLog, EventsRetired, KaiError
from kaicore.ledger.log.port import EventLog, Snapshot
from kaicore.rules.hub.hub_state import HUB, HubState
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.snapshot import SNAPSHOT_SCHEMA, decode_state, encode_state

DISCARDED = Counter(
    "kai_snapshots_discarded",
    "Snapshots that were thrown away: not what was saved (digest), not to be read (unreadable), beyond the log (ahead)",
    ["name", "why"],
)


_log = logging.getLogger(__name__)
_T = TypeVar("_T")

#: Under which schedulers save the state.
STATE_SNAPSHOT = "state"

#: What reading bytes that are no snapshot raises.
_UNREADABLE = (msgspec.MsgspecError, KaiError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def snapshot_digest(cluster: str, snapshot: Snapshot) -> bytes:
    """Return the digest that is stored beside a snapshot."""
    about = "".join(f"{part}\n" for part in (cluster, snapshot.name, snapshot.schema, snapshot.position))
    return sha256(about.encode() + snapshot.body).digest()


def discard(cluster: str, snapshot: Snapshot, *, why: str, error: str = "") -> None:
    """Say that a snapshot is thrown away.

    Args:
        cluster: the name of the cluster.
        snapshot: which one.
        why: `digest`, `unreadable` or `ahead`.
        error: what reading it raised.
    """

    DISCARDED.labels(snapshot.name, why).inc()
    _log.warning(
        "cluster %s: snapshot thrown away: %s at position %d, schema %s: %s %s",
        cluster,
        snapshot.name,
        snapshot.position,
        snapshot.schema,
        why,
        error,
    )


async def newest(
    log: EventLog, cluster: str, *, name: str, schema: str, read: Callable[[Snapshot], _T], upto: int | None = None
) -> _T | None:
    """Return what the newest sound snapshot holds; None where there is none, and the log is to be read instead.

    Args:
        log: where it is kept.
        cluster: the name of the cluster.
        name: of the snapshot.
        schema: as this program writes it. One of another schema is read only where the log alone does not suffice.
        read: makes of a snapshot what it holds; may raise whatever comes of bytes that are no snapshot.
        upto: the position that it must not be beyond; by default the log's end.

    Raises:
        LogUnavailable: the log does not answer.
    """
    end = (await log.head(cluster)).position if upto is None else upto
    snapshot = await log.load_snapshot(cluster, name=name, schema=schema)
    latest = None if snapshot is None else content(cluster, snapshot, read, end=end)
    if latest is not None:
        return latest
    return await newest_kept(log, cluster, name=name, schema=schema, read=read, upto=end)


async def newest_kept(
    log: EventLog, cluster: str, *, name: str, schema: str, read: Callable[[Snapshot], _T], upto: int
) -> _T | None:
    """Return what the newest sound one of the snapshots holds that were kept with retired months; see `newest`."""
    if not await log.retired(cluster):
        return None
    kept = [one for one in await log.kept_snapshots(cluster, name=name) if one.position <= upto]
    for one in sorted(kept, key=lambda one: (one.schema == schema, one.position), reverse=True):
        if (latest := content(cluster, one, read, end=upto)) is not None:
            if one.schema != schema:
                _log.warning("cluster %s: snapshot %s is of another version: schema %s", cluster, name, one.schema)
            return latest
    return None


def content(cluster: str, snapshot: Snapshot, read: Callable[[Snapshot], _T], *, end: int) -> _T | None:
    """Return what a snapshot holds; None, and it is said, where it cannot be read or is beyond the log's end."""
    if snapshot.position > end:
        # The log was restored from an older backup, or its end was cut off.
        discard(cluster, snapshot, why="ahead", error=f"the log ends at {end}")
        return None
    try:
        return read(snapshot)
    except _UNREADABLE as error:
        discard(cluster, snapshot, why="unreadable", error=f"{type(error).__name__}: {error}")
        return None


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


def take_state(state: ClusterState) -> Snapshot:
    """Return a snapshot of a state as it is now."""
    return Snapshot(STATE_SNAPSHOT, state.position, SNAPSHOT_SCHEMA, encode_state(state))


def read_state(cluster: str, snapshot: Snapshot) -> ClusterState:
    """Return the state that a snapshot holds.

    Raises:
        msgspec.DecodeError: its bytes are no state.
        CorruptLog: it is another cluster's, or of another position.
    """
    state = decode_state(snapshot.body)
    if (state.cluster, state.position) != (cluster, snapshot.position):
        raise CorruptLog(
            f"cluster {cluster}: the snapshot at {snapshot.position} holds cluster {state.cluster} at {state.position}"
        )
    return state
