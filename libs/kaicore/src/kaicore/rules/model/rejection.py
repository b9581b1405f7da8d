"""Detection of a kubelet's refusal in a pod's status."""

from kaicore.rules.model.pod import Pod

#: Reasons that nothing but a refusal has; `OutOf…` (OutOfcpu, OutOfpods, …) besides. `Evicted` has other causes too.
REJECTION_REASONS = frozenset(
    {
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
        "SMTAlignmentError",
        "EmptyPodSharedPoolError",
        "NodeAffinity",
        "NodePorts",
        "PodLevelResourcesNotSupported",
        "AppArmor",
        "SysctlForbidden",
        "NodeShutdown",
    }
)
_REJECTED_MESSAGE = "Pod was rejected: "


def is_kubelet_rejection(pod: Pod) -> bool:
    """Tell whether a kubelet refused to start the pod; such a pod never held anything."""
    if pod.phase != "Failed" or not pod.node_name:
        return False
    return (
        pod.message.startswith(_REJECTED_MESSAGE) or pod.reason in REJECTION_REASONS or pod.reason.startswith("OutOf")
    )
