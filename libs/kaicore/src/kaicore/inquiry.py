"""Questions to a log, and nothing but a log: its state, a pod's story, a replay.

The command line asks them, and so does the API.
"""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from kaicore.engine.reasons import render
from kaicore.errors import EventsRetired
from kaicore.events.envelope import Event
from kaicore.log.port import EventLog, Filter
from kaicore.log.snapshots import STATE_SNAPSHOT, content, newest
from kaicore.log.state_snapshot import read_state
from kaicore.state.cluster_state import ClusterState
from kaicore.state.remedies import StateRemedies
from kaicore.state.replay import KNOWN_BEFOREHAND, Replay, ReplayReport
from kaicore.state.snapshot import SNAPSHOT_SCHEMA
from kaicore.state.why import Explanation, notes, pending_reasons, tell, verdict

#: Events read at once.
_PAGE = 2000


async def events_of(
    log: EventLog, cluster: str, *, after: int = 0, upto: int | None = None, where: Filter | None = None
) -> AsyncIterator[Event]:
    """Read events page by page, up to and including `upto`, by default to the log's end."""
    while page := await log.read(cluster, after=after, upto=upto, limit=_PAGE, where=where):
        for event in page:
            yield event
        after = page[-1].position


async def restored(log: EventLog, cluster: str) -> ClusterState:
    """Return the newest state that was saved, or the empty one.

    Raises:
        EventsRetired: there is none, and the log's first events are gone.
    """
    state = await newest(log, cluster, name=STATE_SNAPSHOT, schema=SNAPSHOT_SCHEMA, read=partial(read_state, cluster))
    return await _from_the_beginning(log, cluster) if state is None else state


async def first_state(log: EventLog, cluster: str) -> ClusterState:
    """Return the state from which on the log has all events: the empty one, or the one kept with the last month.

    Raises:
        EventsRetired: the log's first events are gone, and no sound state was kept.
    """
    if not await log.retired(cluster):
        return ClusterState(cluster)
    for snapshot in reversed(await log.kept_snapshots(cluster, name=STATE_SNAPSHOT)):
        state = content(cluster, snapshot, partial(read_state, cluster), end=snapshot.position)
        if state is not None:
            return state
    return await _from_the_beginning(log, cluster)


async def _from_the_beginning(log: EventLog, cluster: str) -> ClusterState:
    if position := await log.retired(cluster):
        raise EventsRetired(cluster, position)
    return ClusterState(cluster)


async def folded(log: EventLog, cluster: str) -> ClusterState:
    """Return the state at the log's end, by way of a snapshot where there is one."""
    state = await restored(log, cluster)
    async for event in events_of(log, cluster, after=state.position):
        state.fold(event)
    return state


async def explain(log: EventLog, cluster: str, namespace: str, name: str) -> Explanation | None:
    """Explain the pod that has, or last had, a name; None when the log has never heard of it."""
    story = [event async for event in events_of(log, cluster, where=Filter(subject=f"{namespace}/{name}"))]
    story = [event for event in story if event.stream.startswith("pod/")]
    if not story:
        return None
    state = await folded(log, cluster)
    uids = list(dict.fromkeys(event.stream.removeprefix("pod/") for event in story))
    uid = next((uid for uid in reversed(uids) if uid in state.pods), uids[-1])
    entry = state.pods.get(uid)
    found = Explanation(
        cluster=cluster,
        namespace=namespace,
        name=name,
        uid=uid,
        verdict=verdict(entry, state, scheduler_name=state.config().scheduler_name),
        story=tell([event for event in story if event.stream == f"pod/{uid}"]),
    )
    if entry is not None:
        found.reasons = pending_reasons(entry, state)
        found.remedies = list(StateRemedies(state, state.config()).of(entry))
        found.notes = notes(entry, state)
    return found


async def replay_log(log: EventLog, cluster: str) -> ReplayReport:
    """Fold a cluster's log again and run every recorded cycle again, up to where the log ends now.

    Where months have been retired, it goes on from the state that was kept with them.

    Raises:
        EventsRetired: no sound state was kept.
    """
    # One end for both passes: what is appended meanwhile is no part of it.
    head = (await log.head(cluster)).position
    state = await first_state(log, cluster)
    after, where = state.position, Filter(types=KNOWN_BEFOREHAND)
    known = [event async for event in events_of(log, cluster, after=after, upto=head, where=where)]
    replay = Replay(state, known)
    async for event in events_of(log, cluster, after=after, upto=head):
        replay.take(event)
    return replay.finish()


def document(found: Explanation) -> dict[str, Any]:
    """Write an explanation for machines."""
    return {
        "cluster": found.cluster,
        "namespace": found.namespace,
        "name": found.name,
        "uid": found.uid,
        "verdict": found.verdict,
        "reasons": [{**msgspec.to_builtins(reason), "message": render(reason)} for reason in found.reasons],
        "wouldHelp": [{**msgspec.to_builtins(remedy), "message": render(remedy)} for remedy in found.remedies],
        "notes": found.notes,
        "story": [
            {"position": line.position, "recordedAt": time_text(line.recorded_at), "text": line.text}
            for line in found.story
        ],
    }


def time_text(microseconds: int) -> str:
    """Write a time of the log as RFC 3339."""
    return datetime.fromtimestamp(microseconds / 1e6, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
