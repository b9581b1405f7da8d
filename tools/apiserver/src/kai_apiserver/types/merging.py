"""Lists of the built-in types that merge element by element, and their keys.

A strategic merge patch and a server-side apply read the same table; what is not in it is replaced as a whole.
"""

#: `Type.field` of a list of objects to the keys that identify an element; the first is the patch merge key.
MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "V1Container.env": ("name",),
    "V1Container.ports": ("containerPort", "protocol"),
    "V1Container.volumeDevices": ("devicePath",),
    "V1Container.volumeMounts": ("mountPath",),
    "V1CSINodeSpec.drivers": ("name",),
    "V1DaemonSetStatus.conditions": ("type",),
    "V1DeploymentStatus.conditions": ("type",),
    "V1EphemeralContainer.env": ("name",),
    "V1EphemeralContainer.ports": ("containerPort", "protocol"),
    "V1EphemeralContainer.volumeDevices": ("devicePath",),
    "V1EphemeralContainer.volumeMounts": ("mountPath",),
    "V1JobStatus.conditions": ("type",),
    "V1NamespaceStatus.conditions": ("type",),
    "V1NodeStatus.addresses": ("type",),
    "V1NodeStatus.conditions": ("type",),
    "V1ObjectMeta.ownerReferences": ("uid",),
    "V1PersistentVolumeClaimStatus.conditions": ("type",),
    "V1PodDisruptionBudgetStatus.conditions": ("type",),
    "V1PodSpec.containers": ("name",),
    "V1PodSpec.ephemeralContainers": ("name",),
    "V1PodSpec.hostAliases": ("ip",),
    "V1PodSpec.imagePullSecrets": ("name",),
    "V1PodSpec.initContainers": ("name",),
    "V1PodSpec.resourceClaims": ("name",),
    "V1PodSpec.schedulingGates": ("name",),
    "V1PodSpec.topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "V1PodSpec.volumes": ("name",),
    "V1PodStatus.conditions": ("type",),
    "V1PodStatus.hostIPs": ("ip",),
    "V1PodStatus.podIPs": ("ip",),
    "V1PodStatus.resourceClaimStatuses": ("name",),
    "V1ReplicaSetStatus.conditions": ("type",),
    "V1ResourceRequirements.claims": ("name",),
    "V1ServiceAccount.secrets": ("name",),
    "V1ServiceAccount.imagePullSecrets": ("name",),
    "V1ServiceSpec.ports": ("port", "protocol"),
    "V1ServiceStatus.conditions": ("type",),
    "V1StatefulSetStatus.conditions": ("type",),
    "V1CustomResourceDefinitionStatus.conditions": ("type",),
}

#: Lists merged by key in server-side apply only: a strategic merge patch replaces them.
APPLY_ONLY_KEYS: dict[str, tuple[str, ...]] = {
    "V1NodeSpec.taints": ("key", "effect"),
}

#: `Type.field` of lists of scalars that behave as sets.
SETS = frozenset({"V1ObjectMeta.finalizers", "V1NodeSpec.podCIDRs"})

#: `Type.field` of unions: a patch may say which members stay (`$retainKeys`).
RETAIN_KEYS = frozenset({"V1PodSpec.volumes", "V1DeploymentSpec.strategy"})

#: Types whose values server-side apply takes as a whole, and maps that are so.
ATOMIC = frozenset(
    {
        "V1ConfigMapKeySelector",
        "V1LabelSelector",
        "V1LocalObjectReference",
        "V1NodeSelector",
        "V1NodeSelectorTerm",
        "V1ObjectFieldSelector",
        "V1ObjectReference",
        "V1PodSpec.nodeSelector",
        "V1ReplicationControllerSpec.selector",
        "V1ResourceFieldSelector",
        "V1SecretKeySelector",
        "V1ServiceSpec.selector",
        "V1TypedLocalObjectReference",
    }
)

#: Elements may leave these out of their key; then this stands in.
KEY_DEFAULTS = {"protocol": "TCP"}


def patch_merge_key(path: str) -> str | None:
    """The strategic merge key of the list at `Type.field`, or None if patches replace it."""
    keys = MERGE_KEYS.get(path)
    return keys[0] if keys else None


def apply_keys(path: str) -> tuple[str, ...] | None:
    """The keys by which server-side apply tells the list's elements apart, or None if it is atomic."""
    return MERGE_KEYS.get(path) or APPLY_ONLY_KEYS.get(path)
