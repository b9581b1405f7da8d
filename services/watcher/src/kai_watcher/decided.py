"""Check of pods that come to nodes: those that the log did not decide charge the node on which they are seen.

A decision is in the log before its pod is bound, and the pod is bound before a watch shows it on its node. So when a
pod is first seen on a node, the log already has every decision about it.
"""

from collections.abc import Iterable, Mapping

from kaicore.ledger.log.port import EventLog, Filter
from kaicore.rules.events.codec import decode_payload
from kaicore.rules.events.payloads import BindFailed, PodPlaced

_TYPES = ("BindFailed", "PodPlaced")

#: Pods asked about at once, and events read at once.
_PODS, _PAGE = 500, 2000


async def undecided(log: EventLog, cluster: str, arrivals: Mapping[str, str]) -> Mapping[str, str]:
    """Return those of some pods that came to nodes without the log having decided it, or after it was given up.

    Args:
        log: the log.
        cluster: whose.
        arrivals: the pods' nodes by uid.

    Raises:
        LogUnavailable: the log does not answer.
    """
    uids = list(arrivals)
    decided: dict[str, str] = {}
    for begin in range(0, len(uids), _PODS):
        decided.update(await _decided(log, cluster, uids[begin : begin + _PODS]))
    return {uid: node for uid, node in arrivals.items() if decided.get(uid) != node}


async def _decided(log: EventLog, cluster: str, uids: Iterable[str]) -> dict[str, str]:
    where = Filter(streams=tuple(f"pod/{uid}" for uid in uids), types=_TYPES)
    decided: dict[str, str] = {}
    after = 0
    while page := await log.read(cluster, after=after, limit=_PAGE, where=where):
        for event in page:
            match decode_payload(event):
                case PodPlaced(uid=uid, node=node):
                    decided[uid] = node
                case BindFailed(uid=uid):
                    decided.pop(uid, None)
                case _:
                    pass
        after = page[-1].position
        if len(page) < _PAGE:
            break
    return decided
