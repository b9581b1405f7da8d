"""Samples of streams: what is in memory of a few pods and nodes against the last events of their streams.

A sample is drawn by the position, so that the same log gives the same samples: streams of events that follow one of its
positions, and some of those in memory. It costs a few reads, where a fold costs as much as the service's own.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from kaicore.analysis.replay.log_states import last_events
from kaicore.ledger.log.chain import mark_of
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.model.pod import Pod
from kaicore.rules.state.cluster_state import ClusterState

#: Streams that are drawn from the log, and as many from memory; and nodes.
_DRAWN, _NODES = 16, 4
#: A sample with more events is left.
_MOST = 5_000


class SampleDifference(NamedTuple):
    """A difference that a sample shows (`after`: position before the first event of the streams)."""

    after: int
    parts: tuple[str, ...]


def some(names: Collection[str], position: int, *, most: int = _DRAWN) -> list[str]:
    """Return some of the names, others for another position."""
    step = max(len(names) // most, 1)
    return list(islice(names, position % step, None, step))[:most]


async def drawn_pods(log: EventLog, cluster: str, *, upto: int) -> list[str]:
    """Return the uids of pods that events after one of a log's positions are about."""
    retired = await log.retired(cluster)
    begin = retired + crc32(str(upto).encode()) % max(upto - retired, 1)
    events = await log.read(cluster, after=begin, upto=upto, limit=_DRAWN)
    return sorted({event.stream.removeprefix("pod/") for event in events if event.stream.startswith("pod/")})


async def pod_events(log: EventLog, cluster: str, uids: Collection[str], *, upto: int) -> dict[str, list[Event]]:
    """Return all events of the pods' streams, by uid; without pods of which a part was erased or has left the log."""
    where = Filter(streams=tuple(f"pod/{uid}" for uid in sorted(uids)))
    after = await log.retired(cluster)
    events = await log.read(cluster, after=after, upto=upto, limit=_MOST, where=where) if uids else []
    found: dict[str, list[Event]] = {} if len(events) == _MOST else {uid: [] for uid in uids}
    for event in events if found else ():
        found[event.stream.removeprefix("pod/")].append(event)
    return {uid: own for uid, own in found.items() if not own or (own[0].version == 1 and not any(map(mark_of, own)))}


def differing(
    events: dict[str, list[Event]], here: Callable[[str], object], right: Callable[[list[Event]], object], upto: int
) -> SampleDifference | None:
    """Return which pods are here not as their events say; events after a position are left out."""
    found = {}
    for uid, own in events.items():
        known = [event for event in own if event.position <= upto]
        if here(uid) != right(known):
            found[uid] = known[0].position - 1 if known else upto
    return SampleDifference(min(found.values()), tuple(f"/pods/{uid}" for uid in sorted(found))) if found else None


async def differs_by_sample(log: EventLog, state: ClusterState) -> SampleDifference | None:
    """Compare a sample of a state with the log: pods with their versions, and nodes."""
    cluster, names = state.cluster, await drawn_pods(log, state.cluster, upto=state.position)
    upto, columns = state.position, state.columns
    # What holds an opened GPU until its reservation pod is there has no stream.
    held = [uid for uid in some(state.pods, upto) if "/" not in uid]
    uids = {*names, *held} - {one.stream.removeprefix("pod/") for one in state.quarantined.values()}
    # As of now: the state goes on while the log is read.
    mine = {uid: _here(state, uid) for uid in uids}
    nodes = {name: columns.facts[columns.rows[name]] for name in some(columns.rows, upto, most=_NODES)}
    found = differing(await pod_events(log, cluster, uids, upto=upto), mine.__getitem__, _right, upto)
    for name, node in nodes.items():
        where = Filter(streams=(f"node/{name}",), types=("NodeObserved", "NodeDeleted"))
        events, _ = await last_events(log, cluster, where, upto=upto, enough=1)
        payload = decode_payload(events[-1]) if events else None
        if found is None and isinstance(payload, payloads.NodeObserved) and node != payload.node:
            found = SampleDifference(events[-1].position - 1, (f"/nodes/{name}",))
    return found


def _here(state: ClusterState, uid: str) -> tuple[Pod | None, int]:
    entry = state.pods.get(uid)
    return entry.pod if entry is not None else None, state.versions.get(f"pod/{uid}", 0)


def _right(events: Sequence[Event]) -> tuple[Pod | None, int]:
    pod, version = None, 0
    for event in events:
        version = event.version
        payload = decode_payload(event) if event.type in ("PodObserved", "PodDeleted") else None
        if isinstance(payload, payloads.PodObserved):
            pod = payload.pod
        elif isinstance(payload, payloads.PodDeleted) and pod is not None:
            pod, version = None, 0
    return pod, version
