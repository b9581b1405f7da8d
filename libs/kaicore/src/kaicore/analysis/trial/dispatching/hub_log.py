"""Access to the hub's log for operators and submitters: reading, appending, and choices computed again from offers."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import msgspec

from kaicore.errors import ConfigurationError, StaleExpectation
from kaicore.ledger.log.port import EventLog, Filter
from kaicore.ledger.log.snapshots import folded_hub, restored_hub
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import DispatchGiven, HubPayload
from kaicore.rules.hub.choosing import choose
from kaicore.rules.hub.hub_state import HUB, HubState

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


#: Who appends where nobody else is named: whoever runs `kai`.
OPERATOR = "kai"


class HubLog:
    """The hub's log, and its state at the log's end."""

    def __init__(self, log: EventLog) -> None:
        """Args: log: of the hub and of all clusters."""
        self.log = log
        self.state = HubState()

    async def refresh(self) -> HubState:
        """Fold to the log's end."""
        if not self.state.position:
            self.state = await restored_hub(self.log)
        return await folded_hub(self.log, self.state)

    async def append(self, stream: str, payload: HubPayload, *, subject: str) -> None:
        """Append an operator's decision to a stream, if nobody has changed that since it was read.

        Raises:
            ConfigurationError: somebody has.
            LogUnavailable: it is not known whether it was appended.
        """
        if not await self.try_append(stream, payload, subject=subject):
            raise ConfigurationError(f"{subject}: was changed by somebody else just now; look again")

    async def try_append(self, stream: str, payload: HubPayload, *, subject: str, actor: str = OPERATOR) -> bool:
        """Append an actor's decision to a stream; return False if somebody has changed that since it was read.

        Raises:
            LogUnavailable: it is not known whether it was appended.
        """
        version = self.state.versions.get(stream, 0)
        event = NewEvent(
            id=derived_id(HUB, stream, str(version), uuid4().hex),
            stream=stream,
            payload=payload,
            actor=actor,
            occurred_at=time.time_ns() // 1000,
            subject=subject,
            correlation=stream,
        )
        try:
            await self.log.append(HUB, [Unit((event,))], expect={stream: version})
        except StaleExpectation:
            return False
        await self.refresh()
        return True


@asynccontextmanager
async def hub_of(log: EventLog) -> AsyncIterator[HubLog]:
    """Yield the hub's log, folded to its end."""
    hub = HubLog(log)
    await hub.refresh()
    yield hub
