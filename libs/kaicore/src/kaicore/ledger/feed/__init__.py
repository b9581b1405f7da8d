"""The consumer library: a cluster's events in order, from any position, history from the log and live from the bus."""

from kaicore.ledger.feed.feed import EventFeed, FeedOptions
from kaicore.ledger.feed.observer import EventSource, Fallback, FeedMetrics, FeedObserver

__all__ = ["EventFeed", "EventSource", "Fallback", "FeedMetrics", "FeedObserver", "FeedOptions"]
