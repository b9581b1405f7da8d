"""The hub's clusters and dispatches as data (see `kaicore.analysis.ask.answers`)."""

import msgspec

from kaicore.analysis.json_spelling import Answer


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
    """The outcome that a dispatch would have in a cluster; see `kaicore.rules.events.payloads.Offer`."""

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
    why: str = ""


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
    """The reason for a dispatch's place: the first level of the decision.

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
