"""Objects by which a share of a GPU is carried out, under the names that KAI-Scheduler gave them.

Programs on the devices' side read these names, so they stay KAI's (its packages `binder/common/gpusharingconfigmap` and
`binder/binding/resourcereservation`):

- a *reservation pod* holds one whole GPU of a node, and its annotation says which one;
- pods that share this GPU have its group in a label;
- two ConfigMaps tell the sharing container its GPUs and its part: one by keys, one as a source of its environment. The
  admission webhook puts their names into the pod, and the binder makes them before it binds the pod.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kaicore.errors import InvalidObject
from kaicore.kube.normalize.share_dialects import (
    CONTAINER_NAME,
    GPU_FRACTION,
    GPU_MEMORY,
    NUM_DEVICES,
    new_pod_subject,
)
from kaicore.rules.events.payloads import GpuOpened
from kaicore.rules.model.gpu_share import GpuPart, group_labels
from kaicore.rules.model.placement import PREDICTED_ANNOTATION, encode_annotation
from kaicore.rules.objects.gpu_sharing import (
    GPU,
    GPU_GROUP_LABEL,
    GPU_GROUP_LABEL_PREFIX,
    RESERVATION_COMMAND,
    VISIBLE_DEVICES,
)

Document = dict[str, Any]

#: By which pods ask for shares; the webhook is asked about no others.
SHARE_ANNOTATIONS = (GPU_FRACTION, GPU_MEMORY, NUM_DEVICES)
#: On a pod with a share: what the names of its ConfigMaps begin with.
CONFIG_MAP_PREFIX = "runai/shared-gpu-configmap"
#: On a pod with a share, once it is placed.
RECEIVED_TYPE = "received-resource-type"
RECEIVED_FRACTION = "Fraction"

#: The part of each GPU; the second name is an older one of the same value.
PORTION, _OLD_PORTION = "GPU_PORTION", "RUNAI_NUM_OF_GPUS"
#: By which a GPU is named where the device plugin uses CDI.
_CDI_NAME = "k8s.device-plugin.nvidia.com/gpu={}"

#: On all reservation pods of ours: KAI's, of the same namespace, are left alone.
MANAGED_BY = {"app.kubernetes.io/managed-by": "kai-ledger"}
_APP = "kai-resource-reservation"

#: Longest name of a volume; a name of a ConfigMap has `-vol` behind it there.
_LONGEST_LABEL = 63
_ENDINGS = len("-shared-gpu") + len("-i99") + len("-evar")


class SharingContainer(NamedTuple):
    """The container that gets a pod's share (`field`: `containers` or `initContainers`)."""

    field: str
    number: int
    document: Mapping[str, Any]

    @property
    def suffix(self) -> str:
        """By which the names of its ConfigMaps end."""
        return f"{'i' if self.field == 'initContainers' else ''}{self.number}"


class ConfigMapNames(NamedTuple):
    """The ConfigMaps of a pod with a share: that of keys, and that which is a source of environment."""

    keys: str
    environment: str


def sharing_container(pod: Mapping[str, Any]) -> SharingContainer:
    """Return the container that gets a pod's share: the first one, or the one that an annotation names.

    Raises InvalidObject: the pod has no such container.
    """
    spec = pod.get("spec") or {}
    name = _annotations(pod).get(CONTAINER_NAME)
    containers = [
        SharingContainer(field, number, one)
        for field in ("initContainers", "containers")
        for number, one in enumerate(spec.get(field) or ())
    ]
    for container in containers:
        if container.document.get("name") == name if name is not None else container.field == "containers":
            return container
    if name is None:
        raise InvalidObject(new_pod_subject(pod), "spec.containers", [], "a pod needs a container")
    field = f"metadata.annotations[{CONTAINER_NAME}]"
    raise InvalidObject(new_pod_subject(pod), field, name, "is no container of the pod")


def config_map_names(pod: Mapping[str, Any], container: SharingContainer) -> ConfigMapNames:
    """Return the names of a pod's ConfigMaps.

    Raises InvalidObject: the webhook did not see the pod, for it names none.
    """
    prefix = _annotations(pod).get(CONFIG_MAP_PREFIX, "")
    if not prefix:
        field = f"metadata.annotations[{CONFIG_MAP_PREFIX}]"
        raise InvalidObject(new_pod_subject(pod), field, prefix, "kai-webhook did not see the pod; make it anew")
    return ConfigMapNames(f"{prefix}-{container.suffix}", f"{prefix}-{container.suffix}-evar")


def config_map_prefix(pod: Mapping[str, Any], distinction: str) -> str:
    """Return what the names of a new pod's ConfigMaps begin with, as KAI makes it.

    Args:
        pod: as it is admitted, maybe without a name yet.
        distinction: of the pod from others of the same owner: lowercase letters and digits.
    """
    metadata = pod.get("metadata") or {}
    owners: Sequence[Mapping[str, Any]] = metadata.get("ownerReferences") or ({},)
    base = owners[0].get("name") or metadata.get("name") or metadata.get("generateName") or "pod"
    longest = _LONGEST_LABEL - len("-vol") - _ENDINGS - len(distinction) - 1
    # A pod's name may have dots; a volume's may not.
    base = base.replace(".", "-")[:longest].strip("-") or "pod"
    return f"{base}-{distinction}-shared-gpu"


def sharing_patch(pod: Mapping[str, Any], distinction: str) -> list[Document]:
    """Return what admission adds to a pod with a share, as a JSON Patch: annotation, environment and volume.

    A pod that has all of it stays as it is, so that it may be admitted twice.
    Raises InvalidObject: the pod has no such container.

    Args:
        distinction: see `config_map_prefix`.
    """
    container = sharing_container(pod)
    annotations = dict(_annotations(pod))
    prefix = annotations.setdefault(CONFIG_MAP_PREFIX, config_map_prefix(pod, distinction))
    names = config_map_names({"metadata": {"annotations": annotations}}, container)
    path = f"/spec/{container.field}/{container.number}"
    patch: list[Document] = []
    if prefix != _annotations(pod).get(CONFIG_MAP_PREFIX):
        patch.append({"op": "add", "path": "/metadata/annotations", "value": annotations})
    document = container.document
    keys = [_from_key(key, names.keys) for key in (VISIBLE_DEVICES, _OLD_PORTION, PORTION)]
    source = {"configMapRef": {"name": names.environment, "optional": False}}
    volume = {"name": f"{names.keys}-vol", "configMap": {"name": names.keys}}
    for where, before, added in (
        (f"{path}/env", document.get("env"), keys),
        (f"{path}/envFrom", document.get("envFrom"), [source]),
        ("/spec/volumes", (pod.get("spec") or {}).get("volumes"), [volume]),
    ):
        if any(one not in (before or ()) for one in added):
            patch.append({"op": "add", "path": where, "value": _with(before or (), added)})
    return patch


def _with(before: Iterable[Document], added: Sequence[Document]) -> list[Document]:
    """Return a list with entries, in place of those of the same names."""
    names = {one.get("name") for one in added} - {None}
    return [*(one for one in before if one.get("name") not in names), *added]


def _from_key(key: str, config_map: str) -> Document:
    return {"name": key, "valueFrom": {"configMapKeyRef": {"name": config_map, "key": key}}}


def config_maps(pod: Mapping[str, Any], *, devices: Sequence[str], milli: int, cdi: bool = False) -> Iterator[Document]:
    """Yield the ConfigMaps of a pod with a share.

    Raises InvalidObject: the webhook did not see the pod, or the pod has no such container.

    Args:
        pod: as the API server has it.
        devices: its GPUs, as their reservation pods name them.
        milli: its part of each, in thousandths.
        cdi: the node's device plugin names GPUs by CDI.
    """
    container = sharing_container(pod)
    names = config_map_names(pod, container)
    visible = ",".join(_CDI_NAME.format(one) if cdi else one for one in devices)
    part = portion(milli)
    by_key = any(
        one.get("name") == VISIBLE_DEVICES and (one.get("valueFrom") or {}).get("configMapKeyRef")
        for one in container.document.get("env") or ()
    )
    keys, environment = {_OLD_PORTION: part, PORTION: part}, dict[str, str]()
    (keys if by_key else environment)[VISIBLE_DEVICES] = visible
    metadata = pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    for name, data in ((names.keys, keys), (names.environment, environment)):
        yield {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": metadata["namespace"], "ownerReferences": [owner]},
            "data": data,
        }


def portion(milli: int) -> str:
    """Return a part of a GPU as KAI writes it, with two decimals, or three where it has as many."""
    text = f"{milli / 1000:.3f}"
    return text[:-1] if text.endswith("0") else text


def group_labels_patch(labels: Mapping[str, str], parts: tuple[GpuPart, ...]) -> dict[str, str | None]:
    """Return the labels that say which GPUs a pod shares, as a merge patch of those that it has.

    Args:
        labels: of the pod; groups of an earlier placement are taken off.
    """
    before = (one for one in labels if one == GPU_GROUP_LABEL or one.startswith(GPU_GROUP_LABEL_PREFIX))
    return dict.fromkeys(before) | group_labels(parts)


class ReservationSettings(NamedTuple):
    """Settings of reservation pods.

    Attributes:
        service_account: by the rights of which the program annotates its own pod.
        runtime_class: that gives containers their GPUs; empty for the node's default.
    """

    image: str
    service_account: str = _APP
    runtime_class: str = ""


def reservation_pod(settings: ReservationSettings, opened: GpuOpened) -> Document:
    """Return the pod that holds a GPU that is opened for shares."""
    amounts = {"limits": {GPU: "1"}, "requests": {GPU: "1"}}
    own = {"KAI_POD_NAME": "metadata.name", "KAI_POD_NAMESPACE": "metadata.namespace"}
    spec: Document = {
        "nodeName": opened.node,
        "serviceAccountName": settings.service_account,
        "restartPolicy": "Always",
        # The program ends at once; the object goes only when the kubelet has the GPU back.
        "terminationGracePeriodSeconds": 5,
        "containers": [
            {
                "name": "resource-reservation",
                "image": settings.image,
                "imagePullPolicy": "IfNotPresent",
                "command": [RESERVATION_COMMAND],
                "env": [
                    *({"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in own.items()),
                    # All that the program asks of the driver.
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
                ],
                "resources": amounts,
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                    "runAsNonRoot": True,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
    }
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    annotations = {"karpenter.sh/do-not-disrupt": "true"}
    if opened.placement is not None and (record := encode_annotation(opened.placement)):
        annotations[PREDICTED_ANNOTATION] = record
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": opened.name,
            "namespace": opened.namespace,
            "labels": {"app": _APP, GPU_GROUP_LABEL: opened.group, **MANAGED_BY},
            "annotations": annotations,
        },
        "spec": spec,
    }


def is_ours(labels: Mapping[str, str]) -> bool:
    """Tell whether a pod among reservation pods is one of ours, by its labels."""
    return MANAGED_BY.items() <= labels.items() and GPU_GROUP_LABEL in labels


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}
