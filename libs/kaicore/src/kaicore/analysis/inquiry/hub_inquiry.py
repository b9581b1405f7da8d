"""Questions about the hub. Its state is kept and folded further from question to question."""

import asyncio

from kaicore.analysis.inquiry.hub_answers import DispatchRow, DispatchWhy, HubClusterRow, HubStoryLine
from kaicore.analysis.inquiry.hub_rows import (
    dispatch_row,
    dispatch_rows,
    hub_cluster_rows,
    offer_answer,
    verdict_text,
)
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.errors import UnknownSubject
from kaicore.ledger.log.hub_snapshot import folded_hub, restored_hub
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events import payloads
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import Event
from kaicore.rules.hub.hub_state import HUB, HubState, dispatch_stream
from kaicore.spelling import did_you_mean


class HubInquiry:
    """Answers about the hub of one log."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: of the hub and of all clusters."""
        self._log = log
        self._state: HubState | None = None
        self._folding = asyncio.Lock()

    async def state(self) -> HubState:
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
        return dispatch_rows(await self.state(), pending=pending)

    async def why(self, name: str) -> DispatchWhy:
        """Say why a dispatch is where it is.

        Raises:
            UnknownSubject: there is none of the name.
        """
        events = await self._log.read(HUB, where=Filter(streams=(dispatch_stream(name),)))
        state = await self.state()
        entry = state.dispatches.get(name)
        if entry is None:
            raise UnknownSubject(f"the hub knows of no dispatch {name}{did_you_mean(name, state.dispatches)}")
        decision = entry.waits if entry.waits is not None else entry.given
        return DispatchWhy(
            dispatch=dispatch_row(entry),
            position=state.position,
            verdict=verdict_text(entry),
            correlation=dispatch_stream(name),
            offers=[offer_answer(offer) for offer in (decision.offers if decision is not None else ())],
            weights=dict(entry.given.weights) if decision is entry.given and entry.given is not None else {},
            story=[
                HubStoryLine(
                    position=event.position,
                    recorded_at=time_text(event.recorded_at),
                    actor=event.actor,
                    text=_text(event),
                )
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
            whys = "; ".join(f"{offer.cluster}: {offer.unfit or offer.prospect}" for offer in offers)
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
