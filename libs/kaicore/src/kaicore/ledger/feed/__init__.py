"""The consumer library: a cluster's events in order, from any position, history from the log and live from the bus."""

from kaicore.ledger.feed.feed import EventFeed, EventSource, Fallback, FeedMetrics, FeedObserver, FeedOptions

__all__ = ["EventFeed", "EventSource", "Fallback", "FeedMetrics", "FeedObserver", "FeedOptions"]
