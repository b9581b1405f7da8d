"""Queues of KAI and of Kueue from the wire into the one model, and ProvisioningRequests beside them.

Decision 0080 defines the mapping.
"""

from collections.abc import Collection
from decimal import Decimal
from typing import Any, NamedTuple

from kaicore.errors import AbsurdQuantity, InvalidObject, InvalidQuantity, Lost, unheard
from kaicore.kube.normalize.fields import amount, namespaced_identity, selector
from kaicore.kube.normalize.pod import normalize_toleration
from kaicore.kube.wire.objects import NodeTaint, PodToleration
from kaicore.kube.wire.resources import named_fields
from kaicore.rules.groups.dialects.dialect import duration
from kaicore.rules.model import queue as models
from kaicore.rules.model.node import Taint
from kaicore.rules.model.quantity import CPU, MEMORY, most_amount
from kaicore.rules.model.selector import Requirement
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.provisioning import ProvisioningCondition, ProvisioningRequest
from kaicore.rules.objects.wire import LabelSelector, ObjectMeta, PlainObject, int32, seconds
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

_ADMITTING = ("", "None")
#: Kueue's controller writes it on every ClusterQueue, true or false. Source: Kueue v0.17, ClusterQueueActive.
_ACTIVE = "Active"
_LOWER_PRIORITY = "LowerPriority"
#: Source: Kueue 0.20, `apis/kueue/v1alpha1/preemptionconfig_types.go`.
_RULES_NAMED_BY = "kueue.x-k8s.io/preemption-config-name"


def normalize_kai_queue(wire: PlainObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a `scheduling.run.ai` Queue; what its resources leave out, or have as none, is nothing, as in KAI."""
    spec = named_fields("Queue", wire).inside("spec")
    given = spec.inside("resources")
    priority = spec.read("priority", int)
    return _queue(
        wire.metadata,
        KAI_QUEUE,
        parent=spec.text("parentQueue"),
        node_pool=_node_pool(wire.metadata),
        shares={
            CPU: _kai_share(given.inside(CPU), 1, lost=lost),
            MEMORY: _kai_share(given.inside(MEMORY), _MEGABYTE, lost=lost),
            GPU: _kai_share(given.inside(GPU), 1, lost=lost, parts=True),
        },
        priority=int32(100 if priority is None else priority, subject=spec.subject, field="spec.priority", lost=lost),
        preempt_min_runtime_us=_runtime(spec, "preemptMinRuntime", lost),
        reclaim_min_runtime_us=_runtime(spec, "reclaimMinRuntime", lost),
    )


def normalize_cluster_queue(wire: PlainObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a ClusterQueue: a leaf that may borrow from its cohort, or has just its own quotas without one.

    `cohort` is the name of `cohortName` before v1beta2.
    """
    given, metadata = named_fields("ClusterQueue", wire), wire.metadata
    spec = given.inside("spec")
    cohort = spec.text("cohortName") or spec.text("cohort")
    shares, flavors = _quotas(spec, borrows=bool(cohort), named=True, lost=lost)
    unsupported = []
    if spec.texts("admissionChecks") or spec.inside("admissionChecksStrategy").value:
        unsupported.append("admission checks")
    namespaces, problem = _namespaces(spec.read("namespaceSelector", LabelSelector))
    preemption = spec.inside("preemption")
    borrowing, reclaims = preemption.inside("borrowWithinCohort"), preemption.text("reclaimWithinCohort")
    rules = (metadata.annotations or {}).get(_RULES_NAMED_BY, "")
    return _queue(
        metadata,
        CLUSTER_QUEUE,
        models.CLUSTER_QUEUE_PREFIX,
        node_pool=_node_pool(metadata),
        parent=f"{models.COHORT_PREFIX}{cohort}" if cohort else "",
        shares=shares,
        only_named=True,
        namespaces=namespaces,
        stopped=spec.text("stopPolicy") not in _ADMITTING,
        flavors=flavors,
        # Whether equals are newer is not asked here; less is evicted than might be.
        may_preempt=preemption.text("withinClusterQueue") not in ("", "Never"),
        may_reclaim=reclaims in ("Any", _LOWER_PRIORITY),
        reclaims_lower=reclaims == _LOWER_PRIORITY,
        borrows_from_lower=borrowing.text("policy") == _LOWER_PRIORITY,
        most_priority_lent=borrowing.read("maxPriorityThreshold", int),
        labels=metadata.labels or {},
        rules_in=f"{models.PREEMPTION_CONFIG_PREFIX}{rules}" if rules else "",
        unsupported=(*unsupported, *problem),
        controlled=any(one.text("type") == _ACTIVE for one in given.inside("status").items("conditions")),
    )


def normalize_preemption_config(wire: PlainObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a PreemptionConfig (alpha in Kueue 0.20): rules for the work of the ClusterQueues that name it."""
    rules = []
    for rule in named_fields("PreemptionConfig", wire).inside("spec").items("rules"):
        try:
            rules.append(_preemption_rule(rule))
        except InvalidObject as error:
            lost(error)
    return _queue(wire.metadata, PREEMPTION_CONFIG, models.PREEMPTION_CONFIG_PREFIX, rules=tuple(rules))


def _preemption_rule(rule: Fields) -> models.PreemptionRule:
    """Return a rule; one that asks for what is not known of work here says so and lets nothing be evicted.

    Raises InvalidObject: a word is unknown.
    """
    unsupported = ""
    selectors = []
    for one in rule.items("candidateSelectors"):
        priority = one.inside("priority")
        if _word(priority, "mode", ("Base", "Boosted")) == "Boosted":
            unsupported = f"{priority.where('mode').removeprefix(f'{rule.path}.')} Boosted"
        numbers = tuple(
            models.NumberRule(
                number.text("key"),
                number.read("fallbackValue", int),
                _word(number, "comparison", COMPARISONS),
                number.read("minValue", int),
                number.read("maxValue", int),
            )
            for number in one.items("numericLabels")
        )
        selectors.append(
            models.VictimSelector(
                _word(one, "scope", SCOPES),
                _word(priority, "comparison", COMPARISONS),
                (*(selector(one, "labelSelector") or ()), *_of_classes(priority)),
                selector(one, "clusterQueueSelector") or (),
                numbers,
            )
        )
    asked = (*(selector(rule, "preemptorSelector") or ()), *_of_classes(rule.inside("preemptorPriorityClassSelector")))
    trigger = _word(rule.inside("activationPolicy"), "trigger", TRIGGERS)
    return models.PreemptionRule(rule.text("name"), trigger, asked, tuple(selectors), unsupported)


def _word(given: Fields, name: str, words: Collection[str]) -> str:
    """Return a word; empty without one. Raises InvalidObject: it is unknown."""
    word = given.text(name)
    if word and word not in words:
        raise given.error(name, f"is none of {', '.join(words)}")
    return word


def _of_classes(names: Fields) -> tuple[Requirement, ...]:
    """Return what names of priority classes require."""
    listed = (("In", names.texts("matchNames")), ("NotIn", names.texts("notMatchNames")))
    return tuple(Requirement(PRIORITY_CLASS_LABEL, how, tuple(sorted(some))) for how, some in listed if some)


def normalize_cohort(wire: PlainObject, lost: Lost = unheard) -> models.Queue:
    """Reduce a Cohort: its quotas come on top of those of its members.

    `parent` is the name of `parentName` before v1beta2.
    """
    spec = named_fields("Cohort", wire).inside("spec")
    parent = spec.text("parentName") or spec.text("parent")
    shares, flavors = _quotas(spec, borrows=bool(parent), lost=lost)
    return _queue(
        wire.metadata,
        COHORT,
        models.COHORT_PREFIX,
        node_pool=_node_pool(wire.metadata),
        parent=f"{models.COHORT_PREFIX}{parent}" if parent else "",
        shares=shares,
        pooled=True,
        flavors=flavors,
    )


def normalize_local_queue(wire: PlainObject, _: Lost = unheard) -> models.Queue:
    """Reduce a LocalQueue to what it is: another name for its ClusterQueue.

    Raises InvalidObject: it names no ClusterQueue.
    """
    spec, namespace = named_fields("LocalQueue", wire).inside("spec"), wire.metadata.namespace
    if not spec.text("clusterQueue"):
        raise spec.error("clusterQueue", "is missing")
    return _queue(
        wire.metadata,
        LOCAL_QUEUE,
        f"{namespace}/",
        namespace=namespace,
        alias_of=f"{models.CLUSTER_QUEUE_PREFIX}{spec.text('clusterQueue')}",
        stopped=spec.text("stopPolicy") not in _ADMITTING,
    )


def normalize_resource_flavor(wire: PlainObject, _: Lost = unheard) -> models.ResourceFlavor:
    """Reduce a ResourceFlavor."""
    metadata, spec = wire.metadata, named_fields("ResourceFlavor", wire).inside("spec")
    return models.ResourceFlavor(
        metadata.name,
        metadata.uid,
        metadata.resource_version,
        spec.text_by_name("nodeLabels"),
        tuple(Taint(one.key, one.effect, one.value or "") for one in spec.read("nodeTaints", list[NodeTaint]) or ()),
        tuple(map(normalize_toleration, spec.read("tolerations", list[PodToleration]) or ())),
        spec.text("topologyName"),
    )


def _queue(metadata: ObjectMeta, origin: str, prefix: str = "", **given: Any) -> models.Queue:
    """Return the queue of an object: of its metadata, and with the given fields."""
    return models.Queue(
        name=f"{prefix}{metadata.name}",
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        origin=origin,
        created_at=seconds(metadata.creation_timestamp) or 0,
        **given,
    )


def _node_pool(metadata: ObjectMeta) -> str:
    return (metadata.labels or {}).get(models.NODE_POOL_LABEL, "")


def _runtime(spec: Fields, name: str, lost: Lost) -> int | None:
    time = duration(spec.text(name), subject=spec.subject, field=spec.where(name), lost=lost)
    if time is None or time >= 0:
        return time
    lost(spec.error(name, "is negative"))
    return None


def _kai_share(given: Fields, unit: int, *, lost: Lost, parts: bool = False) -> models.QueueShare:
    """Return the amounts of a resource in units of millicores, bytes or GPUs.

    Args:
        unit: of the object's amounts: a Queue's memory is in megabytes (10**6).
        parts: whether thousandths count.
    """
    weight = given.read("overQuotaWeight", float) or 0
    if not 0 <= weight <= _MOST_WEIGHT:
        lost(given.error("overQuotaWeight", f"is no weight of 0 to {_MOST_WEIGHT}"))
        weight = min(max(weight, 0), _MOST_WEIGHT)
    return models.QueueShare(
        quota=_kai_bound(given, "quota", unit, lost),
        limit=_kai_bound(given, "limit", unit, lost),
        weight=int(weight * 1000),
        quota_milli=_milli(given.read("quota", float)) if parts else 0,
        limit_milli=_milli(given.read("limit", float)) if parts else 0,
    )


def _milli(value: float | None) -> int:
    """Return the thousandths of a GPU that a bound has beyond whole ones."""
    if value is None or not 0 < value < most_amount(MEMORY):
        return 0
    return int(Decimal(str(value)) % 1 * 1000)


def _kai_bound(given: Fields, name: str, unit: int, lost: Lost) -> int | None:
    """Return a bound in whole units, rounded down; None for -1, and nothing for what is no bound."""
    value = given.read(name, float)
    if value == -1:
        return None
    bound = (value or 0) * unit
    most = most_amount(MEMORY)
    if bound > most:
        lost(AbsurdQuantity(given.subject, given.where(name), value, "absurdly large quantity"))
        return most
    if not bound >= 0:
        lost(given.error(name, "is neither -1 nor an amount"))
        return 0
    return int(bound)


def _quotas(
    spec: Fields, *, borrows: bool, lost: Lost, named: bool = False
) -> tuple[dict[str, models.QueueShare], tuple[models.FlavorQuota, ...]]:
    """Sum quotas and limits up over the flavors; a quota or a limit that is none counts as nothing."""
    # A quantity in thousandths, as CPUs are.
    weight = _amount(spec.inside("fairSharing"), "weight", CPU, lost, wrong=1000)
    bounds_of: dict[str, list[_Bounds]] = {}
    flavors = []
    for group in spec.items("resourceGroups"):
        if named:
            bounds_of.update({name: bounds_of.get(name, []) for name in group.texts("coveredResources")})
        for flavor in group.items("flavors"):
            if not flavor.text("name"):
                lost(flavor.error("name", "is empty"))
                continue
            quotas = {}
            for resource in flavor.items("resources"):
                if not (name := resource.text("name")):
                    lost(resource.error("name", "is empty"))
                    continue
                bounds = _Bounds(
                    _amount(resource, "nominalQuota", name, lost) or 0,
                    _amount(resource, "borrowingLimit", name, lost),
                    _amount(resource, "lendingLimit", name, lost),
                )
                bounds_of.setdefault(name, []).append(bounds)
                if bounds.quota or (borrows and bounds.borrowing != 0):
                    quotas[name] = bounds.quota
            flavors.append(models.FlavorQuota(flavor.text("name"), quotas))
    weight = 1000 if weight is None else weight
    return {name: _summed(parts, weight, borrows=borrows) for name, parts in bounds_of.items()}, tuple(flavors)


class _Bounds(NamedTuple):
    """The bounds of a resource in a flavor; None for no limit."""

    quota: int
    borrowing: int | None
    lending: int | None


def _amount(given: Fields, name: str, resource: str, lost: Lost, *, wrong: int = 0) -> int | None:
    """Return an amount of a resource; None where there is none, and `wrong` for what is no amount."""
    value = given.value.get(name)
    if value is None:
        return None
    try:
        return amount(value, resource=resource, subject=given.subject, field=given.where(name), lost=lost)
    except InvalidQuantity as error:
        lost(error)
        return wrong


def _summed(parts: list[_Bounds], weight: int, *, borrows: bool) -> models.QueueShare:
    borrowing = (
        None if any(one.borrowing is None for one in parts) or not parts else sum(one.borrowing or 0 for one in parts)
    )
    return models.QueueShare(
        quota=sum(one.quota for one in parts),
        borrowing=borrowing if borrows else 0,
        lendable=None
        if all(one.lending is None for one in parts)
        else sum(one.quota if one.lending is None else min(one.lending, one.quota) for one in parts),
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


def normalize_provisioning_request(wire: PlainObject, lost: Lost = unheard) -> ProvisioningRequest:
    """Reduce a ProvisioningRequest; a condition that makes no sense is left out."""
    metadata, given = wire.metadata, named_fields("ProvisioningRequest", wire)
    conditions: dict[str, ProvisioningCondition] = {}
    for one in given.inside("status").items("conditions"):
        name, status = one.text("type"), one.text("status")
        if not name:
            lost(one.error("type", "is missing"))
        elif name in conditions:
            lost(one.error("type", "is there twice"))
        elif status not in _STATUSES:
            lost(one.error("status", f"is none of {', '.join(_STATUSES)}"))
        else:
            # An autoscaler's message may have several lines.
            message = str(one.value.get("message") or "")[:MOST_MESSAGE]
            conditions[name] = ProvisioningCondition(name, status == "True", one.text("reason"), message)
    return ProvisioningRequest(
        **namespaced_identity(metadata),
        provisioning_class=given.inside("spec").text("provisioningClassName"),
        conditions=tuple(conditions[name] for name in sorted(conditions)),
    )
