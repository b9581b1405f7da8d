"""Amendments that may make a pod start: changes to nodes, pods, queues and volumes.

A node is uncordoned, untainted, labelled or made ready. From a pod one obstacle after another is removed. A queue is
created, started, given more, or covers another resource. A volume is created, bound or released.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from kaicore.analysis.ask.counterfactuals.asked import Amendment, Asked, Effort, edited
from kaicore.analysis.ask.counterfactuals.room_amendments import end_of
from kaicore.rules.engine.constraints.class_filters import CORDONED
from kaicore.rules.engine.constraints.node_matching import tolerates
from kaicore.rules.events import payloads
from kaicore.rules.events.reasons import node as node_reasons
from kaicore.rules.events.reasons import queue as queue_reasons
from kaicore.rules.events.reasons.base import CodedReason, NodeReason, named_amount
from kaicore.rules.events.reasons.group import FlavorNotFound, Malformed, SchedulingGated, Unsupported
from kaicore.rules.events.reasons.making_room import NeverPreempts
from kaicore.rules.events.reasons.numa import NumaPolicyNeverKept, NumaPolicyNotKept, NumaPolicyUntold
from kaicore.rules.groups.koordinator import GANG
from kaicore.rules.groups.kueue import TOTAL_COUNT
from kaicore.rules.groups.labels import KAI_QUEUE_LABEL, KUEUE_QUEUE_LABEL, PREEMPTIBILITY_LABEL
from kaicore.rules.model.node import HOSTNAME, Node
from kaicore.rules.model.pod import GPU_SHARE, Pod, PodRules, Toleration
from kaicore.rules.model.quantity import MEMORY, format_amount
from kaicore.rules.model.queue import DEFAULT_QUEUE, Queue, QueueShare, ResourceFlavor
from kaicore.rules.model.selector import Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim
from kaicore.rules.numa.own_policy import POLICY_ANNOTATION, RESOURCES_ANNOTATION

#: A node as it is to be, and what is done to it; None where nothing that is known helps.
_Mended = tuple[Node, str] | None
#: Of alike nodes so many are tried one by one.
_MOST_ALONE = 3
#: Labels that a program writes from what a machine is, such as GPU Feature Discovery, the kubelet or a cloud's
#: controller: one that is there is true.
_OF_HARDWARE = (
    "nvidia.com/",
    "amd.com/",
    "gpu.intel.com/",
    "feature.node.kubernetes.io/",
    "kubernetes.io/",
    "node.kubernetes.io/",
    "topology.kubernetes.io/",
    "beta.kubernetes.io/",
    "cloud.google.com/",
)


def node_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield that nodes are tended which only what can be tended keeps from taking the pod."""
    mended = [pair for obstacles in asked.obstacles if (pair := _mended(asked, obstacles.row, obstacles.reasons))]
    for number, (before, after, words) in enumerate(mended):
        if number < _MOST_ALONE:
            yield asked.edit_nodes(words, [(before, after)])
    count = 2
    while count <= min(len(mended), len(asked.fellows)):
        some = mended[:count]
        message = "; ".join(words for _, _, words in some)
        yield asked.edit_nodes(message, [(before, after) for before, after, _ in some])
        count *= 2


def _mended(asked: Asked, row: int, reasons: Sequence[NodeReason]) -> tuple[Node, Node, str] | None:
    before = node = asked.node(row)
    words: list[str] = []
    for reason in reasons:
        mend = _MENDING.get(type(reason))
        mended = None if mend is None else mend(asked, node, reason)
        if mended is None:
            return None
        node, word = mended
        if word not in words:
            words.append(word)
    return (before, node, " and ".join(words)) if words else None


def _ready(asked: Asked, node: Node, reason: Any) -> _Mended:
    return edited(node, ready=True), f"get node {node.name} ready again"


def _uncordoned(asked: Asked, node: Node, reason: Any) -> _Mended:
    taints = tuple(taint for taint in node.taints if taint.key != CORDONED.key)
    return edited(node, unschedulable=False, taints=taints), f"uncordon node {node.name}"


def _untainted(asked: Asked, node: Node, reason: Any) -> _Mended:
    tolerations = asked.pod_class.tolerations
    left = tuple(taint for taint in node.taints if tolerates(tolerations, taint))
    gone = [f"{taint.key}:{taint.effect}" for taint in node.taints if taint not in left]
    if not gone:
        # It was the cordon's, which went with the cordon.
        return node, f"uncordon node {node.name}"
    return edited(node, taints=left), f"take the taint {', '.join(gone)} off node {node.name}"


def _labelled(node: Node, labels: dict[str, str | None]) -> _Mended:
    """Return a node with labels, or None where that were a lie; a value of None takes one off."""
    news = {key: value for key, value in labels.items() if node.labels.get(key) != value}
    if any(key in node.labels and key.startswith(_OF_HARDWARE) for key in news):
        return None
    merged = {**node.labels, **news}
    after = {key: value for key, value in merged.items() if value is not None}
    parts = [f"{key}={value}" if value is not None else f"{key}-" for key, value in sorted(news.items())]
    return edited(node, labels=after), f"label node {node.name} with {', '.join(parts)}, if that is true"


def _selected(asked: Asked, node: Node, reason: Any) -> _Mended:
    return _labelled(node, dict(asked.pod_class.node_selector))


def _affine(asked: Asked, node: Node, reason: Any) -> _Mended:
    return _of_terms(node, asked.pod_class.node_affinity)


def _of_flavor(asked: Asked, node: Node, reason: Any) -> _Mended:
    places = [terms for words, terms in asked.pod_class.flavors.places if words == reason.flavors]
    return _of_terms(node, places[0]) if places else None


def _reached(asked: Asked, node: Node, reason: Any) -> _Mended:
    places = [terms for words, terms in asked.pod_class.volumes.places if words == reason.constraint]
    return _of_terms(node, places[0]) if places else None


def _topology_label(asked: Asked, node: Node, reason: Any) -> _Mended:
    labels: dict[str, str | None] = {}
    for key in reason.label.split(", "):
        if key in node.labels:
            continue
        values = sorted({other.labels[key] for other in asked.state.columns.facts if other and key in other.labels})
        labels[key] = node.name if key == HOSTNAME or not values else values[0]
    return _labelled(node, labels)


def _of_terms(node: Node, terms: Sequence[Sequence[Requirement]]) -> _Mended:
    """Return a node that meets the first of some terms that labels can meet."""
    for term in terms:
        labels: dict[str, str | None] = {}
        if term and all(_meet(node, one, labels) for one in term):
            return _labelled(node, labels)
    return None


def _meet(node: Node, one: Requirement, labels: dict[str, str | None]) -> bool:
    value = node.labels.get(one.key)
    if one.field:
        return one.operator == "In" and node.name in one.values
    match one.operator:
        case "In":
            labels[one.key] = value if value in one.values else one.values[0]
        case "NotIn":
            labels[one.key] = None if value in one.values else value
        case "Exists":
            labels[one.key] = value if value is not None else "true"
        case "DoesNotExist":
            labels[one.key] = None
        case "Gt" | "Lt":
            bound = int(one.values[0])
            labels[one.key] = str(bound + 1 if one.operator == "Gt" else bound - 1)
        case _:
            return False
    return True


_MENDING: dict[type[NodeReason], Callable[[Asked, Node, Any], _Mended]] = {
    node_reasons.NodeNotReady: _ready,
    node_reasons.NodeUnschedulable: _uncordoned,
    node_reasons.UntoleratedTaint: _untainted,
    node_reasons.NodeSelectorMismatch: _selected,
    node_reasons.NodeAffinityMismatch: _affine,
    node_reasons.NodeFlavorMismatch: _of_flavor,
    node_reasons.NoTopologyLabel: _topology_label,
    node_reasons.VolumeOutOfReach: _reached,
}

_GPU = "nvidia.com/gpu"


def pod_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield edits of what the pods ask for."""
    for reason in asked.reasons:
        yield from _of_itself(asked, reason)
        yield from _of_nodes(asked, reason)
        yield from _of_pods_nearby(asked, reason)


def _of_itself(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    pod = asked.pod
    match reason:
        case SchedulingGated():
            words = f"take the scheduling gate {reason.gates} off pod {pod.subject}"
            yield asked.edit_pods("ungate", words, lambda one: edited(one, scheduling_gates=()))
        case Malformed():
            count = len(asked.fellows)
            words = f"correct the invalid request of pod {pod.subject}: {reason.problem}"
            yield asked.edit_pods("correct", words, lambda one: _corrected(one, reason.problem, count))
        case Unsupported(group="") if reason.features.startswith(GPU_SHARE):
            words = f"request a whole GPU ({_GPU}: 1) instead of a share of one in {pod.subject}"
            yield asked.edit_pods("whole-gpu", words, _whole_gpu)
        case node_reasons.NoGpuToShare():
            words = f"request a whole GPU ({_GPU}: 1) instead of parts of GPUs in {pod.subject}"
            yield asked.edit_pods("whole-gpu", words, lambda one: _whole_gpu(edited(one, gpu_share=None)))
        case node_reasons.NoPartOfGpu(largest=largest) if 0 < largest < reason.needed and pod.gpu_share is not None:
            less = msgspec.structs.replace(pod.gpu_share, milli=largest, mib=0)
            words = f"request {less} in {pod.subject}"
            yield asked.edit_pods("smaller-part", words, lambda one: edited(one, gpu_share=less))
        case Unsupported(group=""):
            words = f"take from pod {pod.subject} its unsupported features: {reason.features}"
            yield asked.edit_pods("do-without", words, lambda one: edited(one, unsupported=()))
        case queue_reasons.NonPreemptibleOverQuota():
            words = f"let pod {pod.subject} be preempted: label {PREEMPTIBILITY_LABEL}=preemptible"
            yield asked.edit_pods("make-preemptible", words, _preemptible, evicts=True)
        case NeverPreempts():
            words = f"let pod {pod.subject} preempt: preemptionPolicy PreemptLowerPriority"
            policy = "PreemptLowerPriority"
            yield asked.edit_pods("let-preempt", words, lambda one: edited(one, preemption_policy=policy), evicts=True)
        case _:
            pass


def _preemptible(pod: Pod) -> Pod:
    return edited(pod, labels={**pod.labels, PREEMPTIBILITY_LABEL: "preemptible"})


def _whole_gpu(pod: Pod) -> Pod:
    """Return a pod that requests whole GPUs instead of shares of as many."""
    *others, main = pod.containers
    count = 1 if pod.gpu_share is None else pod.gpu_share.devices
    requests, limits = ({**amounts, _GPU: max(amounts.get(_GPU, 0), count)} for amounts in (main.requests, main.limits))
    kept = tuple(feature for feature in pod.unsupported if not feature.startswith(GPU_SHARE))
    containers = (*others, edited(main, requests=requests, limits=limits))
    return edited(pod, unsupported=kept, gpu_share=None, containers=containers)


def _corrected(pod: Pod, problem: str, count: int) -> Pod:
    """Return a pod without its invalid parts; of its group, only the number of pods is kept."""
    named = {key for key in pod.annotations if key in problem}
    if POLICY_ANNOTATION in named:
        named.add(RESOURCES_ANNOTATION)
    annotations = {key: value for key, value in pod.annotations.items() if key not in named}
    for key in (f"{GANG}/min-available", TOTAL_COUNT):
        if key in problem:
            annotations[key] = str(count)
    return edited(pod, malformed="", annotations=annotations)


def _of_nodes(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    pod = asked.pod
    match reason:
        case node_reasons.NodeSelectorMismatch():
            selector = ", ".join(f"{key}={value}" for key, value in sorted(pod.node_selector.items()))
            words = f"take the nodeSelector {selector} off pod {pod.subject}"
            yield asked.edit_pods("relax", words, lambda one: edited(one, node_selector={}))
        case node_reasons.NodeAffinityMismatch():
            words = f"take the required node affinity off pod {pod.subject}"
            yield asked.edit_pods("relax", words, lambda one: edited(one, node_affinity=()))
        case node_reasons.UntoleratedTaint():
            key, _, effect = reason.taint.rpartition(":")
            key, _, value = key.partition("=")
            toleration = Toleration(key, "Equal" if value else "Exists", value, effect)
            words = f"let pod {pod.subject} tolerate {reason.taint}"
            yield asked.edit_pods("tolerate", words, lambda one: _tolerating(one, toleration))
        case node_reasons.NodeReserved() if (one := asked.state.reservations.get(reason.reservation)) is not None:
            facts = (payloads.ReservationDeleted(one.uid, one.name),)
            words, undo = f"delete Reservation {one.name} ({reason.terms})", (payloads.ReservationObserved(one),)
            yield Amendment("delete-reservation", words, Effort.TEND_NODE, facts, undo, place=one.name)
            window = one.window(asked.state.recorded_at)
            left_s = 0 if window is None else (window.start - asked.state.recorded_at) // 1_000_000
            if left_s > 0:
                words = f"limit pod {pod.subject} to the {left_s} s until then: activeDeadlineSeconds"
                yield asked.edit_pods("limit", words, lambda given: edited(given, active_deadline_s=left_s))
        case NumaPolicyUntold() | NumaPolicyNeverKept() | NumaPolicyNotKept():
            was = pod.annotations.get(POLICY_ANNOTATION, "")
            words = f"relax {POLICY_ANNOTATION} of pod {pod.subject} from {was} to best-effort"
            yield asked.edit_pods("relax", words, _best_effort)
        case (
            node_reasons.ResourceClaimNotReady()
            | node_reasons.ResourceClaimOutOfReach()
            | node_reasons.NoMatchingDevices()
            | node_reasons.DevicesTaken()
        ):
            for claim in pod.resource_claims:
                words = f"take the resource claim {claim.name} off pod {pod.subject}"
                yield asked.edit_pods("relax", words, partial(_without_claim, name=claim.name))
        case _:
            pass


def _without_claim(pod: Pod, name: str) -> Pod:
    return edited(pod, resource_claims=tuple(claim for claim in pod.resource_claims if claim.name != name))


def _tolerating(pod: Pod, toleration: Toleration) -> Pod:
    return edited(pod, tolerations=(*pod.tolerations, toleration))


def _best_effort(pod: Pod) -> Pod:
    return edited(pod, annotations={**pod.annotations, POLICY_ANNOTATION: "best-effort"})


def _of_pods_nearby(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    subject = asked.pod.subject
    match reason:
        case node_reasons.TopologySpread():
            words = f"raise maxSkew of pod {subject} by {reason.topology_key} from {reason.max_skew} to {reason.skew}"
            yield asked.edit_pods("relax", words, lambda one: _with_skew(one, reason), amount=reason.skew)
        case node_reasons.PodAffinity():
            words = f"take the required pod affinity by {reason.topology_key} off pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, affinity=()))
        case node_reasons.PodAntiAffinity():
            words = f"take the required pod anti-affinity by {reason.topology_key} off pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, anti_affinity=()))
        case node_reasons.HostPortTaken():
            words = f"drop host port {reason.port} in pod {subject}"
            yield asked.edit_pods("relax", words, lambda one: _with_rules(one, host_ports=()))
        case _:
            pass


def _with_skew(pod: Pod, reason: node_reasons.TopologySpread) -> Pod:
    rules = pod.rules or PodRules()
    spread = tuple(
        edited(one, max_skew=max(one.max_skew, reason.skew)) if one.topology_key == reason.topology_key else one
        for one in rules.spread
    )
    return _with_rules(pod, spread=spread)


def _with_rules(pod: Pod, **fields: object) -> Pod:
    return edited(pod, rules=edited(pod.rules or PodRules(), **fields))


def queue_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield changes of queues."""
    bounds = [reason for reason in asked.reasons if isinstance(reason, queue_reasons.BoundReason)]
    if bounds:
        yield from _raised(asked, bounds)
    for reason in asked.reasons:
        yield from _of_reason(asked, reason)


def _of_reason(asked: Asked, reason: CodedReason) -> Iterator[Amendment]:
    match reason:
        case queue_reasons.QueueDoesNotExist():
            yield _made(Queue(name=reason.queue or DEFAULT_QUEUE, uid="made", origin="Queue.scheduling.run.ai"))
            yield from _named_otherwise(asked)
        case queue_reasons.QueueInvalid():
            yield from _parents(asked, reason.queue)
            yield from _named_otherwise(asked)
        case queue_reasons.QueueNotLeaf():
            yield from _named_otherwise(asked, below=reason.queue)
        case queue_reasons.QueueStopped():
            yield from _edited(asked, reason.queue, f"start queue {reason.queue}: it is stopped", stopped=False)
        case queue_reasons.NamespaceNotSelected():
            queue = asked.state.queues.get(reason.queue)
            words = f"open queue {reason.queue} to work of namespace {asked.pod.namespace}"
            namespaces = () if queue is None else (*queue.namespaces, asked.pod.namespace)
            yield from _edited(asked, reason.queue, words, namespaces=tuple(sorted(namespaces)))
        case queue_reasons.QueueUnsupported():
            words = f"take from queue {reason.queue} its unsupported features: {reason.features}"
            yield from _edited(asked, reason.queue, words, unsupported=())
        case queue_reasons.ResourceNotCovered():
            yield from _covered(asked, reason)
        case FlavorNotFound():
            yield from _flavors(reason)
        case queue_reasons.QueueMayNotReclaim():
            words = f"let queue {reason.queue} reclaim from others"
            yield from _edited(asked, reason.queue, words, may_reclaim=True, reclaims_lower=False)
        case queue_reasons.QueueMayNotPreempt():
            words = f"let work of queue {reason.queue} preempt other work of it"
            yield from _edited(asked, reason.queue, words, may_preempt=True)
        case _:
            pass


def _made(queue: Queue) -> Amendment:
    return Amendment(
        "make-queue",
        f"make queue {queue.name}",
        Effort.MAKE_OBJECT,
        facts=[payloads.QueueObserved(queue)],
        undo=[payloads.QueueDeleted(queue.uid, queue.name)],
        place=queue.name,
    )


def _edited(asked: Asked, name: str, words: str, **fields: Any) -> Iterator[Amendment]:
    queue = asked.state.queues.get(name)
    if queue is not None:
        yield _changed(words, [(queue, edited(queue, **fields))])


def _changed(words: str, pairs: list[tuple[Queue, Queue]], *, resource: str = "", amount: int = 0) -> Amendment:
    about = {"resource": resource, "amount": amount, "place": ", ".join(after.name for _, after in pairs)}
    return Amendment.edits("edit-queue", words, Effort.EDIT_QUEUE, payloads.QueueObserved, pairs, evicts=True, **about)


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


def _covered(asked: Asked, reason: queue_reasons.ResourceNotCovered) -> Iterator[Amendment]:
    queue = asked.state.queues.get(reason.queue)
    amount = asked.total.get(reason.resource, 0)
    if queue is not None:
        share = QueueShare(quota=amount)
        words = f"give queue {queue.name} a quota of {named_amount(reason.resource, amount)}"
        after = edited(queue, shares={**queue.shares, reason.resource: share})
        yield _changed(words, [(queue, after)], resource=reason.resource, amount=amount)


def _flavors(reason: FlavorNotFound) -> Iterator[Amendment]:
    queue, _, names = reason.flavors.partition(": ")
    facts = [payloads.FlavorObserved(ResourceFlavor(name, uid="made")) for name in names.split(", ")]
    undo = [payloads.FlavorDeleted("made", name) for name in names.split(", ")]
    words = f"make ResourceFlavor {names}, which queue {queue} names"
    yield Amendment("make-flavor", words, Effort.MAKE_OBJECT, facts=facts, undo=undo, place=names)


def _raised(asked: Asked, bounds: Sequence[queue_reasons.BoundReason]) -> Iterator[Amendment]:
    """Yield that all bounds that are in the way are raised by what is lacking."""
    queues = asked.state.queues
    changed: dict[str, Queue] = {}
    words: list[str] = []
    for reason in bounds:
        queue = changed.get(reason.queue) or queues.get(reason.queue)
        if queue is None:
            continue
        # What is over by being used already is lacking as well.
        lacking = max(reason.whole(reason.excess), 0)
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
        yield _changed(" and ".join(words), pairs, resource=first.resource, amount=first.whole(first.excess))


def _more(share: QueueShare, reason: queue_reasons.BoundReason, lacking: int) -> tuple[QueueShare, str, int]:
    """Return a share that leaves room for more, what of it is raised, and to what."""
    bounds = {"quota": "quota"}
    if isinstance(reason, queue_reasons.OverLimit):
        bounds = {"limit": "limit", "borrowing": "borrowing limit", **bounds}
    elif not isinstance(reason, queue_reasons.NonPreemptibleOverQuota | queue_reasons.OverFairShare):
        return share, "", 0
    for field, words in bounds.items():
        if (amount := getattr(share, field)) is not None:
            return edited(share, **{field: amount + lacking}), words, amount + lacking
    return share, "", 0


def volume_amendments(asked: Asked) -> Iterator[Amendment]:
    """Yield changes of the volumes that the pods use."""
    for reason in asked.reasons:
        match reason:
            case node_reasons.VolumeNotReady():
                yield _bound(asked, reason)
            case node_reasons.NoVolumeLeft():
                yield from _made_volume(asked, reason)
            case node_reasons.VolumeInUse():
                yield from _let_go(asked, reason)
            case _:
                pass


def _bound(asked: Asked, reason: node_reasons.VolumeNotReady) -> Amendment:
    """Return that each claim is there and bound to a volume that can be used on every node."""
    volumes = asked.state.constraints.volumes
    facts: list[payloads.Payload] = []
    undo: list[payloads.Payload] = []
    names: list[str] = []
    for number, use in enumerate(asked.pod.claims):
        if f"claim {use.name} " not in f"{reason.waits_for} ":
            continue
        before = volumes.claims.get(f"{asked.pod.namespace}/{use.name}")
        name = f"made-{number}"
        claim = before or PersistentVolumeClaim(f"{name}-claim", asked.pod.namespace, use.name, "")
        owner = asked.pod.uid if use.owned else claim.owner
        after = edited(claim, bound=True, volume=name, lost=False, deleting=False, owner=owner)
        facts += [
            payloads.PersistentVolumeObserved(_volume(name, claim)),
            payloads.PersistentVolumeClaimObserved(after),
        ]
        undo += [
            payloads.PersistentVolumeClaimDeleted(claim.uid, claim.namespace, claim.name)
            if before is None
            else payloads.PersistentVolumeClaimObserved(before),
            payloads.PersistentVolumeDeleted(name, name),
        ]
        names.append(f"{asked.pod.namespace}/{use.name}")
    verb = "get PersistentVolumeClaim"
    words = f"{verb} {', '.join(names)} bound to a volume: {reason.waits_for}"
    return Amendment("bind-claim", words, Effort.MAKE_OBJECT, facts=facts, undo=undo, place=", ".join(names))


def _volume(name: str, claim: PersistentVolumeClaim) -> PersistentVolume:
    return PersistentVolume(
        uid=name,
        name=name,
        resource_version="",
        storage_class=claim.storage_class,
        phase="Available",
        capacity=claim.request,
        access_modes=claim.access_modes,
        volume_mode=claim.volume_mode,
        labels={one.key: one.values[0] for one in claim.selector if one.values},
    )


def _made_volume(asked: Asked, reason: node_reasons.NoVolumeLeft) -> Iterator[Amendment]:
    claims = asked.state.constraints.volumes.claims
    open_claims = [claims.get(f"{asked.pod.namespace}/{use.name}") for use in asked.pod.claims]
    wanted = [one for one in open_claims if one is not None and one.storage_class == reason.storage_class]
    if not wanted:
        return
    volumes = [_volume(f"made-{number}", one) for number, one in enumerate(wanted)]
    most = max(one.request for one in wanted)
    words = (
        f"make a PersistentVolume of storage class {reason.storage_class} of {format_amount(MEMORY, most)} "
        f"for claim {', '.join(one.key for one in wanted)}"
    )
    yield Amendment(
        "make-volume",
        words,
        Effort.MAKE_OBJECT,
        facts=[payloads.PersistentVolumeObserved(one) for one in volumes],
        undo=[payloads.PersistentVolumeDeleted(one.uid, one.name) for one in volumes],
        resource="storage",
        amount=most,
        place=reason.storage_class,
    )


def _let_go(asked: Asked, reason: node_reasons.VolumeInUse) -> Iterator[Amendment]:
    namespace, _, name = reason.claim.partition("/")
    for entry in asked.state.pods.values():
        uses = any(use.name == name for use in entry.pod.claims)
        if entry.charged and uses and entry.pod.namespace == namespace:
            yield end_of(
                asked, [entry], f"end pod {entry.pod.subject} on {entry.node}, which uses claim {reason.claim}"
            )
