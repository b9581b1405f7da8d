"""The setting of one policy, as an operator writes it, and as a configuration records it with the code's digest.

The digest is of the policy's source. So a cycle's record, which names its configuration, names the code as well.
"""

import msgspec


class PolicyEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of `policies` in a shard's settings: a file, or the name of an entry point.

    Attributes:
        file: path of a Python file, from the folder of the settings; empty for an entry point.
        name: of an entry point of `kai_ledger.policies`; empty for a file.
        arguments: for the policy, by name.
        queues: for which it decides; empty for all.
    """

    file: str = ""
    name: str = ""
    arguments: dict[str, object] = {}
    queues: tuple[str, ...] = ()


class PolicySetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One policy of a shard; made by the loader (`kaicore.runtime.policies.loading`) and not by hand.

    Attributes:
        name: of the policy.
        version: of the policy, for people.
        digest: of its source, SHA-256 in hexadecimal digits.
        arguments: as plain data, defaults included.
        queues: for which it decides; empty for all.
        points: which points it defines (`kaicore.policy.Point`), sorted.
        pod_labels: keys of pods' labels that it looks at.
        pod_annotations: keys of pods' annotations that it looks at.
        tenants: whether it asks which namespaces have pods on a node.
    """

    name: str
    version: str
    digest: str
    arguments: dict[str, object] = {}
    queues: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    pod_annotations: tuple[str, ...] = ()
    tenants: bool = False

    @property
    def places(self) -> bool:
        """True if it has a say about which nodes pods get."""
        return "filter" in self.points or "score" in self.points

    def decides_for(self, queue: str) -> bool:
        """Tell whether it decides about the work of a queue."""
        return not self.queues or queue in self.queues


class PolicyWork(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts by which policies tell pods of one class apart (`kaicore.policy.Work`).

    Attributes:
        labels: those of the pods that a policy declares which filters or scores nodes.
        annotations: likewise.
    """

    namespace: str
    queue: str
    priority: int
    preemptible: bool
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
