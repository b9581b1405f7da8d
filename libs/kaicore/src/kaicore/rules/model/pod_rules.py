"""Constraints of a pod on nodes, and on the pods near it, beyond amounts: Kubernetes' ordinary rules.

Disruption budgets: how many of some pods may be evicted at once.
"""

import msgspec

from kaicore.rules.model.selector import PodSelector, Requirement


class PodDisruptionBudget(msgspec.Struct, frozen=True, omit_defaults=True):
    """The number of pods that may be evicted now.

    Attributes:
        selector: the pods, of the budget's own namespace.
        disruptions_allowed: as its controller has last counted.
        disrupted: names of pods with a granted eviction that the controller has not seen go yet.
        unhealthy_may_go: `unhealthyPodEvictionPolicy: AlwaysAllow`: pods that are not ready may go in any case.
    """

    uid: str
    namespace: str
    name: str
    resource_version: str
    selector: PodSelector
    disruptions_allowed: int = 0
    disrupted: tuple[str, ...] = ()
    unhealthy_may_go: bool = False


class PodTerm(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod affinity or anti-affinity term: pods of `selector` in the node's domain of `topology_key`."""

    topology_key: str
    selector: PodSelector


class PreferredPods(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preferred term; its weight is 1 to 100 for affinity, -1 to -100 for anti-affinity."""

    weight: int
    term: PodTerm


class PreferredNodes(msgspec.Struct, frozen=True, omit_defaults=True):
    """A preferred node affinity term and its weight, 1 to 100."""

    weight: int
    requirements: tuple[Requirement, ...] = ()


class SpreadConstraint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topology spread constraint.

    Attributes:
        max_skew: 1 or more.
        topology_key: the node label with the domains as values.
        selector: the pods that are counted; `matchLabelKeys` are among its requirements already.
        required: `DoNotSchedule`, as against `ScheduleAnyway`.
        min_domains: with fewer domains than this the least count is taken for 0.
        honor_affinity: only nodes that meet the pod's own selector and required affinity count.
        honor_taints: only nodes with taints that the pod tolerates count.
    """

    max_skew: int
    topology_key: str
    selector: PodSelector
    required: bool = True
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class HostPort(msgspec.Struct, frozen=True, omit_defaults=True, order=True):
    """A port of the node; `0.0.0.0` is every address."""

    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"  # noqa: S104 - what an absent hostIP means


class ClaimUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """A PersistentVolumeClaim of the pod's namespace.

    Attributes:
        owned: it is made for the pod (an ephemeral volume), and must be owned by it.
    """

    name: str
    owned: bool = False


class PodRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """Constraints of a pod that depend on other pods, or that only rank nodes."""

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred_pods: tuple[PreferredPods, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    preferred_nodes: tuple[PreferredNodes, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
