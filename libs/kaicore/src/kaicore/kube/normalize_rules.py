"""A pod's constraints on nodes and on the pods near it, from the wire into the model.

When a pod is created, the API server merges `matchLabelKeys` and `mismatchLabelKeys` into selectors. This module merges
them as well, because a manifest has not passed an API server; merging twice changes nothing.
"""

from collections.abc import Iterator

from kaicore.errors import InvalidObject
from kaicore.kube.constraint_objects import (
    Affinity,
    PodAffinityTerm,
    PreferredPodTerm,
    TopologySpreadConstraint,
    Volume,
)
from kaicore.kube.normalize_selector import label_requirements, node_term, node_terms, sorted_requirements
from kaicore.kube.objects import ContainerSpec, PodObject
from kaicore.rules.model.pod_rules import (
    ClaimUse,
    HostPort,
    PodRules,
    PodTerm,
    PreferredNodes,
    PreferredPods,
    SpreadConstraint,
)
from kaicore.rules.model.selector import PodSelector, Requirement

#: Counts have 32 bits.
_MOST_COUNT = 2**31 - 1
_MAX_WEIGHT = 100
_MAX_PORT = 65535
_NOTHING = PodRules()
_AFFINITY = "spec.affinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod_rules(wire: PodObject, *, subject: str) -> PodRules | None:
    """Return what a pod asks for beyond amounts and required node labels; None for nothing.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    spec = wire.spec
    if not (spec.affinity or spec.topology_spread_constraints) and not _ports_at_all(wire):
        return None
    reader = _Reader(wire, subject)
    affinity = spec.affinity or Affinity()
    near, apart = affinity.pod_affinity, affinity.pod_anti_affinity
    preferred = [
        *(reader.preferred("podAffinity", near.preferred, 1) if near is not None else ()),
        *(reader.preferred("podAntiAffinity", apart.preferred, -1) if apart is not None else ()),
    ]
    of_pod = PodRules(
        affinity=tuple(reader.required("podAffinity", near.required)) if near is not None else (),
        anti_affinity=tuple(reader.required("podAntiAffinity", apart.required)) if apart is not None else (),
        preferred_pods=tuple(preferred),
        spread=tuple(
            reader.spread(constraint, f"spec.topologySpreadConstraints[{index}]")
            for index, constraint in enumerate(spec.topology_spread_constraints or ())
        ),
        preferred_nodes=tuple(reader.preferred_nodes()),
        host_ports=tuple(sorted(set(reader.host_ports()))),
    )
    return None if of_pod == _NOTHING else of_pod


def required_nodes(affinity: Affinity | None, *, subject: str) -> tuple[tuple[Requirement, ...], ...]:
    """Return the terms of which a node has to meet any; none where every node will do.

    Raises:
        InvalidObject: naming the field that says something impossible.
    """
    nodes = affinity.node_affinity if affinity is not None else None
    if nodes is None or nodes.required is None:
        return ()
    return node_terms(nodes.required, subject=subject, field=f"{_AFFINITY}.nodeAffinity.{_REQUIRED}")


def claim_uses(volumes: list[Volume] | None, *, pod: str) -> Iterator[ClaimUse]:
    """Yield the claims that volumes refer to; an ephemeral volume's claim is named after pod and volume."""
    for volume in volumes or ():
        if volume.persistent_volume_claim is not None:
            yield ClaimUse(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            yield ClaimUse(f"{pod}-{volume.name}", owned=True)


def _ports_at_all(wire: PodObject) -> bool:
    return any(
        container.ports for group in (wire.spec.init_containers, wire.spec.containers) for container in group or ()
    )


class _Reader:
    """Reads one pod's constraints."""

    def __init__(self, wire: PodObject, subject: str) -> None:
        self._spec = wire.spec
        self._subject = subject
        self._namespace = wire.metadata.namespace
        self._labels = wire.metadata.labels or {}

    def required(self, kind: str, terms: list[PodAffinityTerm] | None) -> Iterator[PodTerm]:
        for index, term in enumerate(terms or ()):
            yield self._term(term, f"{_AFFINITY}.{kind}.{_REQUIRED}[{index}]")

    def preferred(self, kind: str, terms: list[PreferredPodTerm] | None, sign: int) -> Iterator[PreferredPods]:
        for index, term in enumerate(terms or ()):
            field = f"{_AFFINITY}.{kind}.{_PREFERRED}[{index}]"
            self._check_weight(term.weight, field)
            yield PreferredPods(sign * term.weight, self._term(term.pod_affinity_term, f"{field}.podAffinityTerm"))

    def preferred_nodes(self) -> Iterator[PreferredNodes]:
        affinity = self._spec.affinity.node_affinity if self._spec.affinity is not None else None
        for index, term in enumerate(affinity.preferred or () if affinity is not None else ()):
            field = f"{_AFFINITY}.nodeAffinity.{_PREFERRED}[{index}]"
            self._check_weight(term.weight, field)
            requirements = node_term(term.preference, subject=self._subject, field=f"{field}.preference")
            # A term without expressions selects no node.
            if requirements:
                yield PreferredNodes(term.weight, requirements)

    def spread(self, constraint: TopologySpreadConstraint, field: str) -> SpreadConstraint:
        for name, count in (("maxSkew", constraint.max_skew), ("minDomains", constraint.min_domains)):
            if count is not None and not 1 <= count <= _MOST_COUNT:
                raise InvalidObject(self._subject, f"{field}.{name}", count, f"not from 1 to {_MOST_COUNT}")
        self._check_key(constraint.topology_key, field)
        labels = label_requirements(constraint.label_selector, subject=self._subject, field=f"{field}.labelSelector")
        labels = self._merged(labels, constraint.match_label_keys, "In")
        return SpreadConstraint(
            max_skew=constraint.max_skew,
            topology_key=constraint.topology_key,
            selector=PodSelector((self._namespace,), labels=labels, living=True),
            required=self._one_of(
                constraint.when_unsatisfiable, f"{field}.whenUnsatisfiable", "DoNotSchedule", "ScheduleAnyway"
            ),
            min_domains=constraint.min_domains or 1,
            honor_affinity=self._one_of(
                constraint.node_affinity_policy or "Honor", f"{field}.nodeAffinityPolicy", "Honor", "Ignore"
            ),
            honor_taints=self._one_of(
                constraint.node_taints_policy or "Ignore", f"{field}.nodeTaintsPolicy", "Honor", "Ignore"
            ),
        )

    def host_ports(self) -> Iterator[HostPort]:
        """Yield the ports of the node that the running pod takes; ordinary init containers' are not among them."""
        spec = self._spec
        sidecars = (
            (f"spec.initContainers[{index}]", container)
            for index, container in enumerate(spec.init_containers or ())
            if container.restart_policy == "Always"
        )
        others = ((f"spec.containers[{index}]", container) for index, container in enumerate(spec.containers or ()))
        for where, container in (*sidecars, *others):
            yield from self._ports(container, where)

    def _ports(self, container: ContainerSpec, where: str) -> Iterator[HostPort]:
        for index, port in enumerate(container.ports or ()):
            if not port.host_port:
                continue
            if not 0 < port.host_port <= _MAX_PORT:
                raise InvalidObject(self._subject, f"{where}.ports[{index}].hostPort", port.host_port, "not a port")
            # An absent hostIP is every address.
            yield HostPort(port.host_port, port.protocol or "TCP", port.host_ip or HostPort(port.host_port).ip)

    def _term(self, term: PodAffinityTerm, field: str) -> PodTerm:
        self._check_key(term.topology_key, field)
        labels = label_requirements(term.label_selector, subject=self._subject, field=f"{field}.labelSelector")
        labels = self._merged(labels, term.match_label_keys, "In")
        labels = self._merged(labels, term.mismatch_label_keys, "NotIn")
        namespace_labels = label_requirements(
            term.namespace_selector, subject=self._subject, field=f"{field}.namespaceSelector"
        )
        names = tuple(sorted(set(term.namespaces or ())))
        if not names and namespace_labels is None:
            names = (self._namespace,)
        return PodTerm(term.topology_key, PodSelector(names, namespace_labels, labels))

    def _merged(
        self, labels: tuple[Requirement, ...] | None, keys: list[str] | None, operator: str
    ) -> tuple[Requirement, ...] | None:
        if labels is None:
            return None
        there = {requirement.key for requirement in labels if requirement.operator == operator}
        return sorted_requirements(
            (
                *labels,
                *(
                    Requirement(key, operator, (self._labels[key],))
                    for key in keys or ()
                    if key in self._labels and key not in there
                ),
            )
        )

    def _check_key(self, key: str, field: str) -> None:
        if not key:
            raise InvalidObject(self._subject, f"{field}.topologyKey", key, "is empty")

    def _check_weight(self, weight: int, field: str) -> None:
        if not 1 <= weight <= _MAX_WEIGHT:
            raise InvalidObject(self._subject, f"{field}.weight", weight, "not from 1 to 100")

    def _one_of(self, value: str, field: str, true: str, false: str) -> bool:
        if value not in (true, false):
            raise InvalidObject(self._subject, field, value, f"neither {true} nor {false}")
        return value == true
