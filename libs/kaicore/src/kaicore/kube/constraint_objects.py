"""Node and pod constraints of a pod on the wire: see `kaicore.kube.objects`."""

import msgspec

from kaicore.kube.wire import Wire


class SelectorRequirement(Wire):
    """An expression over a label, or a field of a node."""

    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class LabelSelector(Wire):
    """Labels that all have to be there, and expressions that all have to hold; empty, it selects everything."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class NodeSelectorTerm(Wire):
    """All of its expressions have to hold."""

    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(Wire):
    """Any of its terms has to hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredNodeTerm(Wire):
    """A term that is preferred."""

    weight: int = 0
    preference: NodeSelectorTerm = msgspec.field(default_factory=NodeSelectorTerm)


class NodeAffinity(Wire):
    """Which nodes the pod may go to, and which it prefers."""

    required: NodeSelector | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")
    preferred: list[PreferredNodeTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class PodAffinityTerm(Wire):
    """Pods of some namespaces, and the label that makes domains of nodes."""

    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class PreferredPodTerm(Wire):
    """A term that is preferred."""

    weight: int = 0
    pod_affinity_term: PodAffinityTerm = msgspec.field(default_factory=PodAffinityTerm)


class InterPodAffinity(Wire):
    """Which pods this one must or should be near to, or away from."""

    required: list[PodAffinityTerm] | None = msgspec.field(
        default=None, name="requiredDuringSchedulingIgnoredDuringExecution"
    )
    preferred: list[PreferredPodTerm] | None = msgspec.field(
        default=None, name="preferredDuringSchedulingIgnoredDuringExecution"
    )


class Affinity(Wire):
    """All of a pod's affinities."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: InterPodAffinity | None = None
    pod_anti_affinity: InterPodAffinity | None = None


class TopologySpreadConstraint(Wire):
    """How pods are to be spread."""

    max_skew: int = 0
    topology_key: str = ""
    when_unsatisfiable: str = ""
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str | None = None
    node_taints_policy: str | None = None
    match_label_keys: list[str] | None = None


class ClaimSource(Wire):
    """A volume that is a PersistentVolumeClaim of the pod's namespace."""

    claim_name: str = ""


class EphemeralSource(Wire):
    """A volume whose claim is made for the pod, and named after pod and volume."""


class Volume(Wire):
    """A volume; only whether it is bound to certain nodes."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None
