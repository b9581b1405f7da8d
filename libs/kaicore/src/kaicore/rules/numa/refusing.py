"""Refusals of the kubelet's managers to allocate: the cases and the messages.

Source: Kubernetes v1.37, `pkg/kubelet/cm/cpumanager/policy_static.go` (enforceSMTAlignment, validatePodScopeResources),
`pkg/kubelet/cm/memorymanager/policy_static.go`.
"""

from collections.abc import Collection, Iterable

from kaicore.rules.numa.verdict import EMPTY_POD_SHARED_POOL, SMT_ALIGNMENT, UNEXPECTED_ADMISSION

#: What the memory manager says where no mask serves a container, or the container asks for no memory at all.
NO_MEMORY_HINT = (
    "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
)


class AllocationRefused(Exception):
    """A pod is refused, with a reason and message as in its status."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message


def unexpected(cause: str) -> AllocationRefused:
    """Return the refusal of a manager that cannot allocate."""
    return AllocationRefused(UNEXPECTED_ADMISSION, f"Allocate failed due to {cause}, which is unexpected")


def see_that_cores_are_whole(need: int, *, threads: int, whole: int) -> None:
    """See that CPUs can be given by whole cores (`full-pcpus-only`).

    Args:
        need: CPUs.
        threads: CPUs per core.
        whole: CPUs that the node has free.

    Raises:
        AllocationRefused: they cannot.
    """
    if need % threads:
        text = f"requested {need} cpus not multiple cpus per core = {threads}"
        raise AllocationRefused(SMT_ALIGNMENT, f"SMT Alignment Error: {text}")
    if need > whole:
        text = f"not enough free physical CPUs: available physical CPUs = {whole}"
        text += f", requested CPUs = {need}, CPUs per core = {threads}"
        raise AllocationRefused(SMT_ALIGNMENT, f"SMT Alignment Error: {text}")


def see_that_some_is_left(resources: Iterable[str], crowded: Collection[str]) -> None:
    """See that what the pod asks for as a whole leaves some to containers without a share.

    Args:
        resources: that are allocated for the pod.
        crowded: of which containers with a share use up all.

    Raises:
        AllocationRefused: of one of them nothing is left.
    """
    for resource in resources:
        if resource in crowded:
            text = f"sum of exclusive container {resource} requests equals pod budget"
            raise AllocationRefused(EMPTY_POD_SHARED_POOL, f"pod rejected, {text}, leaving none for shared containers")
