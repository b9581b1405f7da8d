"""The kinds of queues: their API paths, and their conversion into facts."""

from collections.abc import Callable
from typing import Any

from kaicore.kube.kind import Kind
from kaicore.kube.losses import Lost
from kaicore.kube.normalize_queue import (
    CLUSTER_QUEUE,
    COHORT,
    KAI_QUEUE,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    normalize_cluster_queue,
    normalize_cohort,
    normalize_kai_queue,
    normalize_local_queue,
    normalize_resource_flavor,
)
from kaicore.kube.queue_objects import (
    ClusterQueueObject,
    CohortObject,
    KaiQueue,
    LocalQueueObject,
    ResourceFlavorObject,
)
from kaicore.kube.resources import ObjectT, OptionalResource
from kaicore.rules.events import payloads
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX, COHORT_PREFIX, Queue

_KUEUE_VERSIONS = ("v1", "v1beta2", "v1beta1")

KAI_QUEUES = OptionalResource(KAI_QUEUE, "scheduling.run.ai", "queues", ("v2",), KaiQueue, namespaced=False)


def _queue_kind(
    resource: OptionalResource[ObjectT], normalize: Callable[[ObjectT, Lost], Queue], called: str = "{name}"
) -> Kind[ObjectT]:
    return Kind(resource, normalize, payloads.QueueObserved, payloads.QueueDeleted, "queue/{name}", called)


def _of_kueue(
    kind: str, plural: str, wire: type[ObjectT], *older: str, namespaced: bool = False
) -> OptionalResource[ObjectT]:
    return OptionalResource(kind, "kueue.x-k8s.io", plural, (*_KUEUE_VERSIONS, *older), wire, namespaced)


#: Every kind of queues, and ResourceFlavors.
QUEUE_KINDS: tuple[Kind[Any], ...] = (
    _queue_kind(KAI_QUEUES, normalize_kai_queue),
    _queue_kind(
        _of_kueue(CLUSTER_QUEUE, "clusterqueues", ClusterQueueObject),
        normalize_cluster_queue,
        f"{CLUSTER_QUEUE_PREFIX}{{name}}",
    ),
    _queue_kind(_of_kueue(COHORT, "cohorts", CohortObject, "v1alpha1"), normalize_cohort, f"{COHORT_PREFIX}{{name}}"),
    _queue_kind(
        _of_kueue(LOCAL_QUEUE, "localqueues", LocalQueueObject, namespaced=True),
        normalize_local_queue,
        "{namespace}/{name}",
    ),
    Kind(
        _of_kueue(RESOURCE_FLAVOR, "resourceflavors", ResourceFlavorObject),
        normalize_resource_flavor,
        payloads.FlavorObserved,
        payloads.FlavorDeleted,
        "flavor/{name}",
    ),
)


def queue_kind(api_version: str, kind: str) -> Kind[Any] | None:
    """Return the kind of an object that is a queue or a flavor; None for any other."""
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((row for row in QUEUE_KINDS if row.name == name), None)
