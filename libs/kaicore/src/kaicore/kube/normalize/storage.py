"""Volumes, claims and storage classes, namespaces and disruption budgets from the wire into the model."""

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.normalize.fields import amount, label_requirements, node_terms
from kaicore.kube.normalize.pod import normalize_toleration
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import named_subject
from kaicore.rules.model.pod import Namespace, PodDisruptionBudget
from kaicore.rules.model.quantity import STORAGE
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.objects.wire import int32

#: On a namespace: tolerations, as JSON, that its pods get besides their own (Kubernetes 1.36, admission plugin
#: PodTolerationRestriction).
DEFAULT_TOLERATIONS = "scheduler.alpha.kubernetes.io/defaultTolerations"
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
BOUND_ANNOTATION = "pv.kubernetes.io/bind-completed"
#: What named a claim's class before `spec.storageClassName`, and still wins over it.
_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"

#: Labels of volumes that say where they are; the first two are today's names of the last two.
ZONE_LABELS = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


def normalize_claim(wire: objects.ClaimObject, lost: Lost = unheard) -> PersistentVolumeClaim:
    """Reduce a PersistentVolumeClaim to what scheduling needs."""
    metadata, spec = wire.metadata, wire.spec
    subject = named_subject("PersistentVolumeClaim", wire)
    annotations = metadata.annotations or {}
    requests = spec.resources.requests if spec.resources is not None else None
    return PersistentVolumeClaim(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        volume=spec.volume_name or "",
        bound=bool(spec.volume_name) and BOUND_ANNOTATION in annotations,
        lost=wire.status.phase == "Lost",
        deleting=metadata.deletion_timestamp is not None,
        storage_class=annotations.get(_CLASS_ANNOTATION) or spec.storage_class_name or "",
        selected_node=annotations.get(SELECTED_NODE_ANNOTATION, ""),
        access_modes=tuple(sorted(set(spec.access_modes or ()))),
        request=_storage(requests, subject=subject, field="spec.resources.requests", lost=lost),
        owner=next((owner.uid for owner in metadata.owner_references or () if owner.controller), ""),
        volume_mode=_volume_mode(spec.volume_mode),
        selector=label_requirements(spec.selector, subject=subject, field="spec.selector") or (),
    )


def normalize_volume(wire: objects.VolumeObject, lost: Lost = unheard) -> PersistentVolume:
    """Reduce a PersistentVolume to what scheduling needs."""
    metadata, spec = wire.metadata, wire.spec
    subject = named_subject("PersistentVolume", wire)
    required = spec.node_affinity.required if spec.node_affinity is not None else None
    labels, reference = metadata.labels or {}, spec.claim_ref
    return PersistentVolume(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        storage_class=(metadata.annotations or {}).get(_CLASS_ANNOTATION) or spec.storage_class_name or "",
        claimed=reference is not None,
        claim="" if reference is None else f"{reference.namespace}/{reference.name}",
        claim_uid="" if reference is None else reference.uid or "",
        deleting=metadata.deletion_timestamp is not None,
        phase=wire.status.phase or "",
        capacity=_storage(spec.capacity, subject=subject, field="spec.capacity", lost=lost),
        access_modes=tuple(sorted(set(spec.access_modes or ()))),
        node_affinity=None
        if required is None
        else node_terms(required, subject=subject, field="spec.nodeAffinity.required"),
        zones={key: labels[key] for key in ZONE_LABELS if key in labels},
        volume_mode=_volume_mode(spec.volume_mode),
        labels=labels,
    )


def normalize_storage_class(wire: objects.StorageClassObject, _: Lost = unheard) -> StorageClass:
    """Reduce a StorageClass to what scheduling needs."""
    metadata = wire.metadata
    named_subject("StorageClass", wire)
    return StorageClass(
        uid=metadata.uid,
        name=metadata.name,
        resource_version=metadata.resource_version,
        provisioner=wire.provisioner,
        waits=wire.volume_binding_mode == "WaitForFirstConsumer",
        topologies=tuple(
            tuple(
                Requirement(label.key, "In", tuple(sorted(set(label.values or ()))))
                for label in term.match_label_expressions or ()
            )
            for term in wire.allowed_topologies or ()
        ),
    )


def normalize_namespace(wire: objects.NamespaceObject, lost: Lost = unheard) -> Namespace:
    """Reduce a Namespace to its labels, and to what its pods tolerate."""
    metadata = wire.metadata
    subject = named_subject("Namespace", wire)
    text, tolerations = (metadata.annotations or {}).get(DEFAULT_TOLERATIONS), list[objects.PodToleration]()
    if text:
        try:
            tolerations = msgspec.json.decode(text, type=list[objects.PodToleration])
        except msgspec.DecodeError as error:
            field = f"metadata.annotations[{DEFAULT_TOLERATIONS}]"
            lost(InvalidObject(subject, field, text, f"is no list of tolerations: {error}"))
    added = tuple(map(normalize_toleration, tolerations))
    return Namespace(metadata.uid, metadata.name, metadata.resource_version, metadata.labels or {}, added)


def normalize_budget(wire: objects.BudgetObject, lost: Lost = unheard) -> PodDisruptionBudget:
    """Reduce a PodDisruptionBudget to what evictions need."""
    metadata, spec, status = wire.metadata, wire.spec, wire.status
    subject = named_subject("PodDisruptionBudget", wire)
    return PodDisruptionBudget(
        uid=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        resource_version=metadata.resource_version,
        selector=PodSelector(
            (metadata.namespace,), labels=label_requirements(spec.selector, subject=subject, field="spec.selector")
        ),
        disruptions_allowed=max(
            int32(status.disruptions_allowed or 0, subject=subject, field="status.disruptionsAllowed", lost=lost), 0
        ),
        disrupted=tuple(sorted(status.disrupted_pods or ())),
        unhealthy_may_go=spec.unhealthy_pod_eviction_policy == "AlwaysAllow",
    )


def _volume_mode(given: str | None) -> str:
    return "" if given in (None, "", "Filesystem") else str(given)


def _storage(quantities: objects.Quantities | None, *, subject: str, field: str, lost: Lost) -> int:
    given = (quantities or {}).get(STORAGE, 0)
    return amount(given, resource=STORAGE, subject=subject, field=f"{field}[{STORAGE}]", lost=lost)
