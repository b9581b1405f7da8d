"""When and what a cycle reports of queues: those that have changed, not more often than configured."""

from kaicore.engine.config import EngineConfig
from kaicore.events.payloads import QueuesReported
from kaicore.queues.accounts import QueueAccounts
from kaicore.state.queue_book import QueueBook
from kaicore.state.queue_shares import figures


def report_due_at(book: QueueBook, config: EngineConfig) -> int | None:
    """Return from when on a report may be made, microseconds since the epoch; None if there is nothing to report of."""
    if not book.queues or not config.fair_share.report_every_us:
        return None
    return book.reported_at + config.fair_share.report_every_us


def queue_report(
    book: QueueBook, accounts: QueueAccounts, config: EngineConfig, *, shard: str, now: int
) -> QueuesReported | None:
    """Return what a cycle reports; None when it is too soon, or nothing has changed.

    Args:
        book: with what was last reported.
        accounts: of the cycle's input, before it charges anything.
        config: the shard's settings.
        shard: whose cycle it is.
        now: the cycle's clock, microseconds since the epoch.
    """
    due = report_due_at(book, config)
    if due is None or now < due:
        return None
    changed = [item for name, item in sorted(figures(accounts).items()) if book.reported.get(name) != item]
    return QueuesReported(shard=shard, now=now, queues=tuple(changed)) if changed else None
