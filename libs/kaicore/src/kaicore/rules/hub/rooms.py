"""The remaining room of clusters within one round: each choice is charged, and the later offers are scored anew.

A trial gives the outcome of a dispatch beside all earlier ones, as if the cluster had been given them all. So a
dispatch that fits does so wherever the earlier ones go. The room that would be left, also of its queue's share, depends
on where they went.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from kaicore.rules.events.payloads import Offer
from kaicore.rules.hub.choosing import STARTS_NOW, WAITS, capacity_part, share_part
from kaicore.rules.model.pod import Amounts


@dataclass(slots=True)
class ClusterRoom:
    """What a cluster has for the dispatches of one round; all amounts as queues count them.

    Attributes:
        total: what its ready nodes have.
        held: what is held of it, and what was given to it and has not arrived.
        used: by queue, what its work holds there.
        fair: by queue, its fair share there; a queue that is not here has none to keep below.
        given: what it was given in this round.
    """

    total: Amounts
    held: Amounts
    used: dict[str, Amounts] = field(default_factory=dict)
    fair: dict[str, Amounts] = field(default_factory=dict)
    given: Amounts = field(default_factory=dict)

    def charge(self, queue: str, demand: Mapping[str, int]) -> None:
        """Count what a dispatch that was given to the cluster asks for."""
        used = self.used.setdefault(queue, {})
        for amounts in (self.held, self.given, used):
            for resource, amount in demand.items():
                amounts[resource] = amounts.get(resource, 0) + amount

    def rescored(self, offer: Offer, queue: str, demand: Mapping[str, int]) -> Offer:
        """Return an offer of the cluster with the parts that depend on what it has left.

        What starts now beside others of this round is within what was free; the first one is the engine's own word.
        """
        if offer.unfit:
            return offer
        prospect = offer.prospect
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
