"""The message bus: the port, the wire form of events, and the implementation on NATS JetStream."""

from kaicore.interpreter import without

# nats-py speaks WebSockets by aiohttp, which takes a fifth of a second to import; `server_urls` refuses such urls.
with without("aiohttp"):
    from kaicore.ledger.bus.jetstream import NatsBus
from kaicore.ledger.bus.port import Bus, Limits, Message, StreamState, Subscription

__all__ = ["Bus", "Limits", "Message", "NatsBus", "StreamState", "Subscription"]
