"""A fact that changes a node's account: it moves the node's stream, in the same unit.

Every decision about a node is conditional on `node/<name>`. A fact has a stream of its own (`pod/<uid>`, `nrt/<name>`).
Where it changes the account of a node, a `NodeCharged` goes with it, and no decision that was taken without it is
appended after it. Facts that only free a node go without: a decision taken without them is cautious, not wrong.
"""

from collections.abc import Iterable

import msgspec

from kaicore.rules.events.envelope import NewEvent, Unit, derived_id
from kaicore.rules.events.payloads import NodeCharged


def charging(unit: Unit, node: str, *, pods: Iterable[str] = ()) -> Unit:
    """Return a unit of facts as one that also moves a node's stream.

    The facts get other ids: whether a fact charges a node may be seen otherwise when it is told again, and a unit is in
    the log as a whole or not at all.

    Args:
        unit: the facts.
        node: whose account they change.
        pods: uids of the pods that the node is accounted to hold otherwise.
    """
    ids = {event.id: derived_id(str(event.id), "charging", node) for event in unit.events}
    facts = tuple(
        msgspec.structs.replace(
            event, id=ids[event.id], cause=None if event.cause is None else ids.get(event.cause, event.cause)
        )
        for event in unit.events
    )
    first = facts[0]
    charged = NewEvent(
        id=derived_id(str(first.id), "NodeCharged"),
        stream=f"node/{node}",
        payload=NodeCharged(node=node, cycle="", pods=tuple(pods)),
        actor=first.actor,
        occurred_at=first.occurred_at,
        subject=node,
        cause=first.id,
    )
    return Unit((*facts, charged), expect=unit.expect)
