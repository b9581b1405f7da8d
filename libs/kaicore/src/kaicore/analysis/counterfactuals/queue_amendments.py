"""Changes to queues so that work starts: a queue is created, started, given more, or covers another resource."""

from collections.abc import Iterator, Sequence
from typing import Any

from kaicore.analysis.counterfactuals.amendment import Amendment, Effort
from kaicore.analysis.counterfactuals.asked import Asked, edited
from kaicore.rules.events.payloads import FlavorDeleted, FlavorObserved, Payload, QueueDeleted, QueueObserved
from kaicore.rules.groups.queue_names import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL
from kaicore.rules.model.pod import Pod
from kaicore.rules.model.quantity import format_amount
from kaicore.rules.model.queue import DEFAULT_QUEUE, Queue, QueueShare, ResourceFlavor
from kaicore.rules.reasons.base import named_amount
from kaicore.rules.reasons.group import FlavorNotFound
from kaicore.rules.reasons.queue import (
    BoundReason,
    NamespaceNotSelected,
    NonPreemptibleOverQuota,
    OverFairShare,
    OverLimit,
    QueueDoesNotExist,
    QueueInvalid,
    QueueMayNotPreempt,
    QueueMayNotReclaim,
    QueueNotLeaf,
    QueueStopped,
    QueueUnsupported,
    ResourceNotCovered,
    VictimWithinShare,
)
from kaicore.rules.reasons.reason import Reason

_SHARING = (VictimWithinShare, QueueMayNotPreempt, QueueMayNotReclaim)


def queue_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield changes of queues."""
    bounds = [reason for reason in asked.reasons if isinstance(reason, BoundReason)]
    if bounds:
        yield from _raised(asked, bounds)
    for reason in asked.reasons:
        yield from _of_reason(asked, reason)


def _of_reason(asked: Asked, reason: Reason) -> Iterator[Amendment]:
    match reason:
        case QueueDoesNotExist():
            yield _made(Queue(name=reason.queue or DEFAULT_QUEUE, uid="made", origin="Queue.scheduling.run.ai"))
            yield from _named_otherwise(asked)
        case QueueInvalid():
            yield from _parents(asked, reason.queue)
            yield from _named_otherwise(asked)
        case QueueNotLeaf():
            yield from _named_otherwise(asked, below=reason.queue)
        case QueueStopped():
            yield from _edited(asked, reason.queue, f"start queue {reason.queue}: it is stopped", stopped=False)
        case NamespaceNotSelected():
            queue = asked.state.queues.get(reason.queue)
            words = f"open queue {reason.queue} to work of namespace {asked.pod.namespace}"
            namespaces = () if queue is None else (*queue.namespaces, asked.pod.namespace)
            yield from _edited(asked, reason.queue, words, namespaces=tuple(sorted(namespaces)))
        case QueueUnsupported():
            words = f"take from queue {reason.queue} what is not supported: {reason.features}"
            yield from _edited(asked, reason.queue, words, unsupported=())
        case ResourceNotCovered():
            yield from _covered(asked, reason)
        case FlavorNotFound():
            yield from _flavors(reason)
        case QueueMayNotReclaim():
            words = f"let queue {reason.queue} reclaim from others"
            yield from _edited(asked, reason.queue, words, may_reclaim=True, reclaims_lower=False)
        case QueueMayNotPreempt():
            words = f"let work of queue {reason.queue} preempt other work of it"
            yield from _edited(asked, reason.queue, words, may_preempt=True)
        case _:
            pass


def _made(queue: Queue) -> Amendment:
    return Amendment(
        "make-queue",
        f"make queue {queue.name}",
        Effort.MAKE_OBJECT,
        facts=[QueueObserved(queue)],
        undo=[QueueDeleted(queue.uid, queue.name)],
        place=queue.name,
    )


def _edited(asked: Asked, name: str, words: str, **fields: Any) -> Iterator[Amendment]:
    queue = asked.state.queues.get(name)
    if queue is not None:
        yield _changed(words, [(queue, edited(queue, **fields))])


def _changed(words: str, pairs: list[tuple[Queue, Queue]], *, resource: str = "", amount: int = 0) -> Amendment:
    return Amendment(
        "edit-queue",
        words,
        Effort.EDIT_QUEUE,
        facts=[QueueObserved(after) for _, after in pairs],
        undo=[QueueObserved(before) for before, _ in pairs],
        resource=resource,
        amount=amount,
        place=", ".join(after.name for _, after in pairs),
        evicts=True,
    )


def _named_otherwise(asked: Asked, *, below: str = "") -> Iterator[Amendment]:
    """Yield that the pods name a queue that takes their work."""
    tree = asked.state.queue_registry.tree
    label = KUEUE_QUEUE_LABEL if asked.pod.labels.get(KUEUE_QUEUE_LABEL) else KAI_QUEUE_LABEL
    for name in sorted(asked.state.queues)[:_MOST_QUEUES]:
        number = tree.resolve(name, namespace=asked.pod.namespace)
        if not isinstance(number, int):
            continue
        if below and below not in {tree.queues[above].name for above in tree.paths[number]}:
            continue
        namespace, _, plain = name.rpartition("/")
        if (label == KUEUE_QUEUE_LABEL) != (namespace == asked.pod.namespace):
            continue

        def relabelled(pod: Pod, value: str = plain) -> Pod:
            return edited(pod, labels={**pod.labels, label: value})

        yield asked.edit_pods("name-queue", f"name queue {name}: label {label}={plain}", relabelled)


#: Of so many queues it is tried whether the pods may name them.
_MOST_QUEUES = 20


def _parents(asked: Asked, name: str) -> Iterator[Amendment]:
    """Yield that what a queue points to is made, or that it points nowhere."""
    queue = asked.state.queues.get(name)
    if queue is None:
        return
    if queue.alias_of and queue.alias_of not in asked.state.queues:
        yield _made(Queue(name=queue.alias_of, uid="made", shares=queue.shares))
    above, seen = queue, {queue.name}
    while above.parent in asked.state.queues and above.parent not in seen:
        above = asked.state.queues[above.parent]
        seen.add(above.name)
    if above.parent and above.parent not in asked.state.queues:
        yield _made(Queue(name=above.parent, uid="made"))
    if above.parent:
        yield _changed(f"give queue {above.name} no parent: {above.parent}", [(above, edited(above, parent=""))])


def _covered(asked: Asked, reason: ResourceNotCovered) -> Iterator[Amendment]:
    queue = asked.state.queues.get(reason.queue)
    amount = asked.total.get(reason.resource, 0)
    if queue is not None:
        share = QueueShare(quota=amount)
        words = f"give queue {queue.name} a quota of {named_amount(reason.resource, amount)}"
        after = edited(queue, shares={**queue.shares, reason.resource: share})
        yield _changed(words, [(queue, after)], resource=reason.resource, amount=amount)


def _flavors(reason: FlavorNotFound) -> Iterator[Amendment]:
    queue, _, names = reason.flavors.partition(": ")
    facts: list[Payload] = [FlavorObserved(ResourceFlavor(name, uid="made")) for name in names.split(", ")]
    undo = [FlavorDeleted("made", name) for name in names.split(", ")]
    words = f"make ResourceFlavor {names}, which queue {queue} names"
    yield Amendment("make-flavor", words, Effort.MAKE_OBJECT, facts=facts, undo=undo, place=names)


def _raised(asked: Asked, bounds: Sequence[BoundReason]) -> Iterator[Amendment]:
    """Yield that all bounds that are in the way are raised by what is lacking."""
    queues = asked.state.queues
    changed: dict[str, Queue] = {}
    words: list[str] = []
    for reason in bounds:
        queue = changed.get(reason.queue) or queues.get(reason.queue)
        if queue is None:
            continue
        # What is over by being used already is lacking as well.
        lacking = max(reason.excess, 0)
        share = queue.shares.get(reason.resource, QueueShare())
        share, bound, value = _more(share, reason, lacking)
        if not bound:
            continue
        changed[queue.name] = edited(queue, shares={**queue.shares, reason.resource: share})
        by, to = named_amount(reason.resource, lacking), format_amount(reason.resource, value)
        words.append(f"raise the {bound} of queue {queue.name} by {by}, to {to}")
    if changed:
        first = bounds[0]
        pairs = [(queues[name], after) for name, after in changed.items()]
        yield _changed(" and ".join(words), pairs, resource=first.resource, amount=first.excess)


def _more(share: QueueShare, reason: BoundReason, lacking: int) -> tuple[QueueShare, str, int]:
    """Return a share that leaves room for more, what of it is raised, and to what."""
    if isinstance(reason, OverLimit):
        if share.limit is not None:
            return edited(share, limit=share.limit + lacking), "limit", share.limit + lacking
        if share.borrowing is not None:
            return edited(share, borrowing=share.borrowing + lacking), "borrowing limit", share.borrowing + lacking
        if share.quota is not None:
            return edited(share, quota=share.quota + lacking), "quota", share.quota + lacking
    if isinstance(reason, NonPreemptibleOverQuota | OverFairShare) and share.quota is not None:
        return edited(share, quota=share.quota + lacking), "quota", share.quota + lacking
    return share, "", 0
