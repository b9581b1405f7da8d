"""Prometheus metrics of reading a log."""

from prometheus_client import Counter

DISCARDED = Counter(
    "kai_snapshots_discarded",
    "Snapshots that were thrown away: not what was saved (digest), not to be read (unreadable), beyond the log (ahead)",
    ["name", "why"],
)
