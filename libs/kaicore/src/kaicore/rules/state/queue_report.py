"""A cycle's reports of queues: those that have changed, not more often than configured."""

from kaicore.rules.engine.config import EngineConfig
from kaicore.rules.events.payloads import QueuesReported
from kaicore.rules.state.cluster_state import ClusterState
from kaicore.rules.state.queue_registry import QueueRegistry
from kaicore.rules.state.queue_shares import figures


def may_report(registry: QueueRegistry, config: EngineConfig, *, now: int) -> bool:
    """Whether there are queues to report of, and the last report is long enough ago."""
    every_us = config.fair_share.report_every_us
    return bool(registry.queues and every_us) and now >= registry.reported_at + every_us


def queue_report(state: ClusterState, config: EngineConfig, *, shard: str, now: int) -> QueuesReported | None:
    """Return what a cycle reports; None when it is too soon, or nothing has changed.

    Args:
        state: the cycle's input.
        config: the shard's settings.
        shard: whose cycle it is.
        now: the cycle's clock, microseconds since the epoch.
    """
    registry = state.queue_registry
    if not may_report(registry, config, now=now):
        return None
    accounts = state.queue_accounts(config, now=now)
    changed = [
        item for name, item in sorted(figures(accounts).items()) if item.uid and registry.reported.get(name) != item
    ]
    return QueuesReported(shard=shard, now=now, queues=tuple(changed)) if changed else None
