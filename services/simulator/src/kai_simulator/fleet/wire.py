"""The fields of Kubernetes objects that a kubelet reads, decoded straight from the API server's bytes.

Everything has a default where the API has one; what is not named here is skipped by the decoder.
"""

from typing import Any

import msgspec


class Wire(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """Base of all wire types."""


class ObjectMeta(Wire, frozen=True):
    """`metadata`."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Resources(Wire, frozen=True):
    """`resources` of a container or a pod."""

    requests: dict[str, str | float] | None = None
    limits: dict[str, str | float] | None = None


class Port(Wire, frozen=True):
    """A container's port."""

    host_port: int = 0
    host_ip: str = msgspec.field(name="hostIP", default="")
    protocol: str = "TCP"


class ContainerSpec(Wire, frozen=True):
    """A container, or an init container."""

    name: str
    image: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None
    ports: list[Port] | None = None


class Requirement(Wire, frozen=True):
    """One expression of a node selector term."""

    key: str
    operator: str
    values: list[str] | None = None


class NodeSelectorTerm(Wire, frozen=True):
    """Requirements that must all hold."""

    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Wire, frozen=True):
    """Terms of which one must hold."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(Wire, frozen=True):
    """`nodeAffinity`, the required part."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(Wire, frozen=True):
    """`affinity`, the part about nodes."""

    node_affinity: NodeAffinity | None = None


class PodSpec(Wire, frozen=True):
    """`spec` of a pod."""

    containers: list[ContainerSpec]
    node_name: str = ""
    init_containers: list[ContainerSpec] | None = None
    restart_policy: str = "Always"
    overhead: dict[str, str | float] | None = None
    resources: Resources | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None


class PodStatus(Wire, frozen=True):
    """`status` of a pod."""

    phase: str = "Pending"


class PodObject(Wire, frozen=True):
    """A pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodStatus = PodStatus()

    def __str__(self) -> str:
        return f"pod {self.metadata.namespace}/{self.metadata.name}"


class PartialObject(Wire, frozen=True):
    """Any object, by its metadata."""

    metadata: ObjectMeta


class WatchEvent(Wire, frozen=True):
    """One line of a watch, its object still undecoded."""

    type: str
    object: msgspec.Raw


class ListMeta(Wire, frozen=True):
    """`metadata` of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class ObjectList(Wire, frozen=True):
    """A page of a list, its items still undecoded."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


class Status(Wire, frozen=True):
    """The `Status` that an API server answers errors with."""

    reason: str = ""
    message: str = ""
    code: int = 0
    details: Any = None
