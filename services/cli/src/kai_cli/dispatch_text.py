"""Dispatches as text for people."""

from collections.abc import Iterator, Sequence

from kaicore.analysis.ask.answers import DispatchRow, DispatchWhy

from kai_cli.printing import table

_PARTS = ("capacity", "locality", "topology", "share", "cost")


def dispatches_text(rows: Sequence[DispatchRow]) -> str:
    """Return a list of dispatches."""
    head = ("DISPATCH", "STAGE", "CLUSTER", "QUEUE", "SINCE", "WHY")
    return table(head, [(row.name, row.stage, row.cluster, row.queue, row.since, row.message) for row in rows])


def dispatch_lines(why: DispatchWhy) -> Iterator[str]:
    """Yield why a dispatch is where it is, and what the hub's log has of it."""
    yield f"dispatch {why.dispatch.name}: {why.verdict}, since {why.dispatch.since}"
    yield from offer_lines(why)
    if why.dispatch.cluster and why.dispatch.stage in ("Given", "Started", "Recalled"):
        yield f"which nodes: `kai get pods --cluster {why.dispatch.cluster}`, and `kai why` of one of them"
    yield "story:"
    yield from (f"  {line.position:>8}  {line.recorded_at}  {line.text}" for line in why.story)


def offer_lines(why: DispatchWhy) -> list[str]:
    """Return the clusters' offers, the parts of each from 0 to 100."""
    if not why.offers:
        return []
    head = ("CLUSTER", *(f"{part} x{why.weights[part]}" if part in why.weights else part for part in _PARTS), "SUM", "")
    rows = [
        (
            offer.cluster,
            *("" if offer.unfit else str(getattr(offer, part)) for part in _PARTS),
            "" if offer.unfit else str(offer.score),
            offer.unfit or ": ".join(filter(None, (offer.prospect, offer.why))),
        )
        for offer in why.offers
    ]
    return [f"  {line}" for line in table(head, rows).splitlines()]
