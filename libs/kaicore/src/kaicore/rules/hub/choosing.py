"""The choice of a cluster for a dispatch: the best of the offers, by a sum of parts that is recorded with the decision.

The parts of an offer are from 0 to 100 (`kaicore.rules.events.payloads.Offer`). A cluster with a scheduler that would
let the dispatch wait does not get it. The dispatch then waits at the hub, which can still choose. Of equal sums the
first cluster by name is chosen, so the same offers always give the same answer.

Within one round each choice is charged, and the later offers are scored anew by the remaining room. A trial gives the
outcome of a dispatch beside all earlier ones, as if the cluster had been given them all. So a dispatch that fits does
so wherever the earlier ones go. The room that would be left, also of its queue's share, depends on where they went.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kaicore.rules.events.payloads import Offer
from kaicore.rules.model.gpu_share import SHARED_IN, gpus_text, in_thousandths
from kaicore.rules.model.pod import Amounts
from kaicore.rules.model.quantity import add_amounts

#: Weights of the parts where nothing else is set: that it starts at once and near its data outweighs the rest.
WEIGHTS: Mapping[str, int] = {"capacity": 6, "locality": 5, "topology": 3, "share": 2, "cost": 1}

#: Prospects, as `kai what-if submit` calls them.
STARTS_NOW, STARTS_AFTER_EVICTIONS, WAITS = "StartsNow", "StartsAfterEvictions", "Waits"

_WHOLE = 100
_AFTER_EVICTIONS = 20


def capacity_part(prospect: str, *, left: int) -> int:
    """Return how good a cluster's capacity is; `left` is the part of it that would be left, in hundredths."""
    if prospect == STARTS_NOW:
        return _WHOLE // 2 + max(0, min(left, _WHOLE)) // 2
    return _AFTER_EVICTIONS if prospect == STARTS_AFTER_EVICTIONS else 0


def locality_part(wanted: Collection[str], near: Collection[str]) -> int:
    """Return how many of the data sets that are read are near, in hundredths."""
    return _WHOLE * len(set(wanted) & set(near)) // len(set(wanted)) if wanted else _WHOLE


def topology_part(domains: Iterable[int]) -> int:
    """Return how close groups would be, from the number of domains that each is in; 100 where none asks for any."""
    return min((_WHOLE // max(count, 1) for count in domains), default=_WHOLE)


def share_part(used: Mapping[str, int], fair: Mapping[str, int], demand: Mapping[str, int]) -> int:
    """Return how far a queue would stay below its fair share, by the resource where it is furthest up."""
    parts = []
    for resource, amount in demand.items():
        if amount and resource in fair:
            room = fair[resource] - used.get(resource, 0) - amount
            parts.append(_WHOLE * max(0, room) // fair[resource] if fair[resource] else 0)
    return min(parts, default=_WHOLE)


def scored(offers: Sequence[Offer], costs: Mapping[str, int], weights: Mapping[str, int]) -> tuple[Offer, ...]:
    """Return offers with how cheap they are, and with their sums, in order of their clusters' names.

    Args:
        costs: by cluster; 0 is as cheap as the cheapest.
    """
    cheapest = min((costs[offer.cluster] for offer in offers if costs.get(offer.cluster)), default=0)
    done = []
    for offer in sorted(offers, key=lambda offer: offer.cluster):
        cost = costs.get(offer.cluster, 0)
        priced = msgspec.structs.replace(offer, cost=_WHOLE * cheapest // cost if cost else _WHOLE)
        total = sum(weight * int(getattr(priced, part)) for part, weight in sorted(weights.items()))
        done.append(msgspec.structs.replace(priced, score=0 if offer.unfit else total))
    return tuple(done)


def choose(offers: Iterable[Offer]) -> Offer | None:
    """Return the best offer; None where no cluster can start it."""
    startable = [offer for offer in offers if not offer.unfit and offer.capacity]
    return min(startable, key=lambda offer: (-offer.score, offer.cluster), default=None)


def over_bound(
    queue_path: Sequence[str],
    bounds: Mapping[str, Amounts],
    held: Mapping[str, Amounts],
    demand: Amounts,
    *,
    memory: int = 0,
) -> str:
    """Return which bound over all clusters a dispatch would break, in words; empty for none.

    Args:
        queue_path: its queue and those above it.
        held: by queue, what its work holds in all clusters together, and what was given and has not arrived yet; GPUs
            in thousandths.
        memory: of the smallest GPU of all clusters, in MiB; 0 where none is known.
    """
    wanted = in_thousandths(demand, memory)
    for queue in queue_path:
        for resource, limit in sorted(in_thousandths(bounds.get(queue, {})).items()):
            asked, there = wanted.get(resource, 0), held.get(queue, {}).get(resource, 0)
            if asked and there + asked > limit:
                most, now, more = (
                    gpus_text(amount) if resource in SHARED_IN else str(amount) for amount in (limit, there, asked)
                )
                return f"queue {queue}: may hold {most} {resource} in all clusters, holds {now}, {more} asked for"
    return ""


@dataclass(slots=True)
class ClusterRoom:
    """A cluster's amounts for the dispatches of one round; all amounts as queues count them, GPUs in thousandths.

    Attributes:
        total: what its ready nodes have.
        held: what is held of it, and what was given to it and has not arrived.
        used: by queue, what its work holds there.
        fair: by queue, its fair share there; a queue that is not here has none to keep below.
        memory: of its smallest GPU, in MiB; 0 where none is known.
    """

    total: Amounts
    held: Amounts
    used: dict[str, Amounts] = field(default_factory=dict)
    fair: dict[str, Amounts] = field(default_factory=dict)
    given: Amounts = field(default_factory=dict)
    memory: int = 0

    def charge(self, queue: str, demand: Mapping[str, int]) -> None:
        """Count what a dispatch that was given to the cluster asks for."""
        used = self.used.setdefault(queue, {})
        for amounts in (self.held, self.given, used):
            add_amounts(amounts, in_thousandths(demand, self.memory), 1)

    def rescored(self, offer: Offer, queue: str, demand: Mapping[str, int]) -> Offer:
        """Return an offer of the cluster with the parts that depend on what it has left.

        What starts now beside others of this round is within what was free; the first one is the engine's own word.
        """
        if offer.unfit:
            return offer
        demand, prospect = in_thousandths(demand, self.memory), offer.prospect
        if prospect == STARTS_NOW and self.given and not self._fits(demand):
            prospect = WAITS
        fair = self.fair.get(queue)
        return msgspec.structs.replace(
            offer,
            prospect=prospect,
            capacity=capacity_part(prospect, left=self._left(demand)),
            share=share_part(self.used.get(queue, {}), fair, demand) if fair is not None else 100,
        )

    def _fits(self, demand: Mapping[str, int]) -> bool:
        return all(
            not amount or self.held.get(resource, 0) + amount <= self.total.get(resource, 0)
            for resource, amount in demand.items()
        )

    def _left(self, demand: Mapping[str, int]) -> int:
        """Return what part of the cluster would be left, in hundredths, by the resource of which there is least."""
        return min(
            (
                100 * max(0, self.total[resource] - self.held.get(resource, 0) - amount) // self.total[resource]
                for resource, amount in demand.items()
                if self.total.get(resource)
            ),
            default=0,
        )


def rescored(
    offers: Iterable[Offer], rooms: Mapping[str, ClusterRoom], queue: str, demand: Mapping[str, int]
) -> list[Offer]:
    """Return a dispatch's offers as they are after the choices that were charged to `rooms`, by cluster."""
    return [
        rooms[offer.cluster].rescored(offer, queue, demand) if offer.cluster in rooms else offer for offer in offers
    ]
