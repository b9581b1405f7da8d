"""The hub's next decisions, as units for its log. No I/O, no clock: the time is an argument.

Every unit is conditional on the versions that the decision was taken on. So two hubs, or a hub and a binder, may decide
at the same time, and the log takes one of two decisions that exclude each other.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from kaicore.rules.events import payloads
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import Offer, ReleaseReason
from kaicore.rules.hub import hub_state
from kaicore.rules.hub.choosing import choose
from kaicore.rules.hub.cluster_side import LeaseWatch


def dispatch_unit(
    entry: hub_state.DispatchEntry,
    payload: payloads.HubPayload,
    *,
    actor: str,
    now: int,
    expect: dict[str, int] | None = None,
) -> Unit:
    """Return a unit with the next event of a dispatch, conditional on the last one.

    Args:
        now: the actor's clock, microseconds since the epoch.
    """
    stream = hub_state.dispatch_stream(entry.name)
    event = NewEvent(
        id=derived_id(hub_state.HUB, stream, str(entry.version + 1), type(payload).__name__, actor),
        stream=stream,
        payload=payload,
        actor=actor,
        occurred_at=now,
        subject=entry.name,
        cause=UUID(hex=entry.event),
        correlation=stream,
    )
    return Unit((event,), {stream: entry.version, **(expect or {})})


def take_back(state: hub_state.HubState, watch: LeaseWatch, *, now: int, clock: int, actor: str) -> list[Unit]:
    """Return what takes dispatches from clusters that are drained, removed or lost.

    A cluster that answers is asked, and gives a dispatch back when nothing of it is there any more. From one that does
    not, it is taken when the lease is over, unless it has started: then it stays that cluster's, until somebody
    removes the cluster and vouches that nothing runs there.

    Args:
        watch: of the leases, by the hub's clock that is never set.
        now: of that clock, microseconds.
        clock: microseconds since the epoch.
    """
    units = []
    for entry in state.dispatches.values():
        if entry.stage not in hub_state.HELD:
            continue
        cluster = state.clusters[entry.cluster]
        over = watch.is_over(entry.cluster, cluster.lease_us, now=now)
        reason = _reason_to_go(cluster, lost=over)
        given_up = cluster.removed and cluster.lost
        if over and (given_up or not entry.started):
            released = payloads.DispatchReleased(
                dispatch=entry.name,
                term=entry.term,
                cluster=entry.cluster,
                reason=reason or ReleaseReason.LEASE_OVER,
                waited_us=watch.silent_us(entry.cluster, now=now),
            )
            expect = {hub_state.lease_stream(entry.cluster): cluster.lease_version}
            units.append(dispatch_unit(entry, released, actor=actor, now=clock, expect=expect))
        elif not over and reason is not None and entry.stage is hub_state.DispatchStage.GIVEN:
            units.append(recall(entry, reason, clock=clock, actor=actor))
    return units


def recall(entry: hub_state.DispatchEntry, reason: ReleaseReason, *, clock: int, actor: str) -> Unit:
    """Return what asks a cluster to give a dispatch back."""
    recalled = payloads.DispatchRecalled(dispatch=entry.name, term=entry.term, cluster=entry.cluster, reason=reason)
    return dispatch_unit(entry, recalled, actor=actor, now=clock)


def give(  # long: one argument for each thing that a giving depends on
    entry: hub_state.DispatchEntry,
    offers: Sequence[Offer],
    *,
    weights: Mapping[str, int],
    clock: int,
    actor: str,
    held_back: str = "",
    bounded: Mapping[str, int] | None = None,
) -> Unit | None:
    """Return what gives a waiting dispatch to the best cluster, or says why it waits; None where that was said before.

    Args:
        weights: of the parts of the offers' scores.
        clock: microseconds since the epoch.
        held_back: why no cluster may be given it; empty where one may.
        bounded: versions of the streams of the queues with bounds over all clusters that count it. The giving
            moves them: if two hubs use the last quota at once, the log accepts one.
    """
    chosen = None if held_back else choose(offers)
    if chosen is not None:
        given = payloads.DispatchGiven(
            dispatch=entry.name,
            term=entry.term + 1,
            cluster=chosen.cluster,
            offers=tuple(offers),
            weights=dict(weights),
        )
        unit = dispatch_unit(entry, given, actor=actor, now=clock, expect=dict(bounded or {}))
        charges = (_charge(entry, given, queue, actor=actor, now=clock) for queue in sorted(bounded or {}))
        return Unit((*unit.events, *charges), unit.expect)
    waits = payloads.DispatchKeptWaiting(dispatch=entry.name, reason=held_back, offers=tuple(offers))
    if entry.waits is not None and _why(entry.waits) == _why(waits):
        return None
    return dispatch_unit(entry, waits, actor=actor, now=clock)


def bounds_of(state: hub_state.HubState, queue_path: Sequence[str]) -> dict[str, int]:
    """Return the versions of the streams of those queues of a path that have a bound over all clusters."""
    streams = [hub_state.queue_stream(queue) for queue in queue_path if queue in state.bounds]
    return {stream: state.versions.get(stream, 0) for stream in streams}


def _charge(
    entry: hub_state.DispatchEntry, given: payloads.DispatchGiven, stream: str, *, actor: str, now: int
) -> NewEvent:
    queue = stream.partition("/")[2]
    return NewEvent(
        id=derived_id(hub_state.HUB, stream, entry.name, str(given.term), actor),
        stream=stream,
        payload=payloads.QueueCharged(queue=queue, dispatch=entry.name, term=given.term),
        actor=actor,
        occurred_at=now,
        subject=queue,
        cause=UUID(hex=entry.event),
        correlation=hub_state.dispatch_stream(entry.name),
    )


def _why(waits: payloads.DispatchKeptWaiting) -> tuple[str, tuple[tuple[str, str, str], ...]]:
    """The reason why a dispatch waits, without figures that change all the time."""
    return waits.reason, tuple((offer.cluster, offer.prospect, offer.unfit) for offer in waits.offers)


def _reason_to_go(cluster: hub_state.ClusterEntry, *, lost: bool) -> ReleaseReason | None:
    if cluster.removed:
        return ReleaseReason.REMOVED
    if lost:
        return ReleaseReason.LEASE_OVER
    return ReleaseReason.DRAINED if cluster.drained else None


def unfit_by_itself(state: hub_state.HubState, entry: hub_state.DispatchEntry, cluster: str, *, lost: bool) -> str:
    """Return why a cluster cannot be given a dispatch whatever room it has; empty where it can.

    Args:
        lost: whether its lease is over.
    """
    there = state.clusters[cluster]
    if entry.submitted.clusters and cluster not in entry.submitted.clusters:
        return "the dispatch names other clusters"
    if there.drained:
        return "is being drained"
    if not there.lease_us:
        return "its binder has not come yet"
    if lost:
        return "is lost: its lease ran out"
    if cluster in entry.refusals:
        return f"its API server refused it: {entry.refusals[cluster]}"
    if cluster in entry.left:
        return "has not cleared what it had of it before"
    return ""
