"""The message bus: the port, how an event travels, and the implementations on NATS JetStream and in memory."""

from kaicore.bus.jetstream import NatsBus
from kaicore.bus.memory import MemoryBus
from kaicore.bus.port import Bus, Limits, Message, StreamState, Subscription

__all__ = ["Bus", "Limits", "MemoryBus", "Message", "NatsBus", "StreamState", "Subscription"]
