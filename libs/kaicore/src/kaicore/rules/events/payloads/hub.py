"""Records of the hub's own log: clusters, leases, and the cluster of each dispatch."""

from enum import StrEnum

import msgspec

from kaicore.rules.events.payloads.base import Payload
from kaicore.rules.model.pod import Amounts


class ReleaseReason(StrEnum):
    """The reason why a dispatch is taken from a cluster.

    Attributes:
        DRAINED: the cluster is being drained.
        LEASE_OVER: the cluster's lease ran out: it is lost.
        REMOVED: the cluster was removed.
        REFUSED: its API server refuses the objects.
        WAITED: it did not start there for a long time, and would start elsewhere.
        WITHDRAWN: its owner wants it no more.
    """

    DRAINED = "Drained"
    LEASE_OVER = "LeaseOver"
    REMOVED = "Removed"
    REFUSED = "Refused"
    WAITED = "Waited"
    WITHDRAWN = "Withdrawn"


class ClusterRegistered(Payload, frozen=True):
    """A cluster is one of the hub's.

    Attributes:
        kubeconfigs: paths by which the hub's machine reaches it, as `kai cluster add` was given them; none where an
            agent in the cluster dials out. Never the credentials themselves.
        simulated: profile of the fleet of a cluster that `kai up` simulates; empty for a real one.
        data: data sets that are near it.
        cost: what a GPU costs there, as people compare clusters; 0 where it is not given.
    """

    cluster: str
    kubeconfigs: tuple[str, ...] = ()
    simulated: str = ""
    data: tuple[str, ...] = ()
    cost: int = 0


class ClusterDrained(Payload, frozen=True):
    """A cluster is given no more dispatches, and gives back those that wait."""

    cluster: str


class ClusterResumed(Payload, frozen=True):
    """A cluster that was drained is given dispatches again."""

    cluster: str


class ClusterRemoved(Payload, frozen=True):
    """A cluster is none of the hub's any more.

    Attributes:
        lost: an operator vouches that nothing runs there any more: what had started there is started elsewhere.
    """

    cluster: str
    lost: bool = False


class LeaseRenewed(Payload, frozen=True):
    """A cluster's binder renewed its lease on all dispatches that the cluster was given.

    Attributes:
        holder: tells this process from others of the cluster.
        lease_us: how long it acts on it, from before this was appended, microseconds of its own clock.
    """

    cluster: str
    holder: str
    lease_us: int


class QueueBounded(Payload, frozen=True):
    """An operator said how much the work of a queue may hold in all clusters together.

    Attributes:
        limits: by resource, as queues count them; empty for no bound.
    """

    queue: str
    limits: Amounts = msgspec.field(default_factory=dict)


class QueueCharged(Payload, frozen=True):
    """A dispatch was given to a cluster on the bound of a queue: any other giving decided on an older state is stale.

    Attributes:
        dispatch: that was given.
        term: of that giving.
    """

    queue: str
    dispatch: str
    term: int


class DispatchSubmitted(Payload, frozen=True):
    """Objects were given to the hub, to run as a whole in one of its clusters.

    Attributes:
        dispatch: its name, unique in the hub's log.
        manifests: the objects, a list as JSON.
        queue: that pays for it; empty for the default one.
        demand: what all of its pods ask for, as queues count it.
        clusters: that it may run in; empty for any.
        data: data sets that it reads.
    """

    dispatch: str
    manifests: str
    queue: str = ""
    demand: Amounts = msgspec.field(default_factory=dict)
    clusters: tuple[str, ...] = ()
    data: tuple[str, ...] = ()


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A dispatch's outcome in a cluster, with a score; parts of the score are from 0 to 100.

    Attributes:
        position: of the cluster's log, as of which it was tried.
        prospect: StartsNow, StartsAfterEvictions, Waits; empty where it was not tried.
        unfit: why the cluster cannot be given it; empty where it can.
        capacity: from 50 to 100 where it starts now, the more the more is left; 20 where pods are evicted for it first.
        topology: in how few domains its groups are.
        share: how far its queue is below its fair share there.
        locality: which part of the data sets it reads are near.
        cost: how cheap it is, the cheapest of all offers 100.
        score: the weighted sum.
        why: what it would wait for there; empty where it starts.
    """

    cluster: str
    position: int = 0
    prospect: str = ""
    unfit: str = ""
    capacity: int = 0
    topology: int = 0
    share: int = 0
    locality: int = 0
    cost: int = 0
    score: int = 0
    why: str = ""


class DispatchGiven(Payload, frozen=True):
    """The hub gave a dispatch to a cluster: the first level of the decision; nodes are the second.

    Attributes:
        term: counts how often the dispatch was given to a cluster, from 1.
        offers: of all clusters, the chosen one's among them, in order of their names.
        weights: of the parts of the offers' scores.
    """

    dispatch: str
    term: int
    cluster: str
    offers: tuple[Offer, ...] = ()
    weights: dict[str, int] = msgspec.field(default_factory=dict)


class DispatchKeptWaiting(Payload, frozen=True):
    """No cluster takes a dispatch now; recorded when that becomes so, and when the reasons change.

    Attributes:
        reason: what forbids it in all clusters, such as a queue's bound; empty where each cluster has its own.
        offers: in order of the clusters' names.
    """

    dispatch: str
    reason: str = ""
    offers: tuple[Offer, ...] = ()


class DispatchStarted(Payload, frozen=True):
    """A cluster's binder is about to bind the first pod of a dispatch: from now on the dispatch is that cluster's."""

    dispatch: str
    term: int
    cluster: str


class DispatchRecalled(Payload, frozen=True):
    """The hub asks a cluster to give a dispatch back; the cluster binds no more pods of it."""

    dispatch: str
    term: int
    cluster: str
    reason: ReleaseReason


class DispatchReturned(Payload, frozen=True):
    """A cluster has nothing of a term of a dispatch any more: neither objects nor pods.

    Attributes:
        refusal: why its API server did not take the objects; empty where that is not why.
    """

    dispatch: str
    term: int
    cluster: str
    refusal: str = ""


class DispatchReleased(Payload, frozen=True):
    """The hub took a dispatch from a cluster that does not answer, after its lease had run out by its own clock.

    Attributes:
        waited_us: how long the hub had heard nothing, microseconds of the hub's clock.
    """

    dispatch: str
    term: int
    cluster: str
    reason: ReleaseReason
    waited_us: int = 0


class DispatchFinished(Payload, frozen=True):
    """The objects of a dispatch have ended.

    Attributes:
        outcome: Succeeded, Failed, or Deleted where somebody deleted them.
    """

    dispatch: str
    term: int
    cluster: str
    outcome: str


class DispatchWithdrawn(Payload, frozen=True):
    """Its owner wants a dispatch no more, wherever it is."""

    dispatch: str


class DispatchArrived(Payload, frozen=True):
    """In a cluster's own log: its binder made the objects of a dispatch; the hub's decision is the cause.

    Attributes:
        objects: `kind namespace/name` of each.
    """

    dispatch: str
    term: int
    objects: tuple[str, ...] = ()


#: What the hub's own log consists of.
HubPayload = (
    ClusterRegistered
    | ClusterDrained
    | ClusterResumed
    | ClusterRemoved
    | LeaseRenewed
    | QueueBounded
    | QueueCharged
    | DispatchSubmitted
    | DispatchGiven
    | DispatchKeptWaiting
    | DispatchStarted
    | DispatchRecalled
    | DispatchReturned
    | DispatchReleased
    | DispatchFinished
    | DispatchWithdrawn
)
