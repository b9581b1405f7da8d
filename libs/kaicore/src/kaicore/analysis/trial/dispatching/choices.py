"""Recomputation of the hub's choices from the offers that were recorded with them."""

import msgspec

from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import DispatchGiven
from kaicore.rules.hub.choosing import choose
from kaicore.rules.hub.hub_state import HUB

_PAGE = 2000


class ChoiceReplay(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The order of the hub's choices.

    Attributes:
        choices: how many were made again.
        differences: one line for each that came out otherwise.
    """

    cluster: str
    choices: int
    differences: list[str]


async def replay_choices(log: EventLog) -> ChoiceReplay:
    """Choose again for every dispatch that was given to a cluster, and compare."""
    choices, differences, after = 0, [], 0
    where = Filter(types=(DispatchGiven.__name__,))
    while page := await log.read(HUB, after=after, limit=_PAGE, where=where):
        for event in page:
            after = event.position
            given = decode_payload(event)
            if not isinstance(given, DispatchGiven):
                continue
            choices += 1
            again = choose(given.offers)
            if again is None or again.cluster != given.cluster:
                differences.append(
                    f"position {event.position}: dispatch {given.dispatch}: given to {given.cluster}, chosen again: "
                    f"{again.cluster if again is not None else 'none'}"
                )
    return ChoiceReplay(cluster=HUB, choices=choices, differences=differences)
