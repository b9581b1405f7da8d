"""The consumer library: a cluster's events in order, from any position, history from the log and live from the bus."""

from kaicore.ledger.feed.feed import EventFeed, FeedOptions
from kaicore.ledger.feed.metrics import FeedMetrics
from kaicore.ledger.feed.observer import Fallback, FeedObserver, Source

__all__ = ["EventFeed", "Fallback", "FeedMetrics", "FeedObserver", "FeedOptions", "Source"]
