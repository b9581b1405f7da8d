"""Rejections of pods by a kubelet: the `reason` and `message` in the pod's status and in a Warning event.

`lifecycle.PodAdmitResult`, `topologymanager/topology_manager.go`, `cpumanager/policy_static.go`,
`lifecycle/predicate.go`.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rejection:
    """A refusal; `status.message` of the pod is `Pod was rejected: ` and the message."""

    reason: str
    message: str


class AdmissionError(Exception):
    """Raised by a resource manager that cannot allocate; carries the rejection."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


#: The merged hint is not what the node's policy demands.
TOPOLOGY_AFFINITY = Rejection("TopologyAffinityError", "Resources cannot be allocated with Topology locality")


def allocation_failed(cause: str) -> AdmissionError:
    """An error of a manager's Allocate that has no type of its own."""
    return AdmissionError(
        Rejection("UnexpectedAdmissionError", f"Allocate failed due to {cause}, which is unexpected"),
    )


def smt_alignment(requested: int, *, threads_per_core: int, free_physical_cpus: int | None = None) -> AdmissionError:
    """CPU manager option full-pcpus-only: an uneven request, or (with `free_physical_cpus`) too few whole cores."""
    if free_physical_cpus is None:
        text = f"requested {requested} cpus not multiple cpus per core = {threads_per_core}"
    else:
        text = (
            f"not enough free physical CPUs: available physical CPUs = {free_physical_cpus}, "
            f"requested CPUs = {requested}, CPUs per core = {threads_per_core}"
        )
    return AdmissionError(Rejection("SMTAlignmentError", f"SMT Alignment Error: {text}"))


def out_of(resource: str, *, requested: int, used: int, capacity: int) -> Rejection:
    """The node as a whole has too little; CPU in millicores, memory in bytes, the rest in counts."""
    return Rejection(
        f"OutOf{resource}",
        f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}",
    )


def predicate_failed(predicate: str) -> Rejection:
    """A predicate without amounts (NodeAffinity, NodePorts) does not hold."""
    return Rejection(predicate, f"Predicate {predicate} failed")
