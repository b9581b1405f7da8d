"""Volumes, claims and storage classes, namespaces and disruption budgets from the wire into the model."""

import msgspec

from kaicore.errors import InvalidObject, Lost, unheard
from kaicore.kube.normalize.fields import amount, identity, namespaced_identity, required_nodes, selector
from kaicore.kube.normalize.pod import normalize_toleration
from kaicore.kube.wire import objects
from kaicore.kube.wire.resources import named_fields, named_subject
from kaicore.rules.model.pod import Namespace, PodDisruptionBudget
from kaicore.rules.model.quantity import STORAGE
from kaicore.rules.model.selector import PodSelector, Requirement
from kaicore.rules.model.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from kaicore.rules.objects.mappings import Fields
from kaicore.rules.objects.wire import KubernetesObject, PlainObject, int32

#: On a namespace: tolerations, as JSON, that its pods get besides their own (Kubernetes 1.36, admission plugin
#: PodTolerationRestriction).
DEFAULT_TOLERATIONS = "scheduler.alpha.kubernetes.io/defaultTolerations"
SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"
#: In the status of a PodDisruptionBudget.
DISRUPTIONS_ALLOWED, CURRENT_HEALTHY, DESIRED_HEALTHY = "disruptionsAllowed", "currentHealthy", "desiredHealthy"
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


def normalize_claim(wire: PlainObject, lost: Lost = unheard) -> PersistentVolumeClaim:
    """Reduce a PersistentVolumeClaim to what scheduling needs."""
    metadata, given = wire.metadata, named_fields("PersistentVolumeClaim", wire)
    spec, annotations = given.inside("spec"), metadata.annotations or {}
    volume = spec.text("volumeName")
    return PersistentVolumeClaim(
        **namespaced_identity(metadata),
        volume=volume,
        bound=bool(volume) and BOUND_ANNOTATION in annotations,
        lost=given.inside("status").text("phase") == "Lost",
        deleting=metadata.deletion_timestamp is not None,
        storage_class=annotations.get(_CLASS_ANNOTATION) or spec.text("storageClassName"),
        selected_node=annotations.get(SELECTED_NODE_ANNOTATION, ""),
        access_modes=tuple(sorted(set(spec.texts("accessModes")))),
        request=_storage(spec.inside("resources").inside("requests"), lost),
        owner=next((owner.uid for owner in metadata.owner_references or () if owner.controller), ""),
        volume_mode=_volume_mode(spec),
        selector=selector(spec, "selector") or (),
    )


def normalize_volume(wire: PlainObject, lost: Lost = unheard) -> PersistentVolume:
    """Reduce a PersistentVolume to what scheduling needs."""
    metadata, given = wire.metadata, named_fields("PersistentVolume", wire)
    spec, labels = given.inside("spec"), metadata.labels or {}
    claimed, reference = spec.value.get("claimRef") is not None, spec.inside("claimRef")
    return PersistentVolume(
        **identity(metadata),
        storage_class=(metadata.annotations or {}).get(_CLASS_ANNOTATION) or spec.text("storageClassName"),
        claimed=claimed,
        claim=f"{reference.text('namespace')}/{reference.text('name')}" if claimed else "",
        claim_uid=reference.text("uid"),
        deleting=metadata.deletion_timestamp is not None,
        phase=given.inside("status").text("phase"),
        capacity=_storage(spec.inside("capacity"), lost),
        access_modes=tuple(sorted(set(spec.texts("accessModes")))),
        node_affinity=required_nodes(spec.inside("nodeAffinity"), "required"),
        zones={key: labels[key] for key in ZONE_LABELS if key in labels},
        volume_mode=_volume_mode(spec),
        labels=labels,
    )


def normalize_storage_class(wire: objects.StorageClassObject, _: Lost = unheard) -> StorageClass:
    """Reduce a StorageClass to what scheduling needs."""
    metadata = wire.metadata
    named_subject("StorageClass", wire)
    return StorageClass(
        **identity(metadata),
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


def normalize_namespace(wire: KubernetesObject, lost: Lost = unheard) -> Namespace:
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


def normalize_budget(wire: PlainObject, lost: Lost = unheard) -> PodDisruptionBudget:
    """Reduce a PodDisruptionBudget to what evictions need.

    Its policy for pods that are not ready is that of the eviction API: `AlwaysAllow`, or else they go as long as enough
    others are healthy (kubernetes v1.37, `pkg/registry/core/pod/storage/eviction.go`).
    """
    metadata, given = wire.metadata, named_fields("PodDisruptionBudget", wire)
    spec, status = given.inside("spec"), given.inside("status")
    allowed = status.read(DISRUPTIONS_ALLOWED, int) or 0
    allowed = int32(allowed, subject=given.subject, field=status.where(DISRUPTIONS_ALLOWED), lost=lost)
    healthy, desired = (status.read(name, int) or 0 for name in (CURRENT_HEALTHY, DESIRED_HEALTHY))
    return PodDisruptionBudget(
        **namespaced_identity(metadata),
        selector=PodSelector((metadata.namespace,), labels=selector(spec, "selector")),
        disruptions_allowed=max(allowed, 0),
        disrupted=tuple(sorted(status.inside("disruptedPods").value)),
        frees_unready=spec.text("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0,
    )


def _volume_mode(spec: Fields) -> str:
    mode = spec.text("volumeMode")
    return "" if mode == "Filesystem" else mode


def _storage(amounts: Fields, lost: Lost) -> int:
    given, field = amounts.value.get(STORAGE, 0), f"{amounts.path}[{STORAGE}]"
    return amount(given, resource=STORAGE, subject=amounts.subject, field=field, lost=lost)
