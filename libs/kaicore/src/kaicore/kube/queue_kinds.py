"""The kinds of queues: where they are served, and how each becomes a fact."""

from collections.abc import Callable
from typing import Any

from kaicore.kube.kinds import Kind
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
from kaicore.kube.reflector_core import ObjectKey
from kaicore.kube.resources import ObjectT, OptionalResource
from kaicore.rules.events import payloads
from kaicore.rules.model.queue import CLUSTER_QUEUE_PREFIX, COHORT_PREFIX, Queue

_KUEUE_VERSIONS = ("v1", "v1beta2", "v1beta1")

KAI_QUEUES = OptionalResource(KAI_QUEUE, "scheduling.run.ai", "queues", ("v2",), KaiQueue)


def _queue_kind(
    kind: str, normalize: Callable[[ObjectT, Lost], Queue], name_of: Callable[[ObjectKey], str]
) -> Kind[ObjectT]:
    return Kind(
        kind,
        normalize,
        payloads.QueueObserved,
        lambda key, uid: payloads.QueueDeleted(uid=uid, name=name_of(key)),
        lambda key, _: f"queue/{name_of(key)}",
    )


def _of_kueue(kind: str, plural: str, wire: type[ObjectT], *older: str) -> OptionalResource[ObjectT]:
    return OptionalResource(kind, "kueue.x-k8s.io", plural, (*_KUEUE_VERSIONS, *older), wire)


#: Every kind of queues, and ResourceFlavors, with the resource that it is.
QUEUE_KINDS: tuple[tuple[Kind[Any], OptionalResource[Any]], ...] = (
    (_queue_kind(KAI_QUEUE, normalize_kai_queue, lambda key: key.name), KAI_QUEUES),
    (
        _queue_kind(CLUSTER_QUEUE, normalize_cluster_queue, lambda key: f"{CLUSTER_QUEUE_PREFIX}{key.name}"),
        _of_kueue(CLUSTER_QUEUE, "clusterqueues", ClusterQueueObject),
    ),
    (
        _queue_kind(COHORT, normalize_cohort, lambda key: f"{COHORT_PREFIX}{key.name}"),
        _of_kueue(COHORT, "cohorts", CohortObject, "v1alpha1"),
    ),
    (
        _queue_kind(LOCAL_QUEUE, normalize_local_queue, lambda key: f"{key.namespace}/{key.name}"),
        _of_kueue(LOCAL_QUEUE, "localqueues", LocalQueueObject),
    ),
    (
        Kind(
            RESOURCE_FLAVOR,
            normalize_resource_flavor,
            payloads.FlavorObserved,
            lambda key, uid: payloads.FlavorDeleted(uid=uid, name=key.name),
            lambda key, _: f"flavor/{key.name}",
        ),
        _of_kueue(RESOURCE_FLAVOR, "resourceflavors", ResourceFlavorObject),
    ),
)


def queue_kind(api_version: str, kind: str) -> tuple[Kind[Any], OptionalResource[Any]] | None:
    """Return the kind of an object that is a queue or a flavor; None for any other."""
    name = f"{kind}.{api_version.rpartition('/')[0]}"
    return next((found for found in QUEUE_KINDS if found[0].name == name), None)
