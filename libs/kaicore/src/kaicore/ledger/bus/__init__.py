"""The message bus: the port, the wire form of events, and the implementations on NATS JetStream and in memory."""

from kaicore.optional_imports import without

# nats-py speaks WebSockets by aiohttp, which takes a fifth of a second to import; `server_urls` refuses such urls.
with without("aiohttp"):
    from kaicore.ledger.bus.jetstream import NatsBus
from kaicore.ledger.bus.memory import MemoryBus
from kaicore.ledger.bus.port import Bus, Limits, Message, StreamState, Subscription

__all__ = ["Bus", "Limits", "MemoryBus", "Message", "NatsBus", "StreamState", "Subscription"]
