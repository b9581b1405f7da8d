"""A service's access to the message bus."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kaicore.ledger.bus import NatsBus
from kaicore.runtime.service.process import ServiceContext


@asynccontextmanager
async def open_bus(context: ServiceContext, url: str | None) -> AsyncIterator[NatsBus | None]:
    """Give the bus under the service's name, and close it; None without a url: events then come from the log alone.

    Raises:
        ConfigurationError: the url is none.
    """
    if not url:
        yield None
        return
    bus = await NatsBus.open(url, name=f"kai-{context.name}")
    try:
        yield bus
    finally:
        await bus.close()
