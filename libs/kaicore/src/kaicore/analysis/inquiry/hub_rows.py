"""Answers about the hub, from its folded log."""

from kaicore.analysis.inquiry.hub_answers import DispatchRow, HubClusterRow, OfferAnswer
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub.choosing import WAITS
from kaicore.rules.hub.hub_state import ENDED, HELD, ClusterEntry, DispatchEntry, DispatchStage, HubState
from kaicore.rules.hub.lease import waiting_us


def hub_cluster_rows(state: HubState, *, now: int) -> list[HubClusterRow]:
    """Return the clusters of a hub.

    Args:
        state: the hub's.
        now: microseconds since the epoch; of the same clock as the log's, or nearly.
    """
    rows = []
    for name, entry in state.present():
        mine = state.of_cluster(name)
        running = sum(one.started for one in mine)
        rows.append(
            HubClusterRow(
                name=name,
                state=cluster_state_text(entry, now=now),
                silent_seconds=max(0, now - entry.renewed_at) // 1_000_000 if entry.renewed_at else None,
                waiting=len(mine) - running,
                running=running,
                cost=entry.registered.cost,
                data=list(entry.registered.data),
                kubeconfigs=list(entry.registered.kubeconfigs),
                simulated=entry.registered.simulated,
            )
        )
    return rows


def cluster_state_text(entry: ClusterEntry, *, now: int) -> str:
    """Return how a cluster is, for people: the hub itself counts by a clock that is never set."""
    if not entry.lease_us:
        return "NeverSeen"
    if now - entry.renewed_at >= waiting_us(entry.lease_us):
        return "Lost"
    return "Drained" if entry.drained else "Ready"


def dispatch_rows(state: HubState, *, pending: bool = False) -> list[DispatchRow]:
    """Return dispatches, the oldest first; `pending` for those that have not started."""
    return [
        dispatch_row(entry)
        for entry in state.dispatches.values()
        if not pending or (entry.stage not in ENDED and not entry.started)
    ]


def dispatch_row(entry: DispatchEntry) -> DispatchRow:
    """Return a dispatch."""
    return DispatchRow(
        name=entry.name,
        stage=entry.stage,
        cluster=entry.cluster,
        term=entry.term,
        queue=entry.submitted.queue,
        since=time_text(entry.since),
        submitted_at=time_text(entry.submitted_at),
        clusters=list(entry.submitted.clusters),
        data=list(entry.submitted.data),
        message=_message(entry),
    )


def offer_answer(offer: Offer) -> OfferAnswer:
    """Return an offer as an answer."""
    return OfferAnswer(**{name: getattr(offer, name) for name in Offer.__struct_fields__})


def verdict_text(entry: DispatchEntry) -> str:
    """Return where a dispatch is and why, in a sentence."""
    if entry.stage in HELD and entry.given is not None:
        chosen = next(offer for offer in entry.given.offers if offer.cluster == entry.cluster)
        verb = {DispatchStage.GIVEN: "waits in", DispatchStage.STARTED: "runs in"}.get(
            entry.stage, "is asked back from"
        )
        startable = sum(1 for offer in entry.given.offers if not offer.unfit and offer.capacity)
        return f"{verb} cluster {entry.cluster}: {chosen.score} points, the most of {startable} that could start it"
    if entry.stage is DispatchStage.WAITING:
        return f"waits at the hub: {_message(entry) or 'it was not tried yet'}"
    return f"{entry.stage.lower()}{': ' + _message(entry) if _message(entry) else ''}"


def _message(entry: DispatchEntry) -> str:
    if entry.stage is DispatchStage.FINISHED:
        return entry.outcome
    if entry.stage is DispatchStage.RECALLED:
        return entry.reason
    if entry.stage is not DispatchStage.WAITING or entry.waits is None:
        return ""
    if entry.waits.reason:
        return entry.waits.reason
    return "; ".join(f"{offer.cluster}: {offer.unfit or _prospect(offer)}" for offer in entry.waits.offers)


def _prospect(offer: Offer) -> str:
    return "would wait" if offer.prospect == WAITS else offer.prospect
