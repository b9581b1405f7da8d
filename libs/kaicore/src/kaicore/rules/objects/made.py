"""Pods from pod templates, and the pod that a controller creates after a failed one."""

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

from kaicore.errors import InvalidObject
from kaicore.rules.objects.mappings import Fields, Object, controlled_by, derived_uid, generated_name, namespace_of

Texts = Mapping[str, str]


class Made(NamedTuple):
    """An object that a controller makes for its owner.

    Attributes:
        object: a pod, or another owner.
        spec_field: where what became its `spec` stands in the owner.
        through: what stands between it and the owner, if anything: the Job of a pod that submits something.
    """

    object: Object
    spec_field: str
    through: Object | None = None

    def field_in_owner(self, field: str) -> str:
        """Return where a field of the made object stands in its owner."""
        if field == "spec" or field.startswith("spec."):
            return self.spec_field + field.removeprefix("spec")
        return self.spec_field.removesuffix("spec") + field


def made_object(
    owner: Object, *, api_version: str, kind: str, name: str, generate_name: str = "", metadata: Fields | None = None
) -> Object:
    """Return an object of an owner, without its spec.

    Raises InvalidObject: the metadata's labels or annotations are no mappings.

    Args:
        generate_name: what its name was generated from, if it was.
        metadata: labels and annotations to begin with.
    """
    given = metadata or Fields("", {})
    meta: Object = {
        "name": name,
        "namespace": namespace_of(owner),
        "uid": derived_uid(owner["metadata"]["uid"], kind, name),
        "labels": given.copy("labels"),
        "annotations": given.copy("annotations"),
        "ownerReferences": controlled_by(owner),
    }
    if generate_name:
        meta["generateName"] = generate_name
    if "creationTimestamp" in owner["metadata"]:
        meta["creationTimestamp"] = owner["metadata"]["creationTimestamp"]
    return {"apiVersion": api_version, "kind": kind, "metadata": meta}


def pod_from(
    owner: Object,
    template: Fields,
    *,
    name: str = "",
    generate_name: str = "",
    key: str = "",
    labels: Texts | None = None,
    annotations: Texts | None = None,
) -> Made:
    """Return the pod that a controller makes of a template.

    Raises InvalidObject: the template has no spec, or metadata that is none.

    Args:
        template: `metadata` and `spec`.
        name: the pod's name; without one it is made of `generate_name`.
        key: tells pods of one `generate_name` apart.
    """
    spec = deepcopy(template.inside("spec", required=True).value)
    pod = made_object(
        owner,
        api_version="v1",
        kind="Pod",
        name=name or generated_name(generate_name, owner["metadata"]["uid"], key),
        generate_name="" if name else generate_name,
        metadata=template.inside("metadata"),
    )
    pod["metadata"]["labels"].update(labels or {})
    pod["metadata"]["annotations"].update(annotations or {})
    pod["spec"] = spec
    return Made(pod, template.where("spec"))


def take_free_name(pod: Object, taken: set[str]) -> None:
    """Give a pod another generated name while another has its own, as an API server does; the name is taken then.

    Of 10,000 names of five letters some four are alike.
    """
    metadata = pod["metadata"]
    while metadata["name"] in taken and "generateName" in metadata:
        uid = metadata["uid"]
        metadata["name"] = generated_name(metadata["generateName"], uid)
        metadata["uid"] = derived_uid(uid, metadata["name"])
    taken.add(metadata["name"])


def marked(template: Fields, labels: Texts, annotations: Texts | None = None) -> Object:
    """Return a copy of a template's metadata with further labels and annotations.

    Raises InvalidObject: the template's are no mappings.
    """
    metadata = template.inside("metadata")
    return {
        **metadata.value,
        "labels": {**metadata.copy("labels"), **labels},
        "annotations": {**metadata.copy("annotations"), **(annotations or {})},
    }


def successor(pod: Object) -> Object:
    """Return the pod that takes the place of one that failed: another uid, and another name where it was generated."""
    metadata = pod["metadata"]
    after = deepcopy(pod)
    after["metadata"]["uid"] = derived_uid(metadata["uid"], "successor")
    if metadata.get("generateName"):
        after["metadata"]["name"] = generated_name(metadata["generateName"], metadata["uid"], "successor")
    for field in ("resourceVersion", "deletionTimestamp", "creationTimestamp"):
        after["metadata"].pop(field, None)
    after["spec"].pop("nodeName", None)
    after.pop("status", None)
    return after


def keep_alone(pod: Object, *, label: str, topology_key: str) -> None:
    """Give a pod the required affinities of exclusive placement: with those of its own key, away from all others."""
    value = pod["metadata"]["labels"][label]
    affinity = mapping_in(pod["spec"], "affinity")
    for kind, operator in (("podAffinity", "In"), ("podAntiAffinity", "NotIn")):
        expressions: list[Object] = [{"key": label, "operator": operator, "values": [value]}]
        if operator == "NotIn":
            expressions.insert(0, {"key": label, "operator": "Exists"})
        require(affinity, kind, expressions, topology_key=topology_key)


def require(affinity: Object, kind: str, expressions: list[Object], *, topology_key: str) -> None:
    """Add a required term to an affinity's `podAffinity` or `podAntiAffinity`."""
    term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology_key}
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = mapping_in(affinity, kind)
    terms[field] = [*(terms.get(field) or ()), term]


def mapping_in(parent: Object, name: str) -> Object:
    """Return a mapping of a mapping, put there where it is missing. Raises InvalidObject: something else is there."""
    if parent.get(name) is None:
        parent[name] = {}
    if not isinstance(parent[name], dict):
        raise InvalidObject("pod template", name, parent[name], "must be a mapping")
    mapping: Object = parent[name]
    return mapping


def list_in(pod: Made, field: str) -> list[Object]:
    """Return a list of a pod's `spec`, put there where it is missing. Raises InvalidObject: something else is there."""
    spec = pod.object["spec"]
    if spec.get(field) is None:
        spec[field] = []
    if not isinstance(spec[field], list):
        raise InvalidObject("pod template", f"{pod.spec_field}.{field}", spec[field], "must be a list")
    items: list[Object] = spec[field]
    return items
