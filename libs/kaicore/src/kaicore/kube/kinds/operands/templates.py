"""Operands from the manifests that are deployed without an operator: `exporter.yaml` and `scheduler.yaml`.

An operand differs from such a manifest only in the settings of its Config or shard.
"""

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from hashlib import sha256
from typing import Any

import msgspec
import yaml

from kaicore.kube.kinds.operands.specs import (
    DIGEST,
    MANAGED_BY,
    OPERAND_KINDS,
    OPERATOR,
    SHARD,
    ConfigSpec,
    ReplicaMode,
    ShardSpec,
    owner_reference,
)
from kaicore.rules.objects.mappings import Object
from kaicore.yaml_text import load_yaml_all

_POD_OWNERS = ("DaemonSet", "Deployment", "StatefulSet")
_SETTINGS = "kai.scheduler/settings-digest"
_SETTINGS_FILE, _SETTINGS_DIRECTORY, _SETTINGS_VOLUME = "scheduler.yaml", "/etc/kai/config", "shard-settings"


def read_templates(text: str) -> tuple[Object, ...]:
    """Return the objects of a manifest that can be operands; the others are deployed beside the operator."""
    return tuple(document for document in load_yaml_all(text) if document and document["kind"] in OPERAND_KINDS)


def exporter_operands(
    templates: Iterable[Object], owner: Object, spec: ConfigSpec, *, namespace: str, image: str
) -> Iterator[Object]:
    """Return what the exporter consists of.

    Args:
        image: of containers for which the Config names none; empty for the template's.
    """
    exporter = spec.exporter
    for template in templates:
        document = _begun(template, owner, namespace)
        if document["kind"] in _POD_OWNERS:
            pod = document["spec"]["template"]["spec"]
            environment = {"KAI_CLUSTER": spec.cluster}
            if exporter.poll_interval_us is not None:
                environment["KAI_POLL_INTERVAL_S"] = _seconds(exporter.poll_interval_us)
            if exporter.drift_interval_us is not None:
                environment["KAI_DRIFT_INTERVAL_S"] = _seconds(exporter.drift_interval_us)
            _set_containers(pod, exporter.image or spec.image or image, environment, exporter.resources)
            if exporter.node_selector is not None:
                pod["nodeSelector"] = dict(exporter.node_selector)
            if exporter.tolerations is not None:
                pod["tolerations"] = list(exporter.tolerations)
            paths = {"podresources": exporter.podresources_path}
            if exporter.sysfs_path is not None:
                paths["numa"] = f"{exporter.sysfs_path.rstrip('/')}/devices/system/node"
            for volume in pod.get("volumes", ()):
                path = paths.get(volume["name"])
                if path and "hostPath" in volume:
                    volume["hostPath"]["path"] = path
        yield _done(document)


def scheduler_operands(
    templates: Iterable[Object], owner: Object, shard: ShardSpec, spec: ConfigSpec, *, namespace: str, image: str
) -> Iterator[Object]:
    """Return what the scheduler of a shard consists of.

    Args:
        image: of containers for which the Config names none; empty for the template's.
    """
    templates = list(templates)
    text = yaml.safe_dump(shard.settings, sort_keys=True)
    workload = next(template for template in templates if template["kind"] in _POD_OWNERS)
    name = f"{workload['metadata']['name']}-{shard.name}"
    settings = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {_SETTINGS_FILE: text}}
    made = [_begun(settings, owner, namespace)]
    for template in templates:
        document = _begun(template, owner, namespace)
        document["metadata"]["name"] += f"-{shard.name}"
        _select(document, {SHARD: shard.name})
        if document["kind"] in _POD_OWNERS:
            document["spec"]["replicas"] = shard.replicas
            _run_shard(document["spec"]["template"], shard, spec, image=image, settings_name=name, settings=text)
            if shard.mode is ReplicaMode.SHARED:
                made.append(_headless(document, owner, namespace))
                _with_names(document)
        made.append(document)
    for document in made:
        document["metadata"].setdefault("labels", {})[SHARD] = shard.name
        yield _done(document)


def _run_shard(
    pod_template: Object, shard: ShardSpec, spec: ConfigSpec, *, image: str, settings_name: str, settings: str
) -> None:
    metadata, pod = pod_template.setdefault("metadata", {}), pod_template["spec"]
    metadata.setdefault("labels", {})[SHARD] = shard.name
    if "serviceAccountName" in pod:
        pod["serviceAccountName"] += f"-{shard.name}"
    # Settings are read at the start: with others, the pods are made anew.
    metadata.setdefault("annotations", {})[_SETTINGS] = sha256(settings.encode()).hexdigest()[:16]
    environment = {
        "KAI_CLUSTER": spec.cluster,
        "KAI_SHARD": shard.name,
        "KAI_SCHEDULER_CONFIG": f"{_SETTINGS_DIRECTORY}/{_SETTINGS_FILE}",
    }
    resources = shard.resources if shard.resources is not None else spec.scheduler_resources
    _set_containers(pod, spec.scheduler_image or spec.image or image, environment, resources)
    pod.setdefault("volumes", []).append({"name": _SETTINGS_VOLUME, "configMap": {"name": settings_name}})
    mount = {"name": _SETTINGS_VOLUME, "mountPath": _SETTINGS_DIRECTORY, "readOnly": True}
    pod["containers"][0].setdefault("volumeMounts", []).append(mount)


def _headless(workload: Object, owner: Object, namespace: str) -> Object:
    """Return the Service that a StatefulSet's pods have their names in."""
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": workload["metadata"]["name"]},
        "spec": {"clusterIP": "None", "selector": dict(workload["spec"]["selector"]["matchLabels"])},
    }
    return _begun(service, owner, namespace)


def _with_names(workload: Object) -> None:
    """Make a Deployment a StatefulSet, so that pods' names stay the same, and let each be a replica of its own name."""
    spec = workload["spec"]
    workload["kind"] = "StatefulSet"
    spec.pop("strategy", None)
    spec["serviceName"] = workload["metadata"]["name"]
    # Replicas do not wait for each other.
    spec["podManagementPolicy"] = "Parallel"
    replica = {"name": "KAI_REPLICA", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    spec["template"]["spec"]["containers"][0].setdefault("env", []).append(replica)


def _begun(template: Object, owner: Object, namespace: str) -> Object:
    document = deepcopy(template)
    metadata = document["metadata"]
    metadata["namespace"] = namespace
    metadata.setdefault("labels", {})[MANAGED_BY] = OPERATOR
    metadata["ownerReferences"] = [owner_reference(owner)]
    return document


def _done(document: Object) -> Object:
    digest = sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()[:16]
    document["metadata"].setdefault("annotations", {})[DIGEST] = digest
    return document


def _set_containers(pod: Object, image: str, environment: Mapping[str, str], resources: Object | None) -> None:
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        if image:
            container["image"] = image
    main = pod["containers"][0]
    if resources is not None:
        main["resources"] = resources
    variables = main.setdefault("env", [])
    for name, value in environment.items():
        variable = next((one for one in variables if one["name"] == name), None)
        if variable is None:
            variables.append({"name": name, "value": value})
        else:
            variable.pop("valueFrom", None)
            variable["value"] = value


def _select(part: Any, labels: Mapping[str, str]) -> None:
    """Narrow every selector in an object."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "matchLabels":
                value.update(labels)
            else:
                _select(value, labels)
    elif isinstance(part, list):
        for element in part:
            _select(element, labels)


def _seconds(duration_us: int) -> str:
    return f"{duration_us / 1_000_000:g}"
