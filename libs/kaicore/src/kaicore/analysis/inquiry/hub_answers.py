"""The hub's clusters and dispatches as data (see `kaicore.analysis.inquiry.answers`), from its folded log."""

import msgspec

from kaicore.analysis.inquiry.answer import Answer
from kaicore.analysis.inquiry.json_spelling import time_text
from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub.hub_state import ENDED, HELD, ClusterEntry, DispatchEntry, DispatchStage, HubState
from kaicore.rules.hub.lease import waiting_us


class HubClusterRow(Answer, frozen=True, kw_only=True):
    """A cluster of the hub.

    Attributes:
        state: Ready, Drained, Lost (its lease ran out), or NeverSeen (its binder has not come yet).
        silent_seconds: since its lease was renewed last, by the log's clock; None before the first time.
        waiting, running: dispatches that it has and that have not started, or have.
        kubeconfigs: by which the hub's machine reaches it; none where an agent dials out, or it is simulated.
        simulated: profile of its fleet, where it is.
    """

    name: str
    state: str
    silent_seconds: int | None = None
    waiting: int = 0
    running: int = 0
    cost: int = 0
    data: list[str] = msgspec.field(default_factory=list)
    kubeconfigs: list[str] = msgspec.field(default_factory=list)
    simulated: str = ""


class OfferAnswer(Answer, frozen=True, kw_only=True):
    """What would become of a dispatch in a cluster; see `kaicore.rules.events.payloads.Offer`."""

    cluster: str
    position: int
    prospect: str
    unfit: str
    capacity: int
    topology: int
    share: int
    locality: int
    cost: int
    score: int


class DispatchRow(Answer, frozen=True, kw_only=True):
    """A dispatch.

    Attributes:
        stage: Waiting, Given, Started, Recalled, Finished or Withdrawn.
        cluster: that has it, or had it last.
        term: how often it was given to a cluster.
        clusters: that it may run in; none for any.
        message: why it waits, or how it ended.
    """

    name: str
    stage: str
    cluster: str
    term: int
    queue: str
    since: str
    submitted_at: str
    clusters: list[str] = msgspec.field(default_factory=list)
    data: list[str] = msgspec.field(default_factory=list)
    message: str = ""


class DispatchWhy(Answer, frozen=True, kw_only=True):
    """Why a dispatch is where it is: the first level of the decision.

    Attributes:
        position: of the hub's log.
        offers: of all clusters, as of the decision, or as of now where it waits.
        weights: of the parts of their scores; empty where it waits.
        story: what the hub's log has of it, the oldest first.
        correlation: what its events have in common in the hub's log and in the clusters'.
    """

    dispatch: DispatchRow
    position: int
    verdict: str
    correlation: str
    offers: list[OfferAnswer] = msgspec.field(default_factory=list)
    weights: dict[str, int] = msgspec.field(default_factory=dict)
    story: list["HubStoryLine"] = msgspec.field(default_factory=list)


class HubStoryLine(Answer, frozen=True, kw_only=True):
    """One event about a dispatch."""

    position: int
    recorded_at: str
    actor: str
    text: str


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
    """Return how a cluster is, for people: the hub itself counts by a clock that nobody sets."""
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
    return "would wait" if offer.prospect == "Waits" else offer.prospect
