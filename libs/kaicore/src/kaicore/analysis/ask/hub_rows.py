"""Answers about the hub, from its folded log.

Questions about the hub. Its state is kept and folded further from question to question.
"""

import asyncio

from kaicore.analysis.ask.answers import DispatchRow, DispatchWhy, HubClusterRow, HubStoryLine, OfferAnswer
from kaicore.analysis.json_spelling import time_text
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import folded_hub, restored_hub
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub import hub_state
from kaicore.rules.hub.choosing import WAITS
from kaicore.rules.hub.cluster_side import waiting_us
from kaicore.spelling import did_you_mean


def hub_cluster_rows(state: hub_state.HubState, *, now: int) -> list[HubClusterRow]:
    """Return the clusters of a hub (`now`: microseconds since the epoch; of the same clock as the log's, or nearly)."""
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


def cluster_state_text(entry: hub_state.ClusterEntry, *, now: int) -> str:
    """Return how a cluster is, for people: the hub itself counts by a clock that is never set."""
    if not entry.lease_us:
        return "NeverSeen"
    if now - entry.renewed_at >= waiting_us(entry.lease_us):
        return "Lost"
    return "Drained" if entry.drained else "Ready"


def dispatch_row(entry: hub_state.DispatchEntry) -> DispatchRow:
    """Return a dispatch."""
    return DispatchRow.copied(
        entry,
        queue=entry.submitted.queue,
        since=time_text(entry.since),
        submitted_at=time_text(entry.submitted_at),
        clusters=list(entry.submitted.clusters),
        data=list(entry.submitted.data),
        message=_message(entry),
    )


def verdict_text(entry: hub_state.DispatchEntry) -> str:
    """Return where a dispatch is and why, in a sentence."""
    if entry.stage in hub_state.HELD and entry.given is not None:
        chosen = next(offer for offer in entry.given.offers if offer.cluster == entry.cluster)
        verb = {hub_state.DispatchStage.GIVEN: "waits in", hub_state.DispatchStage.STARTED: "runs in"}.get(
            entry.stage, "is asked back from"
        )
        startable = sum(1 for offer in entry.given.offers if not offer.unfit and offer.capacity)
        return f"{verb} cluster {entry.cluster}: {chosen.score} points, the most of {startable} that could start it"
    if entry.stage is hub_state.DispatchStage.WAITING:
        return f"waits at the hub: {_message(entry) or 'it was not tried yet'}"
    return f"{entry.stage.lower()}{': ' + _message(entry) if _message(entry) else ''}"


def decision_text(entry: hub_state.DispatchEntry) -> str:
    """Return what the hub decided about a dispatch, and why not otherwise; empty where it has not tried it yet."""
    if entry.stage is hub_state.DispatchStage.WAITING and entry.waits is None:
        return ""
    return "; ".join(filter(None, (verdict_text(entry), _passed_over(entry) if entry.stage in hub_state.HELD else "")))


def _message(entry: hub_state.DispatchEntry) -> str:
    if entry.stage is hub_state.DispatchStage.FINISHED:
        return entry.outcome
    if entry.stage is hub_state.DispatchStage.RECALLED:
        return entry.reason
    if entry.stage in hub_state.HELD:
        return _passed_over(entry)
    if entry.stage is not hub_state.DispatchStage.WAITING or entry.waits is None:
        return ""
    if entry.waits.reason:
        return entry.waits.reason
    return "; ".join(f"{offer.cluster}: {offer.unfit or _prospect(offer)}" for offer in entry.waits.offers)


def _prospect(offer: Offer) -> str:
    """Return what would become of a dispatch in a cluster, and what it would wait for there."""
    prospect = "would wait" if offer.prospect == WAITS else offer.prospect
    return ": ".join(filter(None, (prospect, offer.why)))


def _passed_over(entry: hub_state.DispatchEntry) -> str:
    """Return why the other clusters did not get a dispatch that one has; empty where there is no other."""
    offers = entry.given.offers if entry.given is not None else ()
    scores = {offer.cluster: offer.score for offer in offers}
    return "; ".join(
        f"not {offer.cluster}: {offer.unfit or f'{_prospect(offer)} ({offer.score} points to {scores[entry.cluster]})'}"
        for offer in offers
        if offer.cluster != entry.cluster
    )


class HubInquiry:
    """Answers about the hub of one log."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: of the hub and of all clusters."""
        self._log = log
        self._state: hub_state.HubState | None = None
        self._folding = asyncio.Lock()

    async def state(self) -> hub_state.HubState:
        """Return the hub's state at its log's end; it changes again, so answer from it before the next `await`."""
        async with self._folding:
            if self._state is None:
                self._state = await restored_hub(self._log)
            return await folded_hub(self._log, self._state)

    async def clusters(self, *, now: int) -> list[HubClusterRow]:
        """Return the hub's clusters; `now` in microseconds since the epoch."""
        return hub_cluster_rows(await self.state(), now=now)

    async def dispatches(self, *, pending: bool = False) -> list[DispatchRow]:
        """Return the hub's dispatches, the oldest first; `pending` for those that have not started."""
        entries = (await self.state()).dispatches.values()
        return [
            dispatch_row(entry)
            for entry in entries
            if not pending or (entry.stage not in hub_state.ENDED and not entry.started)
        ]

    async def why(self, name: str) -> DispatchWhy:
        """Say why a dispatch is where it is. Raises UnknownSubject: there is none of the name."""
        events = await self._log.read(hub_state.HUB, where=Filter(streams=(hub_state.dispatch_stream(name),)))
        state = await self.state()
        entry = state.dispatches.get(name)
        if entry is None:
            raise UnknownSubject(f"the hub knows of no dispatch {name}{did_you_mean(name, state.dispatches)}")
        decision = entry.waits if entry.waits is not None else entry.given
        return DispatchWhy(
            dispatch=dispatch_row(entry),
            position=state.position,
            verdict=verdict_text(entry),
            correlation=hub_state.dispatch_stream(name),
            offers=[OfferAnswer.copied(offer) for offer in (decision.offers if decision is not None else ())],
            weights=dict(entry.given.weights) if decision is entry.given and entry.given is not None else {},
            story=[
                HubStoryLine.copied(event, recorded_at=time_text(event.recorded_at), text=_text(event))
                for event in events
            ],
        )


def _text(event: Event) -> str:
    match decode_payload(event):
        case payloads.DispatchSubmitted(clusters=clusters, queue=queue):
            where = f"to {', '.join(clusters)}" if clusters else "to any cluster"
            return f"submitted {where}" + (f", queue {queue}" if queue else "")
        case payloads.DispatchGiven(_, term, cluster, offers):
            scores = ", ".join(f"{offer.cluster} {offer.score}" for offer in offers if not offer.unfit)
            return f"given to cluster {cluster} (term {term}); points: {scores}"
        case payloads.DispatchKeptWaiting(_, reason, offers):
            whys = "; ".join(f"{offer.cluster}: {offer.unfit or _prospect(offer)}" for offer in offers)
            return f"kept waiting: {reason or whys or 'there is no cluster'}"
        case payloads.DispatchStarted(_, _, cluster):
            return f"starts in cluster {cluster}: its first pod is bound"
        case payloads.DispatchRecalled(_, _, cluster, reason):
            return f"asked back from cluster {cluster}: {reason}"
        case payloads.DispatchReturned(_, term, cluster, refusal):
            why = f": refused: {refusal}" if refusal else ""
            return f"cluster {cluster} has nothing of term {term} any more{why}"
        case payloads.DispatchReleased(_, _, cluster, reason, waited_us):
            return f"taken from cluster {cluster}: {reason}; nothing was heard of it for {waited_us / 1e6:.1f} s"
        case payloads.DispatchFinished(outcome=outcome):
            return f"finished: {outcome}"
        case payloads.DispatchWithdrawn():
            return "withdrawn"
        case _:
            return event.type
