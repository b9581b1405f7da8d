"""Queues of KAI and of Kueue from the wire into the one model, and ProvisioningRequests beside them.

Decision 0080 defines the mapping.
"""

from collections.abc import Collection, Iterable
from decimal import Decimal

from kaicore.errors import AbsurdQuantity, InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import amount, label_requirements
from kaicore.kube.normalize.pod import normalize_toleration
from kaicore.kube.wire import custom_resources
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model import queue as models
from kaicore.rules.model.node import Taint
from kaicore.rules.model.quantity import CPU, MEMORY, most_amount, parse_duration
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.provisioning import ProvisioningCondition, ProvisioningRequest
from kaicore.rules.objects.wire import LabelSelector, int32, seconds
from kaicore.rules.queues.preemption_rules import COMPARISONS, PRIORITY_CLASS_LABEL, SCOPES, TRIGGERS
from kaicore.rules.queues.tree import GPU

KAI_QUEUE = "Queue.scheduling.run.ai"
CLUSTER_QUEUE = "ClusterQueue.kueue.x-k8s.io"
COHORT = "Cohort.kueue.x-k8s.io"
LOCAL_QUEUE = "LocalQueue.kueue.x-k8s.io"
RESOURCE_FLAVOR = "ResourceFlavor.kueue.x-k8s.io"
PREEMPTION_CONFIG = "PreemptionConfig.kueue.x-k8s.io"

#: A Queue's memory is in megabytes.
_MEGABYTE = 10**6

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
#: Weights are compared with each other; a larger one is a mistake.
_MOST_WEIGHT = 10**9

_ADMITTING = (None, "", "None")
#: Kueue's controller writes it on every ClusterQueue, true or false. Source: Kueue v0.17, ClusterQueueActive.
_ACTIVE = "Active"
_LOWER_PRIORITY = "LowerPriority"
#: Source: Kueue 0.20, `apis/kueue/v1alpha1/preemptionconfig_types.go`.
_RULES_NAMED_BY = "kueue.x-k8s.io/preemption-config-name"


def normalize_kai_queue(wire: custom_resources.KaiQueue, lost: Lost = unheard) -> models.Queue:
    """Reduce a `scheduling.run.ai` Queue; what its resources leave out, or have as none, is nothing, as in KAI."""
    spec, metadata = wire.spec, wire.metadata
    subject = named_subject("Queue", wire)
    given = spec.resources
    shares = {}
    for name, resource, unit in (
        (CPU, given.cpu if given else None, 1),
        (MEMORY, given.memory if given else None, _MEGABYTE),
        (GPU, given.gpu if given else None, 1),
    ):
        field = f"spec.resources.{name}"
        own = resource or custom_resources.KaiQueueResource()
        shares[name] = _kai_share(own, unit, subject=subject, field=field, lost=lost, parts=name == GPU)
    return models.Queue(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=KAI_QUEUE,
        node_pool=(metadata.labels or {}).get(models.NODE_POOL_LABEL, ""),
        parent=spec.parent_queue or "",
        shares=shares,
        priority=int32(
            100 if spec.priority is None else spec.priority, subject=subject, field="spec.priority", lost=lost
        ),
        created_at=seconds(metadata.creation_timestamp) or 0,
        preempt_min_runtime_us=_runtime(
            spec.preempt_min_runtime, subject=subject, field="spec.preemptMinRuntime", lost=lost
        ),
        reclaim_min_runtime_us=_runtime(
            spec.reclaim_min_runtime, subject=subject, field="spec.reclaimMinRuntime", lost=lost
        ),
    )


def normalize_cluster_queue(wire: custom_resources.ClusterQueueObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a ClusterQueue: a leaf that may borrow from its cohort, or has just its own quotas without one."""
    spec, metadata = wire.spec, wire.metadata
    subject = named_subject("ClusterQueue", wire)
    cohort = spec.cohort_name or spec.cohort or ""
    shares, flavors = _quotas(
        spec.resource_groups or (), spec.fair_sharing, subject=subject, borrows=bool(cohort), named=True, lost=lost
    )
    unsupported = []
    if spec.admission_checks or spec.admission_checks_strategy:
        unsupported.append("admission checks")
    namespaces, problem = _namespaces(spec.namespace_selector)
    preemption = spec.preemption
    borrowing = preemption.borrow_within_cohort if preemption is not None else None
    rules = (metadata.annotations or {}).get(_RULES_NAMED_BY, "")
    return models.Queue(
        name=f"{models.CLUSTER_QUEUE_PREFIX}{metadata.name}",
        node_pool=(metadata.labels or {}).get(models.NODE_POOL_LABEL, ""),
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=CLUSTER_QUEUE,
        parent=f"{models.COHORT_PREFIX}{cohort}" if cohort else "",
        shares=shares,
        created_at=seconds(metadata.creation_timestamp) or 0,
        only_named=True,
        namespaces=namespaces,
        stopped=spec.stop_policy not in _ADMITTING,
        flavors=flavors,
        # Whether equals are newer is not asked here; less is evicted than might be.
        may_preempt=preemption is not None and preemption.within_cluster_queue not in (None, "", "Never"),
        may_reclaim=preemption is not None and preemption.reclaim_within_cohort in ("Any", _LOWER_PRIORITY),
        reclaims_lower=preemption is not None and preemption.reclaim_within_cohort == _LOWER_PRIORITY,
        borrows_from_lower=borrowing is not None and borrowing.policy == _LOWER_PRIORITY,
        most_priority_lent=None if borrowing is None else borrowing.max_priority_threshold,
        labels=metadata.labels or {},
        rules_in=f"{models.PREEMPTION_CONFIG_PREFIX}{rules}" if rules else "",
        unsupported=(*unsupported, *problem),
        controlled=any(one.type == _ACTIVE for one in wire.status.conditions or ()),
    )


def normalize_preemption_config(wire: custom_resources.PreemptionConfigObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a PreemptionConfig: rules for the work of the ClusterQueues that name it."""
    subject, metadata = named_subject("PreemptionConfig", wire), wire.metadata
    rules = []
    for index, rule in enumerate(wire.spec.rules or ()):
        try:
            rules.append(_preemption_rule(rule, subject=subject, field=f"spec.rules[{index}]"))
        except InvalidObject as error:
            lost(error)
    return models.Queue(
        name=f"{models.PREEMPTION_CONFIG_PREFIX}{metadata.name}",
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=PREEMPTION_CONFIG,
        created_at=seconds(metadata.creation_timestamp) or 0,
        rules=tuple(rules),
    )


def _preemption_rule(rule: custom_resources.PreemptionConfigRule, *, subject: str, field: str) -> models.PreemptionRule:
    """Return a rule; one that asks for what is not known of work here says so and lets nothing be evicted.

    Raises InvalidObject: a word is none that there is.
    """

    def word(given: str | None, words: Collection[str], name: str) -> str:
        if given and given not in words:
            raise InvalidObject(subject, f"{field}.{name}", given, f"is none of {', '.join(words)}")
        return given or ""

    def requirements(selector: LabelSelector | None, name: str) -> tuple[Requirement, ...]:
        return label_requirements(selector, subject=subject, field=f"{field}.{name}") or ()

    unsupported = ""
    selectors = []
    for place, one in enumerate(rule.candidate_selectors or ()):
        where = f"candidateSelectors[{place}]"
        priority = one.priority or custom_resources.CandidatePriority()
        if word(priority.mode, ("Base", "Boosted"), f"{where}.priority.mode") == "Boosted":
            unsupported = f"{where}.priority.mode Boosted"
        numbers = tuple(
            models.NumberRule(
                number.key,
                number.fallback_value,
                word(number.comparison, COMPARISONS, f"{where}.numericLabels[{at}].comparison"),
                number.min_value,
                number.max_value,
            )
            for at, number in enumerate(one.numeric_labels or ())
        )
        selectors.append(
            models.VictimSelector(
                word(one.scope, SCOPES, f"{where}.scope"),
                word(priority.comparison, COMPARISONS, f"{where}.priority.comparison"),
                (*requirements(one.label_selector, f"{where}.labelSelector"), *_of_classes(priority)),
                requirements(one.cluster_queue_selector, f"{where}.clusterQueueSelector"),
                numbers,
            )
        )
    trigger = word(rule.activation_policy.trigger, TRIGGERS, "activationPolicy.trigger")
    asked = requirements(rule.preemptor_selector, "preemptorSelector")
    classes = rule.preemptor_priority_class_selector or custom_resources.PriorityClassNames()
    return models.PreemptionRule(rule.name, trigger, (*asked, *_of_classes(classes)), tuple(selectors), unsupported)


def _of_classes(names: custom_resources.PriorityClassNames) -> tuple[Requirement, ...]:
    """Return what names of priority classes require."""
    listed = (("In", names.match_names), ("NotIn", names.not_match_names))
    return tuple(Requirement(PRIORITY_CLASS_LABEL, how, tuple(sorted(some))) for how, some in listed if some)


def normalize_cohort(wire: custom_resources.CohortObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a Cohort: its quotas come on top of those of its members."""
    spec, metadata = wire.spec, wire.metadata
    parent = spec.parent_name or spec.parent or ""
    subject = named_subject("Cohort", wire)
    shares, flavors = _quotas(
        spec.resource_groups or (), spec.fair_sharing, subject=subject, borrows=bool(parent), lost=lost
    )
    return models.Queue(
        name=f"{models.COHORT_PREFIX}{metadata.name}",
        node_pool=(metadata.labels or {}).get(models.NODE_POOL_LABEL, ""),
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=COHORT,
        parent=f"{models.COHORT_PREFIX}{parent}" if parent else "",
        shares=shares,
        created_at=seconds(metadata.creation_timestamp) or 0,
        pooled=True,
        flavors=flavors,
    )


def normalize_local_queue(wire: custom_resources.LocalQueueObject, _: Lost = unheard) -> models.Queue:
    """Reduce a LocalQueue to what it is: another name for its ClusterQueue.

    Raises InvalidObject: it names no ClusterQueue.
    """
    spec, metadata = wire.spec, wire.metadata
    subject = named_subject("LocalQueue", wire)
    if not spec.cluster_queue:
        raise InvalidObject(subject, "spec.clusterQueue", spec.cluster_queue, "is missing")
    return models.Queue(
        name=f"{metadata.namespace}/{metadata.name}",
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=LOCAL_QUEUE,
        namespace=metadata.namespace,
        created_at=seconds(metadata.creation_timestamp) or 0,
        alias_of=f"{models.CLUSTER_QUEUE_PREFIX}{spec.cluster_queue}",
        stopped=spec.stop_policy not in _ADMITTING,
    )


def normalize_resource_flavor(wire: custom_resources.ResourceFlavorObject, _: Lost = unheard) -> models.ResourceFlavor:
    """Reduce a ResourceFlavor."""
    named_subject("ResourceFlavor", wire)
    metadata, spec = wire.metadata, wire.spec
    return models.ResourceFlavor(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        spec.node_labels or {},
        tuple(Taint(taint.key, taint.effect, taint.value or "") for taint in spec.node_taints or ()),
        tuple(map(normalize_toleration, spec.tolerations or ())),
        spec.topology_name or "",
    )


def _runtime(text: str | None, *, subject: str, field: str, lost: Lost) -> int | None:
    if not text:
        return None
    try:
        time = parse_duration(text, subject=subject, field=field)
    except InvalidObject as error:
        lost(error)
        return None
    if time < 0:
        lost(InvalidObject(subject, field, text, "is negative"))
        return None
    return time


def _kai_share(
    given: custom_resources.KaiQueueResource, unit: int, *, subject: str, field: str, lost: Lost, parts: bool
) -> models.QueueShare:
    weight = given.over_quota_weight or 0
    if not 0 <= weight <= _MOST_WEIGHT:
        lost(InvalidObject(subject, f"{field}.overQuotaWeight", weight, f"is no weight of 0 to {_MOST_WEIGHT}"))
        weight = min(max(weight, 0), _MOST_WEIGHT)
    return models.QueueShare(
        quota=_kai_bound(given.quota, unit, subject=subject, field=f"{field}.quota", lost=lost),
        limit=_kai_bound(given.limit, unit, subject=subject, field=f"{field}.limit", lost=lost),
        weight=int(weight * 1000),
        quota_milli=_milli(given.quota) if parts else 0,
        limit_milli=_milli(given.limit) if parts else 0,
    )


def _milli(value: float | None) -> int:
    """Return the thousandths of a GPU that a bound has beyond whole ones."""
    if value is None or not 0 < value < most_amount(MEMORY):
        return 0
    return int(Decimal(str(value)) % 1 * 1000)


def _kai_bound(value: float | None, unit: int, *, subject: str, field: str, lost: Lost) -> int | None:
    """Return a bound in whole units, rounded down; None for -1, and nothing for what is no bound."""
    if value == -1:
        return None
    bound = (value or 0) * unit
    most = most_amount(MEMORY)
    if bound > most:
        lost(AbsurdQuantity(subject, field, value, "absurdly large quantity"))
        return most
    if not bound >= 0:
        lost(InvalidObject(subject, field, value, "is neither -1 nor an amount"))
        return 0
    return int(bound)


def _quotas(
    groups: Iterable[custom_resources.KueueResourceGroup],
    sharing: custom_resources.FairSharing | None,
    *,
    subject: str,
    borrows: bool,
    lost: Lost,
    named: bool = False,
) -> tuple[dict[str, models.QueueShare], tuple[models.FlavorQuota, ...]]:
    """Sum quotas and limits up over the flavors; a quota or a limit that is none counts as nothing."""
    weight = 1000
    if sharing is not None and sharing.weight is not None:
        try:
            # A quantity in thousandths, as CPUs are.
            weight = amount(sharing.weight, resource=CPU, subject=subject, field="spec.fairSharing.weight", lost=lost)
        except InvalidQuantity as error:
            lost(error)
    bounds_of: dict[str, list[tuple[int, int | None, int | None]]] = {}
    flavors = []
    for index, group in enumerate(groups):
        if named:
            bounds_of.update({name: bounds_of.get(name, []) for name in group.covered_resources or ()})
        for position, flavor in enumerate(group.flavors or ()):
            field = f"spec.resourceGroups[{index}].flavors[{position}]"
            if not flavor.name:
                lost(InvalidObject(subject, f"{field}.name", flavor.name, "is empty"))
                continue
            quotas = {}
            for place, resource in enumerate(flavor.resources or ()):
                where = f"{field}.resources[{place}]"
                if not resource.name:
                    lost(InvalidObject(subject, f"{where}.name", resource.name, "is empty"))
                    continue
                bounds = _flavor_bounds(resource, subject=subject, field=where, lost=lost)
                bounds_of.setdefault(resource.name, []).append(bounds)
                if bounds[0] or (borrows and bounds[1] != 0):
                    quotas[resource.name] = bounds[0]
            flavors.append(models.FlavorQuota(flavor.name, quotas))
    return {name: _summed(parts, weight, borrows=borrows) for name, parts in bounds_of.items()}, tuple(flavors)


def _flavor_bounds(
    resource: custom_resources.KueueResource, *, subject: str, field: str, lost: Lost
) -> tuple[int, int | None, int | None]:
    def bound(value: str | float | None, name: str) -> int | None:
        if value is None:
            return None
        try:
            return amount(value, resource=resource.name, subject=subject, field=f"{field}.{name}", lost=lost)
        except InvalidQuantity as error:
            lost(error)
            return 0

    return (
        bound(resource.nominal_quota, "nominalQuota") or 0,
        bound(resource.borrowing_limit, "borrowingLimit"),
        bound(resource.lending_limit, "lendingLimit"),
    )


def _summed(parts: list[tuple[int, int | None, int | None]], weight: int, *, borrows: bool) -> models.QueueShare:
    borrowing = None if any(part[1] is None for part in parts) or not parts else sum(part[1] or 0 for part in parts)
    lends = [quota if lendable is None else min(lendable, quota) for quota, _, lendable in parts]
    quota = sum(part[0] for part in parts)
    return models.QueueShare(
        quota=quota,
        borrowing=borrowing if borrows else 0,
        lendable=None if all(part[2] is None for part in parts) else sum(lends),
        weight=weight,
    )


def _namespaces(selector: LabelSelector | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the namespaces that a selector selects by name, empty for all of them, and what of it is not supported."""
    if selector is None:
        return (), ("a namespaceSelector that is null, and selects no namespace",)
    wanted: list[set[str]] = []
    for key, value in (selector.match_labels or {}).items():
        if key != _NAMESPACE_NAME:
            return (), (f"a namespaceSelector by the label {key}",)
        wanted.append({value})
    for expression in selector.match_expressions or ():
        if expression.key != _NAMESPACE_NAME or expression.operator != "In" or not expression.values:
            return (), (f"a namespaceSelector by {expression.key} {expression.operator}",)
        wanted.append(set(expression.values))
    if not wanted:
        return (), ()
    names = set.intersection(*wanted)
    return tuple(sorted(names)), () if names else ("a namespaceSelector that selects no namespace",)


#: So many characters of a condition's message are kept.
MOST_MESSAGE = 1000

_STATUSES = ("True", "False", "Unknown")


def normalize_provisioning_request(
    wire: custom_resources.ProvisioningRequestObject, lost: Lost = unheard
) -> ProvisioningRequest:
    """Reduce a ProvisioningRequest; a condition that makes no sense is left out."""
    metadata = wire.metadata
    subject = named_subject("ProvisioningRequest", wire)
    conditions: dict[str, ProvisioningCondition] = {}
    for index, condition in enumerate(wire.status.conditions or ()):
        field = f"status.conditions[{index}]"
        if not condition.type:
            lost(InvalidObject(subject, f"{field}.type", condition.type, "is missing"))
        elif condition.type in conditions:
            lost(InvalidObject(subject, f"{field}.type", condition.type, "is there twice"))
        elif condition.status not in _STATUSES:
            lost(InvalidObject(subject, f"{field}.status", condition.status, f"is none of {', '.join(_STATUSES)}"))
        else:
            conditions[condition.type] = ProvisioningCondition(
                condition.type,
                condition.status == "True",
                condition.reason or "",
                (condition.message or "")[:MOST_MESSAGE],
            )
    return ProvisioningRequest(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        provisioning_class=wire.spec.provisioning_class_name,
        conditions=tuple(conditions[name] for name in sorted(conditions)),
    )
