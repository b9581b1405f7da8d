"""Explanation of a waiting pod: what is short and where, who would have to leave, what would make it start.

Shortfalls of a waiting pod: on the nodes that are closest to taking it, in its queues, in domains.

Remedies for a waiting pod, as an answer: changes that were tried, within a bounded time.
"""

import time
from collections.abc import Mapping
from typing import Any

from kaicore.analysis.ask.answers import QueueRow, RowSelection
from kaicore.analysis.ask.counterfactuals.asked import Asked, NodeObstacles
from kaicore.analysis.ask.counterfactuals.blockers import Blocker, blockers
from kaicore.analysis.ask.counterfactuals.checking import Helpful, check
from kaicore.analysis.ask.listing import list_rows, reason_answer
from kaicore.analysis.json_spelling import time_text
from kaicore.analysis.life.kubelet_models import kubelet_text
from kaicore.analysis.life.why_answers import (
    BlockerAnswer,
    DomainShortfall,
    NodeShortfall,
    RemediesAnswer,
    RemedyAnswer,
    ZoneShortfall,
)
from kaicore.rules.groups.membership import display_key
from kaicore.rules.model.quantity import PODS, exact_amount, format_amount
from kaicore.rules.reasons.queue import BoundReason
from kaicore.rules.reasons.reason import Reason
from kaicore.rules.reasons.topology import TopologyHasNoRoom

#: Nodes that are shown, the closest first.
MOST_NODES = 5


def node_shortfalls(asked: Asked) -> list[NodeShortfall]:
    """Return what the closest nodes lack: those with the fewest obstacles, of these those that lack the least.

    A node that has nothing at all of a resource that is asked for is close to nothing.
    """
    few = len(asked.obstacles[0].reasons) if asked.obstacles else 0
    closest = sorted(
        (one for one in asked.obstacles if one.reasons and asked.has_some(one.row)),
        key=lambda one: (len(one.reasons) - few, _lack(asked, one), asked.columns.names[one.row]),
    )
    return [_node(asked, one) for one in closest[:MOST_NODES]]


def _lack(asked: Asked, obstacles: NodeObstacles) -> int:
    """Return the largest share of a request that a node lacks, per mille."""
    missing = asked.missing(obstacles.row)
    return max((amount * 1000 // asked.requests[name] for name, amount in missing.items()), default=0)


def _node(asked: Asked, obstacles: NodeObstacles) -> NodeShortfall:
    return NodeShortfall(
        node=asked.columns.names[obstacles.row],
        reasons=list(dict.fromkeys(reason.code for reason in obstacles.reasons)),
        messages=list(dict.fromkeys(map(str, obstacles.reasons))),
        missing=_texts(asked.missing(obstacles.row)),
        zones=_zones(asked, obstacles.row),
        kubelet=kubelet_text(asked.state, asked.columns.names[obstacles.row]),
    )


def _zones(asked: Asked, row: int) -> list[ZoneShortfall]:
    topology, zones = asked.columns.topologies[row], asked.columns.zones
    aligned = [name for name in asked.pod_class.aligned.on(zones.kubelet_of(row)).resources if name in zones.resources]
    if topology is None or not aligned:
        return []
    shortfalls = []
    for index, zone in enumerate(topology.zones):
        free = {
            name: zone.resources[name].allocatable - int(zones.used[row, index, zones.resources[name]])
            for name in aligned
            if name in zone.resources
        }
        missing = {
            name: asked.requests[name] - max(have, 0)
            for name, have in free.items()
            if have < asked.requests.get(name, 0)
        }
        shortfalls.append(ZoneShortfall(zone=zone.name, free=_texts(free), missing=_texts(missing)))
    return shortfalls


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: exact_amount(name, max(amount, 0)) for name, amount in sorted(amounts.items()) if name != PODS}


def queue_rows(asked: Asked) -> list[QueueRow]:
    """Return the accounts of the pod's queue and of those above it, those of what it asks for only."""
    registry = asked.state.queue_registry
    name, namespace = asked.state.queue_of(asked.entry)
    number = registry.tree.find(name, namespace=namespace or asked.pod.namespace)
    if number is None:
        return []
    rows = []
    for above in registry.tree.paths[number]:
        listed = list_rows(asked.state, "queues", RowSelection(name=registry.tree.queues[above].name))
        rows += [row for row in listed if isinstance(row, QueueRow)]
    return rows


def domain_shortfalls(asked: Asked) -> list[DomainShortfall]:
    """Return what the best domains lack."""
    return [
        DomainShortfall(
            topology=reason.topology,
            level=reason.level,
            domain=reason.domain,
            needed=reason.wanted,
            has=reason.fitting,
            unit=f"slices of {reason.slice_size}" if reason.slice_size else "pods",
        )
        for reason in asked.reasons
        if isinstance(reason, TopologyHasNoRoom)
    ]


#: Seconds of CPU after which no further change is tried.
TRIAL_S = 0.5
#: Stands for the name of a node that would be added.
NEW_NODE = "the new node"


def remedies(asked: Asked, *, seconds: float) -> RemediesAnswer:
    """Return what would make a pod start.

    Args:
        asked: the pod.
        seconds: of CPU, after which no further change is tried.
    """
    end = time.process_time() + seconds
    checked, uid = check(asked, go_on=lambda: time.process_time() < end), asked.pod.uid
    return RemediesAnswer(
        pod=asked.pod.subject,
        next_cycle="" if checked.as_it_is is None else checked.as_it_is.nodes[uid],
        remedies=[_remedy(asked, one) for one in checked.helpful],
        tried=checked.tried,
        untried=checked.untried,
    )


def _remedy(asked: Asked, helpful: Helpful) -> RemedyAnswer:
    amendment = helpful.amendment
    node = helpful.start.nodes[asked.pod.uid]
    return RemedyAnswer(
        kind=amendment.kind,
        message=amendment.message,
        resource=amendment.resource,
        amount=format_amount(amendment.resource, amendment.amount) if amendment.amount else "",
        place=amendment.place,
        until=time_text(amendment.until) if amendment.until else "",
        node=node if node in asked.state.columns.rows else NEW_NODE,
        evicts=list(helpful.start.evicted),
    )


#: Nodes that are named of one group.
_MOST_NODES = 5


def why_waiting(asked: Asked) -> dict[str, Any]:
    """Return fields of `Why` about a pod that waits: nodes, domains, queues, blockers, schedulable_if, starts_if."""
    of_nodes = any(reason.of_nodes for reason in asked.reasons)
    of_queue = any(reason.queue_name for reason in asked.reasons)
    held_up = of_nodes or any(isinstance(reason, BoundReason) for reason in asked.reasons)
    return {
        "nodes": node_shortfalls(asked) if of_nodes else [],
        "domains": domain_shortfalls(asked),
        "queues": queue_rows(asked) if of_queue else [],
        "blockers": [_blocker(asked, one) for one in blockers(asked)] if held_up else [],
        "schedulable_if": [reason_answer(reason) for reason in _fits(asked)],
        "starts_if": remedies(asked, seconds=TRIAL_S),
    }


def _fits(asked: Asked) -> tuple[Reason, ...]:
    """Return when the pod would fit; nothing where pods of another kind of its group go before it."""
    if asked.entry.group_problem is not None or asked.pod_class.key not in asked.remedy.classes:
        return ()
    return asked.remedy.reasons


def _blocker(asked: Asked, blocker: Blocker) -> BlockerAnswer:
    workload = blocker.workload
    members = [*workload.active.values(), *workload.leaving.values()]
    return BlockerAnswer(
        group=display_key(workload.group.key),
        nodes=sorted({member.node for member in members})[:_MOST_NODES],
        pods=len(members),
        frees=blocker.frees,
        queue=asked.session.accounts.queue_of(workload.group),
        priority=workload.group.priority,
        suffices=blocker.suffices,
        may_leave=blocker.may_leave,
        because=list(blocker.because),
    )
